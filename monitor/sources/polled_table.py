"""The table of watched cgroups filled from files, for machines without BPF: same reading methods as `DomainTable`.

Usage is exact (one pread of a kept descriptor, 0.6 us); the file lists come from memory.stat (3 us, and up to 64 pages
of each CPU off); the machine's own figures from /proc/vmstat (20 us), added up as the BPF programs do it.

What memory.stat of a parent says may be up to 2 s old. A read brings it up to date only if enough was counted since
(mm/memcontrol.c, memcg_vmstats_needs_flush), and since Linux 6.8 counting stops at the first cgroup that has enough
already (memcg_rstat_updated). A flush of the parent that meets an update on another CPU leaves the child with enough
and the parent with none, until the child is read. (Seen on 6.18 with page cache being written: 80 MiB taken for working
set.) So what cannot be right is read from the cgroups below, and one of those is read with every look.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from monitor.errors import MonitorError
from monitor.kernel.cgroupfs import USAGE, Hierarchy
from monitor.kernel.domains import MACHINE, MAX_THRESHOLDS, NO_CEILING, Places, Reading
from monitor.kernel.sweeping import Stepwise
from monitor.kernel.wire import PAGE

VMSTAT = "/proc/vmstat"
#: The lists of page cache in memory.stat. Keys have the newline before them.
STAT_KEYS = {1: (b"\ntotal_inactive_file ", b"\ntotal_active_file "), 2: (b"\ninactive_file ", b"\nactive_file ")}
#: What usage is made of, but for what the CPUs have charged ahead. (``kernel`` has zswap in it.)
_USED_KEYS = {
    1: (b"\ntotal_rss ", b"\ntotal_cache "),
    2: (b"\nanon ", b"\nfile ", b"\nkernel ", b"\nsock ", b"\nhugetlb "),
}
#: In place of ``kernel``, before Linux 5.18.
_KERNEL_KEYS = (b"\nslab ", b"\nkernel_stack ", b"\npagetables ", b"\npercpu ")
#: What usage may be ahead of memory.stat at any time: on each CPU a batch charged and a batch not yet added up.
_AHEAD = 2 * 64 * PAGE * (os.cpu_count() or 1)
_VMSTAT_KEYS = (b"\nnr_inactive_file ", b"\nnr_active_file ", b"\nnr_anon_pages ", b"\nnr_file_pages ")
#: More than either file holds (4 KiB with 2 nodes).
_MOST = 1 << 16


class PolledTable(Places):
    """The watched cgroups by index. Only the hot process has one."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        super().__init__()
        self._hierarchy = hierarchy
        self._stat_keys = STAT_KEYS[hierarchy.version]
        self._entries: list[Entry] = []
        self._is_linked = True
        self._leaves: list[Entry] = []
        self._next_leaf = 0

    # reading: the methods of `DomainTable`

    def index(self, cgroup_id: int) -> int | None:
        return self._known.get(cgroup_id)

    def entry(self, index: int) -> Entry:
        """Raises LookupError where nothing is watched."""
        found = self._entries[index]
        if found is _FREE:
            raise LookupError(f"nothing is watched at {index}")
        return found

    def reading(self, index: int) -> Reading:
        e = self._entries[index]
        return Reading(e.usage, e.inactive, e.active, e.formula != 0)

    def working_set(self, index: int) -> int:
        return self._entries[index].working_set

    def working_sets(self, indexes: Sequence[int]) -> list[int]:
        return [self._entries[index].working_set for index in indexes]

    def room(self, index: int) -> int:
        """Bytes from what is used to the lowest ceiling; negative above it."""
        e = self._entries[index]
        return min(e.ceilings) * PAGE - e.usage + e.cache if e.ceilings else NO_CEILING

    def cgroup_id(self, index: int) -> int:
        return self._entries[index].cgroup_id

    def synced(self, index: int) -> int:
        return self._entries[index].synced

    def crossed(self, index: int) -> int:
        return self._entries[index].crossed

    def __iter__(self) -> Iterator[Entry]:
        return (entry for entry in self._entries if entry is not _FREE)

    # writing

    def reset(self) -> None:
        for entry in self:
            entry.close()
        self._entries.clear()
        super().__init__()
        self.high, self._is_linked = 0, False

    def add(self, cgroup_id: int, *, flags: int = 0, step: int = 0, path: Path | None = None) -> int:
        """Watch the cgroup at ``path``; its index. Read at the next sweep. ``step`` in bytes.

        Raises OSError when it is gone, MonitorError when the table or the limit of descriptors is full.
        """
        at = self._known.get(cgroup_id)
        if at is None:
            at = self._known[cgroup_id] = self._add(cgroup_id, step, bool(flags & MACHINE), path)
        return at

    def _add(self, cgroup_id: int, step: int, machine: bool, path: Path | None) -> int:
        self.check_room(1)
        usage_fd = stat_fd = -1
        try:
            if machine:
                stat_fd = os.open(VMSTAT, os.O_RDONLY | os.O_CLOEXEC)
            else:
                if path is None:
                    raise MonitorError(f"the directory of cgroup {cgroup_id} is not known", "report this")
                usage_fd = os.open(path / USAGE[self._hierarchy.version], os.O_RDONLY | os.O_CLOEXEC)
                stat_fd = os.open(path / "memory.stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if usage_fd >= 0:
                os.close(usage_fd)
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise MonitorError("no descriptors left to watch another cgroup", "raise RLIMIT_NOFILE") from None
            raise
        entry = Entry(cgroup_id, step, None if machine else path, usage_fd, stat_fd)
        self._is_linked = False
        at = self._take()
        self._entries[at : at + 1] = [entry]
        return at

    def add_formula(self, first: int, formula: int, path: Path | None = None) -> int:
        """Watch the cgroup of entry ``first`` by another formula as well: the index of an entry that ends with it.

        Raises as `add`.
        """
        if first in self._other:
            return self._other[first]
        of = self.entry(first)
        at = self._add(of.cgroup_id, 0, of.machine, path)
        self.entry(at).formula = formula
        self._other[first] = at
        return at

    def holds(self, entry: Entry) -> bool:
        """Whether the entry is (still) one of the table."""
        at = self._known.get(entry.cgroup_id)
        return at is not None and entry in (self._entries[at], self._entries[self._other.get(at, at)])

    def remove(self, cgroup_id: int) -> None:
        for gone in self._give_back(cgroup_id):
            self.entry(gone).close()
            self._entries[gone] = _FREE
            self._is_linked = False

    def set_ceilings(self, index: int, ceilings: list[int], pull_above: int = NO_CEILING) -> None:
        """Ceilings in pages of working set, at most 4; all are taken as not crossed yet. Nothing pulls a trigger."""
        if len(ceilings) > MAX_THRESHOLDS:
            raise MonitorError(f"more than {MAX_THRESHOLDS} memory thresholds on one cgroup", "drop some")
        entry = self.entry(index)
        entry.ceilings, entry.crossed = list(ceilings), 0
        if self._hierarchy.version == 1 and entry.path is not None and entry.kmem_fd < 0:
            with suppress(OSError):  # built without: kernel memory is not in usage either
                entry.kmem_fd = os.open(entry.path / "memory.kmem.usage_in_bytes", os.O_RDONLY | os.O_CLOEXEC)

    def clear_crossings(self, index: int, mask: int) -> None:
        """Take the ceilings in ``mask`` as not crossed, so that being above them is reported as a crossing again."""
        self.entry(index).crossed &= ~mask

    # from the files

    def read_usage(self, entry: Entry) -> int:
        """Bytes in use now. A cgroup that is gone keeps what was read last; the machine is read as a whole."""
        if entry.machine:
            self.read_stat(entry)
            return entry.usage
        try:
            entry.usage = int(os.pread(entry.usage_fd, 32, 0))
        except OSError:
            pass  # ENODEV: removed, which the pod source reports
        return entry.usage

    def read_stat(self, entry: Entry, deep: bool = False) -> None:
        """Bring the file lists up to date; of the machine its usage as well. ``deep``: ask the cgroups below as well,
        also where nothing speaks against what the parent's file says.
        """
        try:
            data = b"\n" + os.pread(entry.stat_fd, _MOST, 0)
        except OSError:
            entry.gone = True
            return
        entry.stat_ns = time.monotonic_ns()
        if entry.machine:
            inactive, active, anon, file = (number(data, key) for key in _VMSTAT_KEYS)
            entry.usage = (anon + file) * PAGE
            entry.inactive, entry.active = inactive * PAGE, active * PAGE
        else:
            entry.inactive, entry.active = (number(data, key) for key in self._stat_keys)
            if deep or self._may_lack(entry, data):
                for child in entry.below:
                    self.read_stat(child, deep=True)
                there = [child for child in entry.below if not child.gone]
                entry.inactive = max(entry.inactive, sum([child.inactive for child in there]))
                if entry.formula:
                    entry.active = max(entry.active, sum([child.active for child in there]))

    def _may_lack(self, entry: Entry, data: bytes) -> bool:
        """Whether the cgroups below have to be asked: of a pod always, of a domain with thresholds when it is above one
        only by memory of which memory.stat knows nothing. (330 cgroups are 1 ms and more, in which memory is taken.)
        """
        if not self._is_linked:
            self._link()
        if not entry.ceilings:
            return bool(entry.below) and not any(child.below for child in entry.below)
        used = self.read_usage(entry) - entry.cache
        over = [ceiling * PAGE for ceiling in entry.ceilings if used > ceiling * PAGE]
        return bool(over and entry.below) and used - self._unaccounted(entry, data) <= max(over)

    def _unaccounted(self, entry: Entry, data: bytes) -> int:
        """Bytes of usage that memory.stat should know the nature of, and does not."""
        known = sum([number(data, key) for key in _USED_KEYS[self._hierarchy.version]])
        if self._hierarchy.version == 2:
            if b"\nkernel " not in data:
                known += sum([number(data, key) for key in _KERNEL_KEYS])
        elif entry.kmem_fd >= 0:
            with suppress(OSError):  # removed
                known += int(os.pread(entry.kmem_fd, 32, 0))
        return max(0, entry.usage - known - _AHEAD)

    def refresh_a_leaf(self) -> None:
        """Read memory.stat of one more watched cgroup that has none below it, in turn."""
        if not self._is_linked:
            self._link()
        if self._leaves:
            self._next_leaf = (self._next_leaf + 1) % len(self._leaves)
            self.read_stat(self._leaves[self._next_leaf])

    def _link(self) -> None:
        """Find for each watched cgroup the watched cgroups right below it."""
        self._is_linked = True
        by_path = {entry.path: entry for entry in self if entry.path is not None and not entry.formula}
        for entry in self:
            entry.below = []
        for path, entry in by_path.items():
            parent = next((by_path[above] for above in path.parents if above in by_path), None)
            if parent is not None:
                parent.below.append(entry)
        self._leaves = [entry for entry in by_path.values() if not entry.below]
        for entry in self:
            if entry.formula and entry.path is not None:
                entry.below = by_path[entry.path].below


class PolledSweeper(Stepwise):
    """Reads every watched cgroup; takes the place of the BPF programs' sweep."""

    def __init__(self, table: PolledTable) -> None:
        self._table = table

    def steps(self, forget: bool) -> Iterator[bool]:
        self.number = number = self.number + 1
        if forget:
            for entry in self._table:
                entry.synced = 0
        for entry in list(self._table):
            if not self._table.holds(entry):
                continue  # removed since the last stretch: its descriptors may be other files by now
            self._table.read_usage(entry)
            if not entry.machine:
                self._table.read_stat(entry)
            entry.synced = number
            yield False

    def reread(self) -> None:
        """Usage of everything, but not the file lists."""
        for entry in self._table:
            self._table.read_usage(entry)

    def touch(self, index: int) -> None:
        """Bring an entry up to date: the file lists, and the usage of the machine."""
        self._table.read_stat(self._table.entry(index))


def number(data: bytes, key: bytes) -> int:
    """The number behind ``key``; 0 where there is none, as cAdvisor has it."""
    at = data.find(key)
    if at < 0:
        return 0
    at += len(key)
    end = data.find(b"\n", at)
    return int(data[at : end if end >= 0 else None])


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


#: What stands at an index where nothing is watched.
_FREE = Entry(0, 0, None, -1, -1)
