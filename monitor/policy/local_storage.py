"""Pods that use more local storage than they were allowed: looked at in every pass, before any threshold."""

from __future__ import annotations

from monitor.policy.layout import DiskLayout
from monitor.policy.pods import Pod
from monitor.policy.quantity import Quantity
from monitor.policy.resources import pod_limit
from monitor.policy.stats import PodStats

_RESOURCE = "ephemeral-storage"


def storage_violation(pod: Pod, stats: PodStats, layout: DiskLayout, pod_level: bool = True) -> str | None:
    """Why ``pod`` is to be evicted for its local storage, in the kubelet's words; None if it keeps its limits."""
    return (
        _empty_dir(pod, stats) or _whole_pod(pod, stats, pod_level) or _container(pod, stats, layout.image_fs) or None
    )


def _empty_dir(pod: Pod, stats: PodStats) -> str:
    limited = [v for v in pod.volumes if v.source == "emptyDir" and v.size_limit is not None and v.size_limit.nanos > 0]
    if not limited:
        return ""
    used = stats.volumes_used()
    for volume in limited:
        assert volume.size_limit is not None
        # One kept in memory counts too.
        if volume.name in used and Quantity.of_bytes(used[volume.name]) > volume.size_limit:
            return f'Usage of EmptyDir volume "{volume.name}" exceeds the limit "{volume.size_limit}". '
    return ""


def _whole_pod(pod: Pod, stats: PodStats, pod_level: bool) -> str:
    limit = pod_limit(pod, _RESOURCE, pod_level)
    if limit is None or not Quantity.of_bytes(stats.ephemeral_storage()) > limit:
        return ""
    return f"Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "


def _container(pod: Pod, stats: PodStats, dedicated_image_fs: bool) -> str:
    limits = {c.name: c.limits[_RESOURCE] for c in pod.containers if _RESOURCE in c.limits}
    limits = {name: limit for name, limit in limits.items() if limit.value != 0}
    if not limits:
        return ""
    for name, raw in stats.containers():
        if name not in limits:
            continue
        used = stats.file_usage(raw, "logs").used
        if not dedicated_image_fs:
            # Elsewhere the writable layer is not on the disk this limit protects.
            used += stats.file_usage(raw, "rootfs").used
        if Quantity.of_bytes(used) > limits[name]:
            return f'Container {name} exceeded its local ephemeral storage limit "{limits[name]}". '
    return ""
