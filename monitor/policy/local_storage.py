"""Pods that use more local storage than they were allowed: looked at in every pass, before any threshold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from monitor.policy.layout import LOGS, ROOTFS, DiskLayout
from monitor.policy.per_pod import per_pod
from monitor.policy.pods import Pod
from monitor.policy.quantity import Quantity
from monitor.policy.resources import pod_limit
from monitor.policy.stats import PodStats

_RESOURCE = "ephemeral-storage"


class _Limits(NamedTuple):
    """What a pod is allowed. Beside each limit its whole bytes: an amount in bytes is above a limit with a fraction
    exactly when it is above the whole bytes of it.
    """

    volumes: dict[str, tuple[int, Quantity]]
    pod: tuple[int, Quantity] | None
    containers: dict[str, tuple[int, Quantity]]
    least: int  # the smallest limit of a container: if none uses more, nobody's name matters


def storage_violation(pod: Pod, stats: PodStats, layout: DiskLayout) -> str | None:
    """Why ``pod`` is to be evicted for its local storage, as the kubelet says it; None if it keeps its limits."""
    return _violation(_limits(pod, True), stats, layout)


def storage_violations(
    pods: Sequence[Pod], stats: Mapping[str, PodStats], layout: DiskLayout, pod_level: bool
) -> Iterator[tuple[Pod, str]]:
    """`storage_violation` of many pods, those that have one; ``stats`` by uid."""
    for pod, limits in zip(pods, _limits.each(pods, pod_level), strict=True):
        own = stats.get(pod.uid)
        message = None if own is None else _violation(limits, own, layout)
        if message is not None:
            yield pod, message


def _violation(limits: _Limits, stats: PodStats, layout: DiskLayout) -> str | None:
    if limits.volumes:
        used = stats.volumes_used()
        for name, (most, limit) in limits.volumes.items():
            # One kept in memory counts too.
            if name in used and used[name] > most:
                return f'Usage of EmptyDir volume "{name}" exceeds the limit "{limit}". '
    if limits.pod is not None and stats.ephemeral_storage() > limits.pod[0]:
        return f"Pod ephemeral local storage usage exceeds the total limit of containers {limits.pod[1]}. "
    if limits.containers:
        # With images on a disk of their own the writable layer is not on the disk this limit protects.
        kinds = (LOGS,) if layout.image_fs else (LOGS, ROOTFS)
        used_by = stats.files_each(kinds, "usedBytes")
        if used_by and max(used_by) > limits.least:
            for name, taken in zip(stats.container_names(), used_by, strict=True):
                if name in limits.containers and taken > limits.containers[name][0]:
                    limit = limits.containers[name][1]
                    return f'Container {name} exceeded its local ephemeral storage limit "{limit}". '
    return None


@per_pod
def _limits(pod: Pod, pod_level: bool) -> _Limits:
    volumes = {
        v.name: _whole(v.size_limit)
        for v in pod.volumes
        if v.source == "emptyDir" and v.size_limit is not None and v.size_limit.nanos > 0
    }
    by_name = {c.name: c.limits[_RESOURCE] for c in pod.containers if _RESOURCE in c.limits}
    containers = {name: _whole(limit) for name, limit in by_name.items() if not limit.is_zero}
    limit = pod_limit(pod, _RESOURCE, pod_level)
    least = min((most for most, _ in containers.values()), default=0)
    return _Limits(volumes, None if limit is None else _whole(limit), containers, least)


def _whole(limit: Quantity) -> tuple[int, Quantity]:
    return limit.nanos // 10**9, limit
