"""One pass of the eviction manager: observations in, at most one victim and the node's conditions out.

Pure. It runs between a kernel event and a kill: what depends on the configuration alone is worked out in
`EvictionConfig`.

Among thresholds that may act the kubelet picks at random (a Go map, sorted by what is no order). This picks memory
first, as the kubelet does, then hard before soft, `allocatableMemory.available` before `memory.available` (what
recorded runs show most), then the order of `KUBELET_SIGNALS`: each a choice that the kubelet can make, with the same
victim. With `compat` "kubelet-1.36" it is the kubelet's likeliest: in the order of the configuration, those held by min
reclaim last, the last that is for memory, else the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from monitor.policy.compat import SANE
from monitor.policy.ranking import Candidate
from monitor.policy.signals import ALL_SIGNALS, ALLOCATABLE_OF, CONDITION, MEMORY_SIGNALS, Observation
from monitor.policy.thresholds import LESS_THAN, Threshold

#: Grace of a hard eviction in seconds. (0 would have meant "the pod's own grace" to the kubelet's pod worker.)
HARD_GRACE_S = 1
#: terminationGracePeriodSeconds of a pod that names none: the API server and the kubelet fill it in.
DEFAULT_POD_GRACE_S = 30

_ALLOCATABLE = frozenset(ALLOCATABLE_OF.values())


Rank = Callable[[str], Iterable[Candidate]]


class _Rule(NamedTuple):
    """A threshold prepared for comparing. `fixed`: its value in whole units, None where the capacity matters."""

    threshold: Threshold
    signal: str
    slot: int  # of its signal in EvictionConfig.signals
    condition: int  # in EvictionConfig.conditions
    grace_ns: int
    fixed: int | None


@dataclass(frozen=True)
class EvictionConfig:
    """What `synchronize` goes by. `transition_period_ns`: how long a condition outlives its threshold (0: none is in
    force). `max_pod_grace_s`: the most for a soft threshold; negative leaves it to the pod, as the kubelet documents,
    or is passed through, as its code does, with `compat` "kubelet-1.36" (docs/differences.md).
    """

    thresholds: tuple[Threshold, ...]
    transition_period_ns: int
    max_pod_grace_s: int = 0
    compat: str = SANE
    #: The signals and conditions the thresholds speak of; a State is laid out along these and `rules`.
    signals: tuple[str, ...] = field(init=False, repr=False, compare=False)
    conditions: tuple[str, ...] = field(init=False, repr=False, compare=False)
    rules: tuple[_Rule, ...] = field(init=False, repr=False, compare=False)
    blank: State = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        live = [t for t in self.overlaid() if t.operator == LESS_THAN]
        if self.compat == SANE:
            live.sort(key=_preference)
        signals = tuple(dict.fromkeys(t.signal for t in live))
        conditions = tuple(dict.fromkeys(CONDITION[signal] for signal in signals))
        rules = tuple(
            _Rule(
                threshold=t,
                signal=t.signal,
                slot=signals.index(t.signal),
                condition=conditions.index(CONDITION[t.signal]),
                grace_ns=t.grace_ns,
                fixed=None if t.value.quantity is None else t.value.quantity.value,
            )
            for t in live
        )
        blank = State((None,) * len(rules), (), (None,) * len(signals), (None,) * len(conditions))
        for name, value in (("signals", signals), ("conditions", conditions), ("rules", rules), ("blank", blank)):
            object.__setattr__(self, name, value)

    def overlaid(self) -> tuple[Threshold, ...]:
        """`thresholds`, and what a pass compares beside them."""
        return self.thresholds


class State(NamedTuple):
    """What one pass leaves for the next of the same EvictionConfig (for another: `State()`, or
    `eviction_pass.reconfigured`).

    Times are those given to the passes, in nanoseconds; None is "never" or "not now". A NamedTuple: one is made in
    every pass, and a frozen dataclass takes several times as long to make.
    """

    first: tuple[int | None, ...] = ()  # per rule: since when it is met without a break
    met: tuple[int, ...] = ()  # rules that were met and past their grace
    stamps: tuple[int | None, ...] = ()  # per signal: stamp of the last observation
    last: tuple[int | None, ...] = ()  # per condition: when it was last observed
    conditions: frozenset[str] = frozenset()  # in force, the transition period included


class Outcome(NamedTuple):
    """What a pass decided: for the threshold `starved` (None: nothing to do) the pod `victim` with `grace_s` seconds
    (None: only critical ones, `refused`, or none). `met`: thresholds past their grace; `observed`: all that are met now
    or held by min reclaim. `next_deadline_ns`: when a pass is due although nothing moved; it needs observations stamped
    anew to act.
    """

    starved: Threshold | None
    victim: Candidate | None
    refused: tuple[Candidate, ...]
    grace_s: int
    conditions: frozenset[str]
    met: tuple[Threshold, ...]
    observed: tuple[Threshold, ...]
    next_deadline_ns: int | None


_NOTHING = Outcome(None, None, (), 0, frozenset(), (), (), None)


def synchronize(
    config: EvictionConfig, state: State, observations: Mapping[str, Observation], now_ns: int, rank: Rank
) -> tuple[State, Outcome]:
    """One pass. ``rank(signal)`` gives the pods, first victim first, up to the first that is not critical, if one is to
    be picked. A signal without an observation is not met. Raises ValueError for the state of another configuration.
    """
    rules = config.rules
    if not rules:
        return state, _NOTHING
    if len(state.first) != len(rules) or len(state.stamps) != len(config.signals):
        if state.first:
            raise ValueError("the state belongs to another configuration: begin with State()")
        state = config.blank

    merged = _merged(config, state.met, observations)
    first, met, deadline = _since(config, state.first, merged, now_ns)
    last, conditions, deadline = _conditions(config, state, merged, now_ns, deadline)
    stamps = tuple([None if (o := observations.get(signal)) is None else o.stamp_ns for signal in config.signals])
    next_state = State(first, met, stamps, last, conditions)
    if not merged:
        if not conditions and deadline is None:
            return next_state, _NOTHING
        return next_state, Outcome(None, None, (), 0, conditions, (), (), deadline)

    starved = _fresh(config, met, state.stamps, stamps)
    victim, refused = _pick(() if starved is None else rank(starved.signal))
    return next_state, Outcome(
        starved,
        victim,
        refused,
        0 if starved is None or victim is None else _grace(config, starved, victim),
        conditions,
        tuple([rules[i].threshold for i in met]),
        tuple([rules[i].threshold for i in merged]),
        deadline,
    )


def _merged(config: EvictionConfig, held: tuple[int, ...], observations: Mapping[str, Observation]) -> list[int]:
    """The rules met now, and of those met before with grace the ones not yet clear of value + min reclaim."""
    merged: list[int] = []
    kept: list[int] = []
    for i, rule in enumerate(config.rules):
        seen = observations.get(rule.signal)
        if seen is None:
            continue
        needed = rule.fixed
        if needed is None:
            needed = rule.threshold.value.amount(seen.capacity)
        if needed > seen.available:
            merged.append(i)
        elif i in held and rule.threshold.met(seen.available, seen.capacity, with_reclaim=True):
            kept.append(i)
    if not kept:
        return merged
    return sorted(merged + kept) if config.compat == SANE else merged + sorted(kept, key=held.index)


def _since(
    config: EvictionConfig, first: tuple[int | None, ...], merged: list[int], now_ns: int
) -> tuple[tuple[int | None, ...], tuple[int, ...], int | None]:
    """Since when each rule is met without a break; which are past their grace; when the next one will be."""
    if not merged:
        return config.blank.first, (), None
    since: list[int | None] = [None] * len(first)
    met: list[int] = []
    deadline: int | None = None
    for i in merged:
        began = first[i]
        if began is None:
            began = now_ns
        since[i] = began
        due = began + config.rules[i].grace_ns
        if now_ns >= due:
            met.append(i)
        elif deadline is None or due < deadline:
            deadline = due
    return tuple(since), tuple(met), deadline


def _conditions(
    config: EvictionConfig, state: State, merged: list[int], now_ns: int, deadline: int | None
) -> tuple[tuple[int | None, ...], frozenset[str], int | None]:
    """When each was last observed, which are in force, and the earlier of ``deadline`` and the end of one. A soft
    threshold raises its condition before its grace is over.
    """
    last = state.last
    if merged:
        observed = {config.rules[i].condition for i in merged}
        last = tuple([now_ns if i in observed else when for i, when in enumerate(last)])
    elif not state.conditions:
        return last, state.conditions, deadline
    period = config.transition_period_ns
    force = []
    for condition, when in zip(config.conditions, last, strict=True):
        if when is None or now_ns - when >= period:
            continue
        force.append(condition)
        if when != now_ns and (deadline is None or when + period < deadline):
            deadline = when + period
    return last, frozenset(force), deadline


def _fresh(
    config: EvictionConfig, met: tuple[int, ...], before: tuple[int | None, ...], stamps: tuple[int | None, ...]
) -> Threshold | None:
    """The preferred threshold past its grace whose observation is newer than the last pass's (or has no stamp): the
    first, as the rules stand; to the kubelet likeliest the last for memory.
    """
    found: Threshold | None = None
    for i in met:
        rule = config.rules[i]
        stamp, old = stamps[rule.slot], before[rule.slot]
        if stamp is not None and (old is None or stamp == 0 or stamp > old):
            if config.compat == SANE:
                return rule.threshold
            if found is None or rule.signal in MEMORY_SIGNALS:
                found = rule.threshold
    return found


def _pick(order: Iterable[Candidate]) -> tuple[Candidate | None, tuple[Candidate, ...]]:
    """The first pod that may be evicted, and the critical ones before it."""
    refused: list[Candidate] = []
    for candidate in order:
        if not candidate.critical:
            return candidate, tuple(refused)
        refused.append(candidate)
    return None, tuple(refused)


def _grace(config: EvictionConfig, starved: Threshold, victim: Candidate) -> int:
    """Seconds of grace asked for. (A real kubelet's runtime layer then makes it 2 s at least.)"""
    if starved.hard:
        return HARD_GRACE_S
    if config.max_pod_grace_s < 0 and config.compat == SANE:
        return DEFAULT_POD_GRACE_S if victim.grace_period_s is None else victim.grace_period_s
    if victim.grace_period_s is None:
        return config.max_pod_grace_s
    return min(config.max_pod_grace_s, victim.grace_period_s)


def _preference(threshold: Threshold) -> tuple[bool, bool, bool, int]:
    signal = threshold.signal
    return (signal not in MEMORY_SIGNALS, not threshold.hard, signal not in _ALLOCATABLE, ALL_SIGNALS.index(signal))
