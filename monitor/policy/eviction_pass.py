"""A whole pass of the eviction manager, on an answer of the Summary API: local storage, thresholds, clean-up of the
node, one pod.

`synchronize` decides about thresholds; this puts around it what memory alone does not need. Pure as that is: the
clean-up in the middle of a pass, and the look at the stats after it, are a function the caller passes in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from monitor.policy.compat import SANE
from monitor.policy.layout import SINGLE_DISK, DiskLayout, overlay_containerfs
from monitor.policy.local_storage import storage_violation
from monitor.policy.messages import NODE_MESSAGE, eviction_message
from monitor.policy.pods import Pod
from monitor.policy.ranking import Candidate
from monitor.policy.releases import CURRENT, Era
from monitor.policy.signals import RESOURCE, Observation
from monitor.policy.stats import PodStats, Summary
from monitor.policy.synchronize import EvictionConfig, Outcome, State, carried, synchronize
from monitor.policy.thresholds import Threshold
from monitor.policy.victims import first_victims

#: Cleans up (the actions by name, in order) and answers with the stats after it; None if they cannot be had.
Reclaim = Callable[[tuple[str, ...]], Summary | None]


@dataclass(frozen=True)
class ManagerConfig:
    """What the passes of one kubelet have in common. `thresholds` are those of the configuration, without the overlay
    for the container file system; times are in nanoseconds, graces in seconds (see `EvictionConfig`).
    """

    thresholds: tuple[Threshold, ...]
    transition_period_ns: int
    max_pod_grace_s: int = 0
    layout: DiskLayout = SINGLE_DISK
    local_storage: bool = True
    pod_level: bool = True
    compat: str = SANE
    era: Era = CURRENT
    #: What the first pass looks at, which learns the layout only while it runs, and what all later ones do.
    first: EvictionConfig = field(init=False, repr=False, compare=False)
    later: EvictionConfig = field(init=False, repr=False, compare=False)
    conflicts: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.era.containerfs:
            thresholds, in_place, conflicts = overlay_containerfs(self.thresholds, self.layout)
        else:
            thresholds, in_place, conflicts = self.thresholds, self.thresholds, ()
        later = EvictionConfig(thresholds, self.transition_period_ns, self.max_pod_grace_s, self.compat)
        object.__setattr__(self, "first", replace(later, thresholds=in_place))
        object.__setattr__(self, "later", later)
        object.__setattr__(self, "conflicts", conflicts)


class ManagerState(NamedTuple):
    """What a pass leaves for the next; begin with `ManagerState()`."""

    core: State = State.initial()
    laid_out: bool = False  # the layout is known: a pass has been made


class Eviction(NamedTuple):
    """A pod to evict now. `annotations` are those of its event; `disrupted`: its status gets the condition
    DisruptionTarget (not for local storage).
    """

    pod: Pod
    grace_s: int
    message: str
    annotations: Mapping[str, str]
    disrupted: bool


class PassResult(NamedTuple):
    """What a pass decided. `warning` is the event on the node; `reclaimed` the clean-up that was run; `outcome` None if
    no thresholds were looked at, because there are none or the stats could not be had.
    """

    state: ManagerState
    evictions: tuple[Eviction, ...] = ()
    warning: str | None = None
    reclaimed: tuple[str, ...] = ()
    summary_reads: int = 0
    outcome: Outcome | None = None


def manage(
    config: ManagerConfig,
    state: ManagerState,
    pods: Sequence[Pod],
    read: Callable[[], Summary | None],
    now_ns: int,
    reclaim: Reclaim,
) -> PassResult:
    """One pass at ``now_ns`` over the active ``pods``. ``read`` answers with the stats, None if they cannot be had; it
    is not asked when there is nothing to look for.
    """
    if not config.thresholds and not config.local_storage:
        return PassResult(state)
    summary = read()
    rules = config.later if state.laid_out else config.first
    if summary is None:
        core = state.core if state.laid_out else carried(rules, state.core, config.later, None)
        return PassResult(ManagerState(core, True), summary_reads=1)

    evictions = _local_storage(config, pods, summary.pods) if config.local_storage else []
    actions: tuple[str, ...] = ()
    reads = 1
    warning: str | None = None

    def rank(signal: str) -> Sequence[Candidate]:
        nonlocal actions, reads, warning
        if evictions:
            return ()  # enough for one pass
        warning = NODE_MESSAGE % RESOURCE[signal]
        actions = config.era.reclaim_actions(signal, config.layout)
        if actions:
            reads += 1
            after = reclaim(actions)
            if after is not None and _all_clear(config.later.thresholds, after.observations):
                return ()
        return first_victims(signal, pods, summary.pods, config.layout, config.pod_level, config.era.ranker)

    core, outcome = synchronize(rules, state.core, summary.observations, now_ns, rank)
    if outcome.victim is not None:
        evictions.append(_evicted(config, outcome, pods, summary))
    if not state.laid_out:
        core = carried(rules, core, config.later, summary.observations)
    return PassResult(ManagerState(core, True), tuple(evictions), warning, actions, reads, outcome)


def _local_storage(config: ManagerConfig, pods: Sequence[Pod], stats: Mapping[str, PodStats]) -> list[Eviction]:
    """All pods over a limit of their own; critical ones are spared."""
    found = []
    for pod in pods:
        own = stats.get(pod.uid)
        message = None if own is None else storage_violation(pod, own, config.layout, config.pod_level)
        if message is not None and not config.era.is_critical(pod):
            found.append(Eviction(pod, config.era.hard_grace_s, message, {}, False))
    return found


def _all_clear(thresholds: Sequence[Threshold], observations: Mapping[str, Observation]) -> bool:
    """Whether no threshold at all is met, min reclaim included and grace ignored.

    Not only the starved one: a soft memory threshold in its grace time costs a pod for a disk that is clean already.
    """
    for threshold in thresholds:
        seen = observations.get(threshold.signal)
        if seen is not None and threshold.met(seen.available, seen.capacity, with_reclaim=True):
            return False
    return True


def _evicted(config: ManagerConfig, outcome: Outcome, pods: Sequence[Pod], summary: Summary) -> Eviction:
    victim, starved = outcome.victim, outcome.starved
    assert victim is not None
    assert starved is not None
    pod = next(p for p in pods if p.uid == victim.uid)
    own = summary.pods.get(pod.uid)
    resource = RESOURCE[starved.signal]
    seen = summary.observations[starved.signal]
    containers = None if own is None else container_usage(own, resource)
    message, annotations = eviction_message(
        pod,
        resource,
        starved.value.shown(seen.capacity),
        seen.available,
        containers,
        None if own is None else own.memory(),
        config.pod_level,
    )
    grace_s = config.era.hard_grace_s if starved.hard else outcome.grace_s
    return Eviction(pod, grace_s, message, annotations, True)


def container_usage(stats: PodStats, resource: str) -> list[tuple[str, int]]:
    """What the message of an eviction says of the containers: none are named for inodes and process ids."""
    if resource == "memory":
        return stats.container_memory()
    return stats.container_storage() if resource == "ephemeral-storage" else []
