"""One watched cgroup of a polled table."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True, eq=False)
class Entry:
    """One watched cgroup; sizes in bytes, ceilings in pages of working set."""

    cgroup_id: int
    step: int
    path: Path | None  # None: the machine
    usage_fd: int
    stat_fd: int
    kmem_fd: int = -1  # v1, with ceilings
    usage: int = 0
    inactive: int = 0
    active: int = 0
    noted: int = 0
    stat_ns: int = 0
    synced: int = 0
    crossed: int = 0
    ceilings: list[int] = field(default_factory=list)
    below: list[Entry] = field(default_factory=list)  # the watched cgroups right below
    gone: bool = False  # removed: it keeps what was read last
    formula: int = 0  # of an entry that `PolledTable.add_formula` made

    @property
    def machine(self) -> bool:
        return self.path is None

    @property
    def working_set(self) -> int:
        return max(0, self.usage - self.inactive)

    @property
    def cache(self) -> int:
        """Bytes of page cache that the entry's formula takes for available."""
        return self.inactive + self.active if self.formula else self.inactive

    @property
    def used(self) -> int:
        return max(0, self.usage - self.cache)

    def close(self) -> None:
        for fd in (self.usage_fd, self.stat_fd, self.kmem_fd):
            if fd >= 0:
                os.close(fd)
