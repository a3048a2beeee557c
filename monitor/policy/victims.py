"""Who is evicted first, for every signal and every layout of disks.

Memory and disk: 1. pods without stats, then pods using more than they requested, then the rest; 2. lower priority;
3. more usage above (or less below) the request. Process ids: lower priority, then pods without stats, then more
processes. Where the kubelet's order is left to chance, ours is namespace, name, uid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import NamedTuple

from monitor.policy.layout import SINGLE_DISK, VOLUMES, DiskLayout, measured
from monitor.policy.per_pod import per_pod
from monitor.policy.pods import Pod
from monitor.policy.quantity import ZERO, Quantity
from monitor.policy.ranking import Candidate, Key, candidate, rank_priority, usage_key
from monitor.policy.resources import pod_request
from monitor.policy.signals import MEMORY_SIGNALS, PID, RESOURCE
from monitor.policy.stats import PodStats


class Ranked(NamedTuple):
    """A pod in its place. The first `DECIDING` parts of `key` are the kubelet's comparisons, the rest breaks ties."""

    key: Key
    pod: Pod
    stats: PodStats | None
    candidate: Candidate


DECIDING = 4

#: Makes the candidate and its key for (pod, stats, signal, layout, pod-level resources on).
Ranker = Callable[[Pod, PodStats | None, str, DiskLayout, bool], tuple[Key, Candidate]]


def rank_pods(
    signal: str,
    pods: Iterable[Pod],
    stats: Mapping[str, PodStats],
    layout: DiskLayout = SINGLE_DISK,
    pod_level: bool = True,
    ranker: Ranker | None = None,
) -> list[Ranked]:
    """All pods in the order in which they would be evicted for ``signal``; ``stats`` by uid."""
    ranker = ranker or rank_one
    found = []
    for pod in pods:
        own = stats.get(pod.uid)
        key, candidate = ranker(pod, own, signal, layout, pod_level)
        found.append(Ranked(key, pod, own, candidate))
    found.sort(key=itemgetter(0))
    return found


def rank_one(
    pod: Pod, stats: PodStats | None, signal: str, layout: DiskLayout, pod_level: bool
) -> tuple[Key, Candidate]:
    """Key and candidate of one pod, as Kubernetes 1.36 ranks it."""
    if signal == PID:
        victim = candidate(pod, ZERO, None if stats is None else stats.processes())
        order = (0, 0, 0) if victim.usage is None else (1, -victim.usage, 0)
        return (rank_priority(pod.known_priority), *order, pod.namespace, pod.name, pod.uid), victim
    return rank_by_excess(pod, stats, signal, layout, lambda resource: pod_request(pod, resource, pod_level))


def rank_by_excess(
    pod: Pod, stats: PodStats | None, signal: str, layout: DiskLayout, request: Callable[[str], Quantity]
) -> tuple[Key, Candidate]:
    """Key and candidate for memory or a disk; ``request`` gives what the pod requests of a resource."""
    used = None
    if stats is not None:
        used = stats.memory() or 0 if signal in MEMORY_SIGNALS else disk_usage(pod, stats, signal, layout)
    resource = RESOURCE[signal]
    # How far a pod is above its request is, also for inodes, against its request for bytes: so the kubelet has it.
    victim = candidate(pod, request(resource if resource == "memory" else "ephemeral-storage"), used)
    allowed = request(resource).nanos // 10**9
    names = (pod.namespace, pod.name, pod.uid)
    return usage_key(
        used, allowed, victim.request, victim.request_nanos, rank_priority(victim.priority), *names
    ), victim


def disk_usage(pod: Pod, stats: PodStats, signal: str, layout: DiskLayout) -> int:
    """What ``pod`` uses of the file system behind ``signal``: bytes or inodes."""
    kinds = measured(signal, layout)
    key = "usedBytes" if RESOURCE[signal] == "ephemeral-storage" else "inodesUsed"
    files = [kind for kind in kinds if kind != VOLUMES]
    total = stats.files(files, key) if files else 0
    volumes = _local_volumes(pod) if VOLUMES in kinds else []
    return total + stats.volumes(volumes, key) if volumes else total


@per_pod
def _local_volumes(pod: Pod) -> list[str]:
    return [volume.name for volume in pod.volumes if volume.local]


def tie_groups(ranked: Iterable[Ranked]) -> list[list[Ranked]]:
    """The pods in order, those the kubelet holds for equal together."""
    groups: list[list[Ranked]] = []
    for one in ranked:
        if groups and groups[-1][0].key[:DECIDING] == one.key[:DECIDING]:
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups
