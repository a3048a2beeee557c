"""Who is evicted first, for every signal and every layout of disks.

Memory and disk: 1. pods without stats, then pods using more than they requested, then the rest; 2. lower priority;
3. more usage above (or less below) the request. Process ids: lower priority, then pods without stats, then more
processes. Where the kubelet's order is left to chance, ours is namespace, name, uid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from monitor.policy.layout import SINGLE_DISK, VOLUMES, DiskLayout, measured
from monitor.policy.per_pod import per_pod
from monitor.policy.pods import Pod
from monitor.policy.quantity import ZERO
from monitor.policy.ranking import Candidate, Key, candidate, rank_priority, usage_key
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
    found.sort(key=itemgetter(0))
    return found


def first_victims(
    signal: str,
    pods: Sequence[Pod],
    stats: Mapping[str, PodStats],
    layout: DiskLayout = SINGLE_DISK,
    pod_level: bool = True,
    ranker: Ranker | None = None,
) -> list[Candidate]:
    """The candidates of `rank_pods` as far as the first that is not critical: all a pass looks at.

    Of hundreds of pods it makes one or two candidates, which is a third of the time of a pass.
    """
    if ranker is not None:
        return [one.candidate for one in rank_pods(signal, pods, stats, layout, pod_level, ranker)]
    used = _usage(signal, pods, stats, layout)
    keys = _keys(signal, pods, used, pod_level)
    found = []
    for i in sorted(range(len(keys)), key=keys.__getitem__):
        found.append(_candidate(signal, pods[i], used[i], pod_level))
        if not found[-1].critical:
            break
    return found


def rank_one(
    pod: Pod, stats: PodStats | None, signal: str, layout: DiskLayout, pod_level: bool
) -> tuple[Key, Candidate]:
    """Key and candidate of one pod, as Kubernetes 1.36 ranks it."""
    used = _usage(signal, (pod,), {} if stats is None else {pod.uid: stats}, layout)
    return _keys(signal, (pod,), used, pod_level)[0], _candidate(signal, pod, used[0], pod_level)


def _usage(signal: str, pods: Sequence[Pod], stats: Mapping[str, PodStats], layout: DiskLayout) -> list[int | None]:
    """What each pod uses of the starved resource; None without stats."""
    figures = [stats.get(pod.uid) for pod in pods]
    if signal in MEMORY_SIGNALS:
        return [None if own is None else own.memory() or 0 for own in figures]
    if signal == PID:
        return [None if own is None else own.processes() for own in figures]
    parts = _parts(signal, layout)
    local = zip(_local_volumes.each(pods), figures, strict=True)
    return [None if own is None else _disk_usage(volumes, own, parts) for volumes, own in local]


def _keys(signal: str, pods: Sequence[Pod], used: Sequence[int | None], pod_level: bool) -> list[Key]:
    if signal == PID:
        return [_pid_key(pod, processes) for pod, processes in zip(pods, used, strict=True)]
    beside = _beside_usage.each(pods, RESOURCE[signal], pod_level)
    return [usage_key(usage, *one) for one, usage in zip(beside, used, strict=True)]


@per_pod
def _beside_usage(pod: Pod, resource: str, pod_level: bool) -> tuple[int, int, int, int, str, str, str]:
    """What `usage_key` wants to know of a pod beside its usage, none of which changes.

    How far a pod is above its request is, also for inodes, against its request for bytes: so the kubelet has it.
    """
    request = pod_request(pod, resource, pod_level)
    amount = request if resource == "memory" else pod_request(pod, "ephemeral-storage", pod_level)
    whole, nanos = divmod(amount.nanos, _NANO)
    return (request.nanos // _NANO, whole, nanos, rank_priority(pod.known_priority), pod.namespace, pod.name, pod.uid)


def _pid_key(pod: Pod, processes: int | None) -> Key:
    order = (0, 0, 0) if processes is None else (1, -processes, 0)
    return (rank_priority(pod.known_priority), *order, pod.namespace, pod.name, pod.uid)


def _candidate(signal: str, pod: Pod, usage: int | None, pod_level: bool) -> Candidate:
    if signal == PID:
        return candidate(pod, ZERO, usage)
    return candidate(
        pod, pod_request(pod, "memory" if signal in MEMORY_SIGNALS else "ephemeral-storage", pod_level), usage
    )


class _Parts(NamedTuple):
    """What disk usage is made of: the kinds of files, whether volumes count, and the figure taken of each."""

    files: tuple[str, ...]
    volumes: bool
    key: str


def _parts(signal: str, layout: DiskLayout) -> _Parts:
    kinds = measured(signal, layout)
    files = tuple(kind for kind in kinds if kind != VOLUMES)
    return _Parts(files, VOLUMES in kinds, "usedBytes" if RESOURCE[signal] == "ephemeral-storage" else "inodesUsed")


def disk_usage(pod: Pod, stats: PodStats, signal: str, layout: DiskLayout) -> int:
    """What ``pod`` uses of the file system behind ``signal``: bytes or inodes."""
    return _disk_usage(_local_volumes(pod), stats, _parts(signal, layout))


def _disk_usage(volumes: Sequence[str], stats: PodStats, parts: _Parts) -> int:
    total = stats.files(parts.files, parts.key) if parts.files else 0
    return total + stats.volumes(volumes, parts.key) if parts.volumes and volumes else total


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
