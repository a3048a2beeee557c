"""The nine eviction signals: the resource each speaks of, the condition it raises, and the memory figures behind two.

All sizes are bytes. Memory figures are 64 bits wide and signed, as a quantity is in the kubelet: a working set above
the limit makes `available` negative, which meets every threshold.
"""

from __future__ import annotations

from typing import NamedTuple

from monitor.policy.compat import int64

MEMORY = "memory.available"
ALLOCATABLE_MEMORY = "allocatableMemory.available"
NODEFS = "nodefs.available"
NODEFS_INODES = "nodefs.inodesFree"
IMAGEFS = "imagefs.available"
IMAGEFS_INODES = "imagefs.inodesFree"
CONTAINERFS = "containerfs.available"
CONTAINERFS_INODES = "containerfs.inodesFree"
PID = "pid.available"

#: Every signal, in the order outrace lists and prefers them (the kubelet's own order is that of a Go map: random).
SIGNALS = (
    MEMORY,
    ALLOCATABLE_MEMORY,
    NODEFS,
    NODEFS_INODES,
    IMAGEFS,
    IMAGEFS_INODES,
    CONTAINERFS,
    CONTAINERFS_INODES,
    PID,
)
MEMORY_SIGNALS = frozenset({MEMORY, ALLOCATABLE_MEMORY})

MEMORY_PRESSURE = "MemoryPressure"
DISK_PRESSURE = "DiskPressure"
PID_PRESSURE = "PIDPressure"

#: Signal -> node condition.
CONDITION: dict[str, str] = {
    **dict.fromkeys(SIGNALS, DISK_PRESSURE),
    **dict.fromkeys(MEMORY_SIGNALS, MEMORY_PRESSURE),
    PID: PID_PRESSURE,
}
#: Signal -> the resource named in events, messages and annotations.
RESOURCE: dict[str, str] = {
    MEMORY: "memory",
    ALLOCATABLE_MEMORY: "memory",
    NODEFS: "ephemeral-storage",
    NODEFS_INODES: "inodes",
    IMAGEFS: "ephemeral-storage",
    IMAGEFS_INODES: "inodes",
    CONTAINERFS: "ephemeral-storage",
    CONTAINERFS_INODES: "inodes",
    PID: "pids",
}

#: The resources counted in bytes; the others are plain numbers.
IN_BYTES = frozenset({"memory", "ephemeral-storage"})


class Observation(NamedTuple):
    """What one signal reads: `available` of `capacity` (bytes, inodes or pids), read at `stamp_ns` (0 = time unknown).

    A pass acts only on an observation with a newer stamp than the one before (or stamp 0): stamp it with the time of
    reading.
    """

    available: int
    capacity: int
    stamp_ns: int


def working_set(usage: int, inactive_file: int) -> int:
    """Bytes in use that are not inactive page cache. Active cache, shmem and slab count as used, as in the kubelet."""
    return usage - inactive_file if usage > inactive_file else 0


def observe_available(available: int, working_set_bytes: int, stamp_ns: int) -> Observation:
    """The memory signal from a Summary API pair; the capacity is their sum. Both are cast to 64 bits with a sign."""
    return Observation(int64(available), int64(available + working_set_bytes), stamp_ns)


def notification_level(quantity: int, available: int, working_set_bytes: int, usage: int) -> int:
    """The usage in bytes at which `available` falls to `quantity`, given today's inactive cache (usage - working set).

    The kubelet arms its cgroup v1 notification here; it drifts as the cache does.
    """
    return available + working_set_bytes - quantity + (usage - working_set_bytes)
