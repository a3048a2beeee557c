"""The pass of the eviction manager: the daemon, conformance, replay, explain and the counterfactual all run this one.

Only this module calls `synchronize`, which decides about thresholds. What differs where a pass is run is a parameter:

* `PassConfig.kill_at_once`: with the daemon a hard threshold for memory waits for no pod (docs/differences.md).
* ``rank``: a kubelet ranks its pods within the pass; the daemon keeps them in order and gives that.
* ``clean``: a kubelet cleans up the node within the pass and looks again; the daemon has that done and passes again.

Pure: times are given, and what cleans up is a function the caller passes in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

from monitor.policy.compat import INT64_MIN
from monitor.policy.layout import SINGLE_DISK, DiskLayout, overlay_containerfs
from monitor.policy.ranking import Candidate
from monitor.policy.releases import CURRENT, Era
from monitor.policy.signals import MEMORY_SIGNALS, Observation
from monitor.policy.synchronize import EvictionConfig, Outcome, Rank, State, synchronize
from monitor.policy.thresholds import Threshold

#: The least grace a pod worker of the kubelet takes, in seconds.
LEAST_GRACE_S = 1


@dataclass(frozen=True)
class PassConfig(EvictionConfig):
    """What all passes of a daemon or a kubelet have in common. `thresholds` are those of the configuration, with or
    without the overlay for the container file system.
    """

    layout: DiskLayout = SINGLE_DISK
    local_storage: bool = True
    era: Era = CURRENT
    #: A victim for memory gets no grace (SIGKILL) while a hard threshold for memory is met, any other `LEAST_GRACE_S`
    #: at least. False: the graces a kubelet passes on.
    kill_at_once: bool = False
    #: With that: seconds between SIGTERM and SIGKILL at a hard threshold too, while the pod is held (`--hard-grace`).
    hard_grace_s: int = 0

    def overlaid(self) -> tuple[Threshold, ...]:
        return overlay_containerfs(self.thresholds, self.layout) if self.era.containerfs else self.thresholds

    @property
    def limit_grace_s(self) -> int:
        """The grace of a pod over a limit of local storage."""
        return max(LEAST_GRACE_S, self.era.hard_grace_s) if self.kill_at_once else self.era.hard_grace_s

    def before_layout(self) -> PassConfig:
        """For a kubelet's first pass, which learns the layout of the disks only while it runs: it does not see the
        thresholds that the layout adds.
        """
        made, unseen = copy(self), self.overlaid()[len(self.thresholds) :]
        # Nothing observed is below that: what is available has 64 bits.
        rules = [rule._replace(fixed=INT64_MIN) if rule.threshold in unseen else rule for rule in self.rules]
        object.__setattr__(made, "rules", tuple(rules))
        return made


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
    """One pass at ``now_ns`` (nanoseconds). ``rank(signal)`` gives the candidates, first victim first, at least as far
    as the first that is not critical; asked only when one is to be picked.

    ``clean(signal)`` cleans up the node before a pod is evicted; True: that is enough, or not done yet, and this pass
    evicts no pod. Raises ValueError for the state of another configuration.
    """

    def candidates(signal: str) -> Iterable[Candidate]:
        # There is nothing to clean up for memory.
        if clean is not None and signal not in MEMORY_SIGNALS and clean(signal):
            return ()
        return rank(signal)

    state, outcome = synchronize(config, state, observations, now_ns, candidates)
    return PassResult(state, outcome, 0 if outcome.victim is None else grace_s(config, outcome))


def reconfigured(old: PassConfig, state: State, new: PassConfig) -> State:
    """The state for the next pass where another configuration has come into force between two passes.

    A threshold that is in both (signal, kind and value) stays met since when it was, so that a changed grace period
    counts from there, and is held by min reclaim as before. One that is gone has no effect any more, and one that
    is new begins. A condition stays for the transition period, unless no threshold speaks of it any more.
    """
    if not state.first and not state.stamps:
        return State()
    since = {_identity(rule.threshold): state.first[i] for i, rule in enumerate(old.rules)}
    held = {_identity(old.rules[i].threshold) for i in state.met}
    stamps = dict(zip(old.signals, state.stamps, strict=True))
    lasts = dict(zip(old.conditions, state.last, strict=True))
    identities = [_identity(rule.threshold) for rule in new.rules]
    return State(
        tuple(since.get(one) for one in identities),
        tuple(i for i, one in enumerate(identities) if one in held),
        tuple(stamps.get(signal) for signal in new.signals),
        tuple(lasts.get(condition) for condition in new.conditions),
        state.conditions & frozenset(new.conditions),
    )


def _identity(threshold: Threshold) -> tuple[object, ...]:
    return threshold.signal, threshold.hard, threshold.value


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
    """Whether a pass of the daemon on these numbers (bytes) is sure to evict the first of the order, without a grace.

    ``hard_line``: the highest hard threshold for memory of this domain, 0 without any. It is met in the first pass that
    sees it, preferred to every other signal, and waits for no pod: so a prepared victim may be signalled before that
    pass is made.
    """
    return hard_line > 0 and available < hard_line


def hurries(outcome: Outcome) -> bool:
    """Whether the pod that the daemon is evicting may not go on with its grace.

    In the kubelet it may, and a hard threshold waits for it.
    """
    return outcome.victim is not None and outcome.starved is not None and (outcome.starved.hard or is_urgent(outcome))
