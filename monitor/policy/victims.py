"""Who is evicted first, for every signal and every layout of disks.

Memory and disk: 1. pods without stats, then pods using more than they requested, then the rest; 2. lower priority;
3. more usage above (or less below) the request. Process ids: lower priority, then pods without stats, then more
processes. Where the kubelet's order is left to chance, ours is namespace, name, uid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from monitor.policy.layout import SINGLE_DISK, VOLUMES, DiskLayout, measured
from monitor.policy.pods import Pod
from monitor.policy.quantity import ZERO, Quantity
from monitor.policy.ranking import Candidate, Key, candidate, memory_candidate, memory_key
from monitor.policy.resources import pod_request
from monitor.policy.signals import MEMORY_SIGNALS, PID, RESOURCE
from monitor.policy.stats import PodStats

_NANO = 10**9


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
    found.sort(key=_by_key)
    return found


def _by_key(ranked: Ranked) -> Key:
    return ranked[0]


def rank_one(
    pod: Pod, stats: PodStats | None, signal: str, layout: DiskLayout, pod_level: bool
) -> tuple[Key, Candidate]:
    """Key and candidate of one pod, as Kubernetes 1.36 ranks it."""
    if signal in MEMORY_SIGNALS:
        victim = memory_candidate(pod, None if stats is None else stats.memory() or 0, pod_level)
        return memory_key(victim), victim
    if signal == PID:
        processes = None if stats is None else stats.processes()
        victim = candidate(pod, ZERO, processes)
        order = (victim.priority, 0, 0, 0) if processes is None else (victim.priority, 1, -processes, 0)
        return (*order, pod.namespace, pod.name, pod.uid), victim
    return _disk(pod, stats, signal, layout, pod_level)


def _disk(pod: Pod, stats: PodStats | None, signal: str, layout: DiskLayout, pod_level: bool) -> tuple[Key, Candidate]:
    resource = RESOURCE[signal]
    storage = pod_request(pod, "ephemeral-storage", pod_level)
    request = storage if resource == "ephemeral-storage" else pod_request(pod, resource, pod_level)
    victim = candidate(pod, storage, None if stats is None else disk_usage(pod, stats, signal, layout))
    return disk_key(victim, request), victim


def disk_key(victim: Candidate, request: Quantity) -> Key:
    """Sort key for disk space and inodes. ``request`` is for the starved resource, that in ``victim`` for bytes.

    How far a pod is above its request is always against the bytes, also of inodes: so the kubelet has it.
    """
    used = victim.usage
    if used is None:
        return (0, victim.priority, 0, 0, victim.namespace, victim.name, victim.uid)
    group = 1 if used * _NANO > request.nanos else 2
    below = victim.request - used
    return (group, victim.priority, below, victim.request_nanos, victim.namespace, victim.name, victim.uid)


def disk_usage(pod: Pod, stats: PodStats, signal: str, layout: DiskLayout) -> int:
    """What ``pod`` uses of the file system behind ``signal``: bytes or inodes."""
    kinds = measured(signal, layout)
    key = "usedBytes" if RESOURCE[signal] == "ephemeral-storage" else "inodesUsed"
    files = [kind for kind in kinds if kind != VOLUMES]
    total = stats.files(files, key) if files else 0
    if VOLUMES in kinds and pod.volumes:
        names = pod.memo.get("local volumes")
        if names is None:
            names = pod.memo["local volumes"] = [volume.name for volume in pod.volumes if volume.local]
        if names:
            total += stats.volumes(names, key)
    return total


def tie_groups(ranked: Iterable[Ranked]) -> list[list[Ranked]]:
    """The pods in order, those the kubelet holds for equal together."""
    groups: list[list[Ranked]] = []
    for one in ranked:
        if groups and groups[-1][0].key[:DECIDING] == one.key[:DECIDING]:
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups
