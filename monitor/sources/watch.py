"""The cgroups that have thresholds: the node and kubepods.

Their capacity, their ceilings, and what is available now.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from monitor.kernel import cgroupfs
from monitor.kernel.domains import MACHINE, NO_CEILING, Reading, ceiling_pages
from monitor.policy.synchronize import Observation
from monitor.policy.thresholds import Threshold
from monitor.sources.source import Table

NODE_SIGNAL = "memory.available"
KUBEPODS_SIGNAL = "allocatableMemory.available"


@dataclass(slots=True)
class Watch:
    """One domain with thresholds."""

    name: str  # "node" or "kubepods"
    signal: str
    cgroup_id: int
    index: int
    capacity: int
    thresholds: tuple[Threshold, ...]  # in the order of the ceilings in the table
    lines: tuple[int, ...]  # available bytes below which each of them is met
    hard_line: int  # the highest of the hard ones; 0 without any
    path: Path | None  # None: the whole machine
    usage_fd: int = -1
    limit_fd: int = -1
    limited: bool = True  # used up when its capacity is; a kubepods without a limit of its own is not

    @property
    def machine(self) -> bool:
        return self.path is None

    def close(self) -> None:
        os.close(self.usage_fd)
        os.close(self.limit_fd)

    def limit_now(self) -> int | None:
        """The cgroup's limit in bytes by one pread of a kept descriptor; None without one. Raises OSError."""
        if self.limit_fd < 0:
            return None
        return cgroupfs.limit_of(os.pread(self.limit_fd, 32, 0))

    def is_there(self) -> bool:
        """Whether the cgroup is; not another one of its name."""
        if self.path is None:
            return True
        try:
            return os.stat(self.path).st_ino == self.cgroup_id
        except OSError:
            return False

    def set_capacity(self, capacity: int) -> None:
        """The limit was changed; the ceilings have to be given to the kernel anew."""
        self.capacity = capacity
        self.lines = _lines(self.thresholds, capacity)
        self.hard_line = _hard_line(self.thresholds, self.lines)

    @property
    def floor(self) -> int:
        """Available bytes below which the first of its thresholds is met; 0 without any."""
        return max(self.lines, default=0)

    def observation(self, reading: Reading, stamp_ns: int) -> Observation:
        return Observation(available=self.capacity - reading.working_set, capacity=self.capacity, stamp_ns=stamp_ns)

    def usage_now(self) -> int:
        """Usage by one pread of a kept descriptor (1.3 us); an upper bound of the working set. Not for the machine."""
        return int(os.pread(self.usage_fd, 32, 0))


def make_watch(
    table: Table,
    name: str,
    signal: str,
    cgroup: Path | None,
    capacity: int,
    thresholds: Sequence[Threshold],
    version: int,
    step: int = 0,
) -> Watch:
    """Watch the machine (``cgroup`` None) or a cgroup.

    Its thresholds are compared once ``arm_thresholds`` was called. A move by ``step`` bytes is reported (0: none is).
    """
    mine = tuple(t for t in thresholds if t.signal == signal)
    lines = _lines(mine, capacity)
    usage_fd = limit_fd = -1
    if cgroup is None:
        cgroup_id, flags = 1, MACHINE  # the root of the memory hierarchy has inode 1 on v1 and v2
    else:
        cgroup_id, flags = cgroup.stat().st_ino, 0
        usage_fd = os.open(cgroup / ("memory.current" if version == 2 else "memory.usage_in_bytes"), os.O_RDONLY)
        limit_fd = os.open(cgroup / ("memory.max" if version == 2 else "memory.limit_in_bytes"), os.O_RDONLY)
    return Watch(
        name=name,
        signal=signal,
        cgroup_id=cgroup_id,
        index=table.add(cgroup_id, flags=flags, step=step, path=cgroup),
        capacity=capacity,
        thresholds=mine,
        lines=lines,
        hard_line=_hard_line(mine, lines),
        path=cgroup,
        usage_fd=usage_fd,
        limit_fd=limit_fd,
    )


def _lines(thresholds: Sequence[Threshold], capacity: int) -> tuple[int, ...]:
    return tuple(t.quantity(capacity) for t in thresholds)


def _hard_line(thresholds: Sequence[Threshold], lines: Sequence[int]) -> int:
    return max((line for t, line in zip(thresholds, lines, strict=True) if t.hard), default=0)


def arm_thresholds(table: Table, watch: Watch, kernel_trigger: bool) -> None:
    """Give the kernel the ceilings to compare; hard ones may pull the trigger there if ``kernel_trigger``."""
    ceilings = [ceiling_pages(watch.capacity, line) for line in watch.lines]
    hard = [ceiling for ceiling, t in zip(ceilings, watch.thresholds, strict=True) if t.hard]
    table.set_ceilings(watch.index, ceilings, min(hard) if kernel_trigger and hard else NO_CEILING)
