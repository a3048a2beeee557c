"""Pods that use more local storage than they were allowed: looked at in every pass, before any threshold."""

from __future__ import annotations

from collections.abc import Mapping

from monitor.policy.layout import LOGS, ROOTFS, DiskLayout
from monitor.policy.pods import Pod
from monitor.policy.quantity import Quantity
from monitor.policy.resources import pod_limit
from monitor.policy.stats import PodStats

_RESOURCE = "ephemeral-storage"


def storage_violation(pod: Pod, stats: PodStats, layout: DiskLayout, pod_level: bool = True) -> str | None:
    """Why ``pod`` is to be evicted for its local storage, in the kubelet's words; None if it keeps its limits."""
    limits = pod.memo.get(("storage limits", pod_level))
    if limits is None:
        limits = pod.memo["storage limits", pod_level] = _limits(pod, pod_level)
    volumes, whole, containers = limits
    return (
        (_empty_dir(volumes, stats) if volumes else "")
        or (_whole_pod(whole, stats) if whole is not None else "")
        or (_container(containers, stats, layout.image_fs) if containers else "")
        or None
    )


def _limits(pod: Pod, pod_level: bool) -> tuple[dict[str, Quantity], Quantity | None, dict[str, Quantity]]:
    """The limits by volume, of the pod, and by container."""
    volumes = {
        v.name: v.size_limit
        for v in pod.volumes
        if v.source == "emptyDir" and v.size_limit is not None and v.size_limit.nanos > 0
    }
    containers = {c.name: c.limits[_RESOURCE] for c in pod.containers if _RESOURCE in c.limits}
    containers = {name: limit for name, limit in containers.items() if not limit.is_zero}
    return volumes, pod_limit(pod, _RESOURCE, pod_level), containers


def _empty_dir(limits: Mapping[str, Quantity], stats: PodStats) -> str:
    used = stats.volumes_used()
    for name, limit in limits.items():
        # One kept in memory counts too.
        if name in used and Quantity.of_bytes(used[name]) > limit:
            return f'Usage of EmptyDir volume "{name}" exceeds the limit "{limit}". '
    return ""


def _whole_pod(limit: Quantity, stats: PodStats) -> str:
    if not Quantity.of_bytes(stats.ephemeral_storage()) > limit:
        return ""
    return f"Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "


def _container(limits: Mapping[str, Quantity], stats: PodStats, dedicated_image_fs: bool) -> str:
    # With images on a disk of their own the writable layer is not on the disk this limit protects.
    kinds = (LOGS,) if dedicated_image_fs else (LOGS, ROOTFS)
    for name, raw in stats.containers():
        if name not in limits:
            continue
        used = stats.files(raw, kinds, "usedBytes")
        if Quantity.of_bytes(used) > limits[name]:
            return f'Container {name} exceeded its local ephemeral storage limit "{limits[name]}". '
    return ""
