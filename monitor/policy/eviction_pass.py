"""The pass of the eviction manager: observations in, at most one victim and the node's conditions out. The daemon,
conformance, replay, explain and the counterfactual all run this one. It runs between a kernel event and a kill: what
depends on the configuration alone is worked out in `PassConfig`.

What differs where a pass is run is a parameter:

* `PassConfig.kill_at_once`: with the daemon a hard threshold for memory waits for no pod (docs/differences.md).
* ``rank``: a kubelet ranks its pods within the pass; the daemon keeps them in order and gives that.
* ``clean``: a kubelet cleans up the node within the pass and looks again; the daemon has that done and passes again.

Among thresholds that may act the kubelet picks at random (a Go map, sorted by what is no order), but memory first. This
picks hard before soft, `allocatableMemory.available` before `memory.available` (what recorded runs show most), then by
`KUBELET_SIGNALS`. With `compat` "kubelet-1.36" it is the kubelet's likeliest: in the order of the configuration, those
held by min reclaim last, the last that is for memory, else the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple

from monitor.policy.compat import INT64_MIN, SANE
from monitor.policy.layout import SINGLE_DISK, DiskLayout, overlay_containerfs
from monitor.policy.ranking import Candidate
from monitor.policy.releases import CURRENT, Era
from monitor.policy.signals import ALL_SIGNALS, ALLOCATABLE_OF, CONDITION, MEMORY_SIGNALS, Observation
from monitor.policy.thresholds import LESS_THAN, Threshold

#: Grace of a hard eviction in seconds. (0 would have meant "the pod's own grace" to the kubelet's pod worker.)
HARD_GRACE_S = 1
#: The least grace a pod worker of the kubelet takes, in seconds.
LEAST_GRACE_S = 1
#: terminationGracePeriodSeconds of a pod that names none: the API server and the kubelet fill it in.
DEFAULT_POD_GRACE_S = 30

_ALLOCATABLE = frozenset(ALLOCATABLE_OF.values())


Rank = Callable[[str], Iterable[Candidate]]


class _Rule(NamedTuple):
    """A threshold prepared for comparing. `fixed`: its value in whole units, None where the capacity matters."""

    threshold: Threshold
    signal: str
    slot: int  # of its signal in PassConfig.signals
    condition: int  # in PassConfig.conditions
    grace_ns: int
    fixed: int | None


@dataclass(frozen=True)
class PassConfig:
    """What all passes of a daemon or a kubelet go by. `thresholds` are those of the configuration, without the overlay
    for the container file system or with it. `transition_period_ns`: how long a condition outlives its threshold (0:
    none is in force). `max_pod_grace_s`: the most for a soft threshold; negative leaves it to the pod, as the kubelet
    documents, or is passed through, as its code does, with `compat` "kubelet-1.36" (docs/differences.md).
    """

    thresholds: tuple[Threshold, ...]
    transition_period_ns: int
    max_pod_grace_s: int = 0
    compat: str = SANE
    layout: DiskLayout = SINGLE_DISK
    local_storage: bool = True
    era: Era = CURRENT
    #: A victim for memory gets no grace (SIGKILL) while a hard threshold for memory is met, any other `LEAST_GRACE_S`
    #: at least. False: the graces a kubelet passes on.
    kill_at_once: bool = False
    #: With that: seconds between SIGTERM and SIGKILL at a hard threshold too, while the pod is held (`--hard-grace`).
    hard_grace_s: int = 0
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
        return overlay_containerfs(self.thresholds, self.layout) if self.era.containerfs else self.thresholds

    @property
    def limit_grace_s(self) -> int:
        """The grace of a pod over a limit of local storage."""
        return max(LEAST_GRACE_S, self.era.hard_grace_s) if self.kill_at_once else self.era.hard_grace_s

    def before_layout(self) -> PassConfig:
        """For a kubelet's first pass, which does not see yet what thresholds the layout of the disks adds."""
        made, unseen = copy(self), self.overlaid()[len(self.thresholds) :]
        # Nothing observed is below that: what is available has 64 bits.
        rules = [rule._replace(fixed=INT64_MIN) if rule.threshold in unseen else rule for rule in self.rules]
        object.__setattr__(made, "rules", tuple(rules))
        return made


