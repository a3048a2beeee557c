"""The disks of a node: which usage is ranked, what is cleaned up before pods go, which thresholds guard containers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from monitor.policy import signals as sig
from monitor.policy.thresholds import Threshold, ThresholdValue

#: What a pod's disk usage is made of.
ROOTFS, LOGS, VOLUMES = "rootfs", "logs", "volumes"
#: Clean-up at node level, by the name of the kubelet's call.
DELETE_CONTAINERS, DELETE_IMAGES = "DeleteAllUnusedContainers", "DeleteUnusedImages"

_NODEFS_SIGNALS, _IMAGEFS_SIGNALS, _CONTAINERFS_SIGNALS = sig.OF_DISK


class DiskLayout(NamedTuple):
    """`image_fs`: images have a file system of their own; `container_fs`: and the containers' writable layers are on
    the node's (a "split" disk). Alone, `container_fs` changes nothing but the overlay.
    """

    image_fs: bool = False
    container_fs: bool = False

    @property
    def containers_on(self) -> str:
        """The file system whose thresholds containerfs copies; "": none, where only it is apart (as in the kubelet)."""
        if self.container_fs and not self.image_fs:
            return ""
        return "imagefs" if self.image_fs and not self.container_fs else "nodefs"


SINGLE_DISK = DiskLayout()
#: `overlay_containerfs` leaves thresholds alone for this one.
NO_OVERLAY = DiskLayout(container_fs=True)


def disk(signal: str, layout: DiskLayout) -> str:
    """Which file system a disk signal reads: "nodefs", or "imagefs" where that is another one."""
    if signal in _NODEFS_SIGNALS or not layout.image_fs or (layout.container_fs and signal in _CONTAINERFS_SIGNALS):
        return "nodefs"
    return "imagefs"


def measured(signal: str, layout: DiskLayout) -> tuple[str, ...]:
    """The parts of a pod's disk usage that count when pods are ranked for this disk signal."""
    if not layout.image_fs:
        return (ROOTFS, LOGS, VOLUMES)
    if layout.container_fs:
        # Image bytes belong to no pod: with images alone on a disk all pods rank as using nothing of it.
        return () if signal in _IMAGEFS_SIGNALS else (ROOTFS, LOGS, VOLUMES)
    return (LOGS, VOLUMES) if signal in _NODEFS_SIGNALS else (ROOTFS,)


def reclaim_actions(signal: str, layout: DiskLayout) -> tuple[str, ...]:
    """What the node cleans up, in order, before a pod is evicted for ``signal``."""
    if signal in sig.MEMORY_SIGNALS or signal == sig.PID:
        return ()
    if not layout.image_fs:
        return (DELETE_CONTAINERS, DELETE_IMAGES)
    if layout.container_fs:
        return (DELETE_IMAGES,) if signal in _IMAGEFS_SIGNALS else (DELETE_CONTAINERS,)
    return () if signal in _NODEFS_SIGNALS else (DELETE_CONTAINERS, DELETE_IMAGES)


def overlay_containerfs(thresholds: Iterable[Threshold], layout: DiskLayout) -> tuple[Threshold, ...]:
    """The thresholds, with those of the container file system copied from the file system that containers are on, in
    the place of the user's or after all. Where that has none, one without operator stands instead, which is never met.
    """
    found, appended = list(thresholds), []
    for target in _CONTAINERFS_SIGNALS if layout.containers_on else ():
        source = target.replace("containerfs", layout.containers_on)
        for hard in (True, False):
            given = [t for t in found if t.hard == hard and t.operator and t.signal == source]
            places = [i for i, t in enumerate(found) if t.hard == hard and t.signal == target]
            # The last one wins, as in the kubelet.
            copy = replace(given[-1], signal=target) if given else Threshold(target, ThresholdValue(), operator="")
            if places:
                found[places[-1]] = copy
            else:
                appended.append(copy)
    return (*found, *appended)
