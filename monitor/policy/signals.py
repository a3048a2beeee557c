"""The eviction signals: the resource each speaks of, the condition it raises, the memory behind some (docs/signals.md).

Nine are the kubelet's, two outrace's own. Sizes are bytes, 64 bits wide and signed as in the kubelet: a working set
above the limit makes `available` negative, which meets every threshold.
"""

from __future__ import annotations

from typing import NamedTuple

MEMORY = "memory.available"
ALLOCATABLE_MEMORY = "allocatableMemory.available"
NODEFS = "nodefs.available"
NODEFS_INODES = "nodefs.inodesFree"
IMAGEFS = "imagefs.available"
IMAGEFS_INODES = "imagefs.inodesFree"
CONTAINERFS = "containerfs.available"
CONTAINERFS_INODES = "containerfs.inodesFree"
PID = "pid.available"
#: Outrace's own: active page cache is available as well.
RECLAIMABLE = "memory.reclaimable"
ALLOCATABLE_RECLAIMABLE = "allocatableMemory.reclaimable"
#: Own signals that are gone.
GONE = ("memory.obtainable", "allocatableMemory.obtainable")

MEMORY_PRESSURE = "MemoryPressure"
DISK_PRESSURE = "DiskPressure"
PID_PRESSURE = "PIDPressure"
_OF_KUBELET = {
    MEMORY: (MEMORY_PRESSURE, "memory"),
    ALLOCATABLE_MEMORY: (MEMORY_PRESSURE, "memory"),
    NODEFS: (DISK_PRESSURE, "ephemeral-storage"),
    NODEFS_INODES: (DISK_PRESSURE, "inodes"),
    IMAGEFS: (DISK_PRESSURE, "ephemeral-storage"),
    IMAGEFS_INODES: (DISK_PRESSURE, "inodes"),
    CONTAINERFS: (DISK_PRESSURE, "ephemeral-storage"),
    CONTAINERFS_INODES: (DISK_PRESSURE, "inodes"),
    PID: (PID_PRESSURE, "pids"),
}
#: Every signal of the kubelet, in the order outrace lists and prefers them (the kubelet's own is that of a Go map).
KUBELET_SIGNALS = tuple(_OF_KUBELET)
#: No kubelet knows these, so no file or flag of one may hold them.
OWN_SIGNALS = (RECLAIMABLE, ALLOCATABLE_RECLAIMABLE)
#: Domain -> its memory signals, the kubelet's first.
OF_DOMAIN = {
    "node": (MEMORY, RECLAIMABLE),
    "kubepods": (ALLOCATABLE_MEMORY, ALLOCATABLE_RECLAIMABLE),
}
DOMAIN_OF = {signal: domain for domain, signals in OF_DOMAIN.items() for signal in signals}
#: A signal of the node -> the one of kubepods by the same formula.
ALLOCATABLE_OF = dict(zip(*OF_DOMAIN.values(), strict=True))
#: Memory signal -> the kubelet's for the same domain.
KUBELETS = {signal: signals[0] for signals in OF_DOMAIN.values() for signal in signals}
MEMORY_SIGNALS = frozenset(DOMAIN_OF)
#: Space and inodes of the file systems of the node, of images, and of containers.
OF_DISK = ((NODEFS, NODEFS_INODES), (IMAGEFS, IMAGEFS_INODES), (CONTAINERFS, CONTAINERFS_INODES))
#: All of them, in the order outrace lists and prefers them.
ALL_SIGNALS = (MEMORY, ALLOCATABLE_MEMORY, *OWN_SIGNALS, *KUBELET_SIGNALS[2:])

_OF_ALL = _OF_KUBELET | dict.fromkeys(OWN_SIGNALS, _OF_KUBELET[MEMORY])
#: Signal -> node condition.
CONDITION = {signal: condition for signal, (condition, _) in _OF_ALL.items()}
#: Signal -> the resource named in events, messages and annotations.
RESOURCE = {signal: resource for signal, (_, resource) in _OF_ALL.items()}

#: The resources counted in bytes; the others are plain numbers.
IN_BYTES = frozenset({"memory", "ephemeral-storage"})


class Observation(NamedTuple):
    """Bytes, inodes or pids, read at `stamp_ns`: a pass acts only on a newer one than the last (or 0, unknown)."""

    available: int
    capacity: int
    stamp_ns: int


def working_set(usage: int, inactive_file: int) -> int:
    """Bytes in use that are not inactive page cache. Active cache, shmem and slab count as used, as in the kubelet."""
    return usage - inactive_file if usage > inactive_file else 0


def used(signal: str, usage: int, inactive_file: int, active_file: int) -> int:
    """Bytes that a memory signal takes for used. Shmem, mlocked and anonymous pages are on no list of page cache."""
    if signal in (MEMORY, ALLOCATABLE_MEMORY):
        return working_set(usage, inactive_file)
    return max(0, usage - inactive_file - active_file)
