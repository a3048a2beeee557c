"""Pods that use more local storage than they were allowed: looked at in every pass, before any threshold."""

from __future__ import annotations

from monitor.policy.layout import LOGS, ROOTFS, DiskLayout
from monitor.policy.pods import Pod, per_pod
from monitor.policy.quantity import Quantity
from monitor.policy.resources import pod_limit
from monitor.policy.stats import PodStats

_RESOURCE = "ephemeral-storage"
_NANO = 10**9


def storage_violation(
    pod: Pod, stats: PodStats, layout: DiskLayout, pod_level: bool = True, sidecars: bool = True
) -> str | None:
    """Why ``pod`` is to be evicted for its local storage, as the kubelet says it; None if it keeps its limits.
    ``sidecars``: the limit of a sidecar counts as that of a container does (`Era.sidecar_storage`).
    """
    sizes, whole, limits = _limits(pod, pod_level, sidecars)
    if sizes:
        used = stats.volumes_used()
        for name, limit in sizes.items():
            # One kept in memory counts too.
            if name in used and used[name] * _NANO > limit.nanos:
                return f'Usage of EmptyDir volume "{name}" exceeds the limit "{limit}". '
    if whole is not None and stats.ephemeral_storage() * _NANO > whole.nanos:
        return f"Pod ephemeral local storage usage exceeds the total limit of containers {whole}. "
    if limits:
        # With images on a disk of their own the writable layer is not on the disk this limit protects.
        for name, taken in stats.files_each((LOGS,) if layout.image_fs else (LOGS, ROOTFS), "usedBytes"):
            if name in limits and taken * _NANO > limits[name].nanos:
                return f'Container {name} exceeded its local ephemeral storage limit "{limits[name]}". '
    return None


def is_limited(pod: Pod) -> bool:
    """Whether the pod has a limit, so that it must be measured also while the disks are fine."""
    sizes, whole, _ = _limits(pod, True, True)
    return bool(sizes) or whole is not None


@per_pod
def _limits(
    pod: Pod, pod_level: bool, sidecars: bool
) -> tuple[dict[str, Quantity], Quantity | None, dict[str, Quantity]]:
    """What the pod is allowed: by volume, in all, by container."""
    sizes = {v.name: v.size_limit for v in pod.volumes if v.source == "emptyDir" and v.size_limit is not None}
    running = (*pod.containers, *(c for c in pod.init_containers if sidecars and c.sidecar))
    limits = {c.name: c.limits[_RESOURCE] for c in running if _RESOURCE in c.limits}
    return (
        {name: limit for name, limit in sizes.items() if limit.nanos > 0},
        pod_limit(pod, _RESOURCE, pod_level),
        {name: limit for name, limit in limits.items() if not limit.is_zero},
    )
