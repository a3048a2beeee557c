"""The kubelet's policy through the years: what changed is here, what did not is the policy itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from monitor.policy.errors import PolicyError
from monitor.policy.layout import DiskLayout, reclaim_actions
from monitor.policy.pods import Pod
from monitor.policy.qos import is_critical, oom_score_adj, qos_class, qos_class_1_36
from monitor.policy.quantity import Quantity
from monitor.policy.ranking import Candidate, Key, memory_key
from monitor.policy.resources import pod_request
from monitor.policy.signals import KUBELET_SIGNALS
from monitor.policy.thresholds import DEFAULT_HARD, Threshold, parse_thresholds

if TYPE_CHECKING:
    from monitor.policy.stats import PodStats
    from monitor.policy.victims import Ranked


@dataclass(frozen=True)
class Era:
    """What a release decides in its own way.

    `oom_score_adj` takes (pod, container name, bytes of memory); `hard_grace_s`: passed on for a hard eviction;
    `counts_processes`: pods are ranked for process ids by their number; `huge_pages_apart`: huge pages are no capacity
    of memory.available; `sidecar_storage`: a sidecar's own limit of local storage is enforced (Kubernetes issue
    138371). `memory_key` ranks without a Pod, as `victims.rank_one` or `ranker` (pod, stats, signal, disks) do.
    """

    name: str
    signals: tuple[str, ...]
    default_hard: Mapping[str, str]
    oom_score_adj: Callable[[Pod, str, int], int]
    reclaim_actions: Callable[[str, DiskLayout], tuple[str, ...]]
    is_critical: Callable[[Pod], bool]
    hard_grace_s: int
    containerfs: bool
    counts_processes: bool = True
    huge_pages_apart: bool = False
    sidecar_storage: bool = False
    request: Callable[[Pod, str], Quantity] = pod_request
    qos_class: Callable[[Pod], str] = qos_class
    memory_key: Callable[[Candidate], Key] = memory_key
    ranker: Callable[[Pod, PodStats | None, str, DiskLayout], Ranked] | None = None

    def layout(self, disks: DiskLayout) -> DiskLayout:
        """The disks to this release: before 1.29 the containers were always where the images are."""
        return disks if self.containerfs else disks._replace(container_fs=False)

    def parse_thresholds(self, hard: Mapping[str, str] | None, *more: Any, **how: Any) -> tuple[Threshold, ...]:
        """As `parse_thresholds`; ``hard`` None is this release's defaults. No release has outrace's own signals."""
        hard = self.default_hard if hard is None else hard
        for signal in chain(hard, *(entries or () for entries in more[:3])):
            if signal in KUBELET_SIGNALS and signal not in self.signals:
                raise PolicyError(f"unsupported eviction signal {signal}: {self.name} does not know it")
        return parse_thresholds(hard, *more, **how)


CURRENT = Era(
    name="kubelet-1.37",
    signals=KUBELET_SIGNALS,
    default_hard=DEFAULT_HARD,
    oom_score_adj=oom_score_adj,
    reclaim_actions=reclaim_actions,
    is_critical=is_critical,
    hard_grace_s=1,
    containerfs=True,
    huge_pages_apart=True,
    sidecar_storage=True,
)
#: Also for 1.37 with the feature gate HugepageAwareEviction off, whose kubelet does the rest as 1.37 does.
KUBELET_1_36 = replace(
    CURRENT,
    name="kubelet-1.36",
    oom_score_adj=partial(oom_score_adj, qos_of=qos_class_1_36),
    huge_pages_apart=False,
    sidecar_storage=False,
    qos_class=qos_class_1_36,
)
#: Gates that decide between the two. The first is of 1.37, and on by default; an older kubelet refuses it.
HUGE_PAGES_GATE = "HugepageAwareEviction"
GATES = (HUGE_PAGES_GATE, "AllBeta")
#: The names of all eras, newest first.
ERAS = ("kubelet-1.37", "kubelet-1.36", "kubelet-1.17", "kubelet-1.8")
#: The first release of each: since 1.9 priority counts and the class does not, since 1.19 processes are counted.
_SINCE = ((1, 37), (1, 19), (1, 9), (0, 0))


def era_of(version: tuple[int, int]) -> str:
    """The name of the era of a kubelet of this major and minor version."""
    return next(name for name, since in zip(ERAS, _SINCE, strict=True) if version >= since)


def era(name: str) -> Era:
    """The era called ``name``; raises PolicyError."""
    for each in (CURRENT, KUBELET_1_36):
        if name == each.name:
            return each
    if name in ERAS:
        # The old ones are imported only where a configuration names one.
        from monitor.policy.old_releases import KUBELET_1_8, KUBELET_1_17

        return KUBELET_1_17 if name == KUBELET_1_17.name else KUBELET_1_8
    raise PolicyError(f"policy: {name!r} is not known: use {', '.join(ERAS)}")