class State(NamedTuple):
    """What one pass leaves for the next of the same PassConfig (for another: `State()`).

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
    or held by min reclaim. `next_deadline_ns`: when a pass, with new observations, is due although nothing moved.
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


class PassResult(NamedTuple):
    """What a pass decided: `grace_s` are the seconds `outcome.victim` gets between SIGTERM and SIGKILL; 0: SIGKILL."""

    state: State
    outcome: Outcome
    grace_s: int


def run_pass(
    config: PassConfig,
    state: State,
    observations: Mapping[str, Observation],
    now_ns: int,
    rank: Rank,
    *,
    clean: Callable[[str], bool] | None = None,
) -> PassResult:
    """One pass at ``now_ns``. ``rank(signal)`` gives the pods, first victim first, at least as far as the first that is
    not critical; asked only when one is to be picked. A signal without an observation is not met.

    ``clean(signal)`` cleans up the node before a pod is evicted; True: that is enough, or not done yet, and this pass
    evicts no pod. Raises ValueError for the state of another configuration.
    """
    rules = config.rules
    if not rules:
        return PassResult(state, _NOTHING, 0)
    if len(state.first) != len(rules) or len(state.stamps) != len(config.signals):
        if state.first:
            raise ValueError("the state belongs to another configuration: begin with State()")
        state = config.blank

    merged = _merged(config, state.met, observations)
    first, met, deadline = _since(config, state.first, merged, now_ns)
    last, conditions, deadline = _conditions(config, state, merged, now_ns, deadline)
    stamps = tuple([None if (o := observations.get(signal)) is None else o.stamp_ns for signal in config.signals])
    next_state = State(first, met, stamps, last, conditions)
    if not merged and not conditions and deadline is None:
        return PassResult(next_state, _NOTHING, 0)

    starved = _fresh(config, met, state.stamps, stamps)
    victim, refused = _pick(starved, rank, clean)
    asked_s = 0 if starved is None or victim is None else _grace(config, starved, victim)
    passed = tuple([rules[i].threshold for i in met])
    observed = tuple([rules[i].threshold for i in merged])
    outcome = Outcome(starved, victim, refused, asked_s, conditions, passed, observed, deadline)
    return PassResult(next_state, outcome, 0 if victim is None else grace_s(config, outcome))


def _merged(config: PassConfig, held: tuple[int, ...], observations: Mapping[str, Observation]) -> list[int]:
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
    config: PassConfig, first: tuple[int | None, ...], merged: list[int], now_ns: int
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
    config: PassConfig, state: State, merged: list[int], now_ns: int, deadline: int | None
) -> tuple[tuple[int | None, ...], frozenset[str], int | None]:
    """When each was last observed (in a grace, too), which are in force, the earlier of ``deadline`` and an end."""
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
    config: PassConfig, met: tuple[int, ...], before: tuple[int | None, ...], stamps: tuple[int | None, ...]
) -> Threshold | None:
    """The preferred threshold past its grace whose observation is newer than the last pass's, or has no stamp."""
    found: Threshold | None = None
    for i in met:
        rule = config.rules[i]
        stamp, old = stamps[rule.slot], before[rule.slot]
        if stamp is not None and (old is None or stamp == 0 or stamp > old):
            if config.compat == SANE:
                return rule.threshold
            if found is None or rule.signal in MEMORY_SIGNALS:  # to the kubelet likeliest the last for memory
                found = rule.threshold
    return found


def _pick(
    starved: Threshold | None, rank: Rank, clean: Callable[[str], bool] | None
) -> tuple[Candidate | None, tuple[Candidate, ...]]:
    """The first pod that may be evicted, and the critical ones before it."""
    refused: list[Candidate] = []
    # There is nothing to clean up for memory.
    if starved is None or (clean is not None and starved.signal not in MEMORY_SIGNALS and clean(starved.signal)):
        return None, ()
    for candidate in rank(starved.signal):
        if not candidate.critical:
            return candidate, tuple(refused)
        refused.append(candidate)
    return None, tuple(refused)


def _grace(config: PassConfig, starved: Threshold, victim: Candidate) -> int:
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


def grace_s(config: PassConfig, outcome: Outcome) -> int:
    """Seconds between SIGTERM and SIGKILL for the threshold that is acted on; 0: SIGKILL at once."""
    if config.kill_at_once:
        at_once = is_of_memory(outcome) and is_urgent(outcome)
        return config.hard_grace_s if at_once else max(LEAST_GRACE_S, outcome.grace_s)
    assert outcome.starved is not None
    return config.era.hard_grace_s if outcome.starved.hard else outcome.grace_s


def is_of_memory(outcome: Outcome) -> bool:
    return outcome.starved is not None and outcome.starved.signal in MEMORY_SIGNALS


def is_urgent(outcome: Outcome) -> bool:
    """Whether a hard threshold for memory is met, whichever threshold was picked to act."""
    return any(t.hard and t.signal in MEMORY_SIGNALS for t in outcome.met)


def takes_first_at_once(available: int, hard_line: int) -> bool:
    """Whether a pass of the daemon on these numbers (bytes) is sure to evict the first of the order, without a grace: a
    hard threshold for memory (``hard_line``: the highest of this domain, 0 without any) is met in the first pass that
    sees it, preferred to every other signal, and waits for no pod.
    """
    return hard_line > 0 and available < hard_line


def hurries(outcome: Outcome) -> bool:
    """Whether the pod that is being evicted may not go on with its grace. (A kubelet's may; hard thresholds wait.)"""
    return outcome.victim is not None and outcome.starved is not None and (outcome.starved.hard or is_urgent(outcome))
