"""The eviction order for every signal and layout of disks: memory and disk as in `ranking`; process ids by priority,
then pods without stats, then more processes. Ties: namespace, name, uid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from operator import itemgetter
from typing import NamedTuple

from monitor.policy.layout import SINGLE_DISK, VOLUMES, DiskLayout, measured
from monitor.policy.pods import Pod, per_pod
from monitor.policy.quantity import ZERO, Quantity
from monitor.policy.ranking import UNKNOWN_PRIORITY, Candidate, Key, candidate, usage_key
from monitor.policy.releases import CURRENT, Era
from monitor.policy.signals import MEMORY_SIGNALS, PID, RESOURCE
from monitor.policy.stats import PodStats


class Ranked(NamedTuple):
    """A pod in its place: `DECIDING` parts of `key` are the kubelet's; `fixed` is its candidate without the usage."""

    key: Key
    pod: Pod
    stats: PodStats | None
    usage: int | None
    fixed: Candidate

    @property
    def candidate(self) -> Candidate:
        """Built on access: a pass needs the candidates of one or two pods of hundreds."""
        return replace(self.fixed, usage=self.usage)


DECIDING = 4


def rank_pods(
    signal: str,
    pods: Iterable[Pod],
    stats: Mapping[str, PodStats],
    layout: DiskLayout = SINGLE_DISK,
    era: Era = CURRENT,
) -> list[Ranked]:
    """All pods in the order in which they would be evicted for ``signal``; ``stats`` by uid."""
    rank, layout = era.ranker or partial(rank_one, era), era.layout(layout)
    return sorted([rank(pod, stats.get(pod.uid), signal, layout) for pod in pods], key=itemgetter(0))


def rank_one(era: Era, pod: Pod, stats: PodStats | None, signal: str, layout: DiskLayout) -> Ranked:
    """One pod, as Kubernetes ranks it since 1.9."""
    used, resource = usage(pod, stats, signal, layout), RESOURCE[signal]
    if signal == PID:
        order = (0, 0, 0) if used is None or not era.counts_processes else (1, -used, 0)
        fixed = fixed_candidate(pod, None, resource)
        priority = UNKNOWN_PRIORITY if fixed.priority is None else fixed.priority
        return Ranked((priority, *order, pod.namespace, pod.name, pod.uid), pod, stats, used, fixed)
    # How far a pod is above its request is, also for inodes, against its request for bytes: so the kubelet has it.
    fixed = fixed_candidate(pod, era.request, resource if resource == "memory" else "ephemeral-storage")
    allowed = era.request(pod, resource).nanos // 10**9 if resource == "inodes" else fixed.request
    return Ranked(usage_key(fixed, used, allowed), pod, stats, used, fixed)


@per_pod
def fixed_candidate(pod: Pod, request: Callable[[Pod, str], Quantity] | None, resource: str) -> Candidate:
    """The candidate for a resource, without its usage; ``request`` None: it is none that a pod requests."""
    return candidate(pod, ZERO if request is None else request(pod, resource), None)


def usage(pod: Pod, stats: PodStats | None, signal: str, layout: DiskLayout) -> int | None:
    """What ``pod`` uses of what is behind ``signal``: bytes, processes or inodes; None without stats."""
    if stats is None:
        return None
    if signal in MEMORY_SIGNALS:
        return stats.memory() or 0
    if signal == PID:
        return stats.processes()
    files, volumes, key = _parts(signal, layout)
    total = sum([used for _, used in stats.files_each(files, key)]) if files else 0
    names = _local_volumes(pod) if volumes else ()
    return total + stats.volumes(names, key) if names else total


@cache
def _parts(signal: str, layout: DiskLayout) -> tuple[tuple[str, ...], bool, str]:
    """What disk usage is made of: the kinds of files, whether volumes count, and which figure of each."""
    kinds = measured(signal, layout)
    key = "usedBytes" if RESOURCE[signal] == "ephemeral-storage" else "inodesUsed"
    return tuple([kind for kind in kinds if kind != VOLUMES]), VOLUMES in kinds, key


@per_pod
def _local_volumes(pod: Pod) -> list[str]:
    return [volume.name for volume in pod.volumes if volume.local]
