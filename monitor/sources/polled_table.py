"""The table of watched cgroups filled from files, for machines without BPF.

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
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from monitor.errors import MonitorError
from monitor.kernel import domains
from monitor.kernel.cgroupfs import USAGE, Hierarchy
from monitor.kernel.domains import MACHINE, MAX_DOMAINS, MAX_THRESHOLDS, NO_CEILING, RECLAIMABLE, WORDS, Table
from monitor.kernel.sweeping import Stepwise
from monitor.kernel.wire import PAGE

VMSTAT = "/proc/vmstat"
#: The lists of page cache in memory.stat. Keys have the newline before them.
STAT_KEYS = {1: (b"\ntotal_inactive_file ", b"\ntotal_active_file "), 2: (b"\ninactive_file ", b"\nactive_file ")}
#: What usage is made of, but for what the CPUs have charged ahead. (``kernel`` has zswap in it. v1 does not say what
#: the kernel has: where that is much, cgroups below are asked that need not be.)
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


@dataclass(slots=True, eq=False)
class Files:
    """What is open of a watched cgroup, and what is known of it that no word of the table has."""

    at: int  # index
    path: Path | None  # None: the machine
    usage_fd: int
    stat_fd: int
    noted: int = 0  # bytes of its usage at the last step
    stat_ns: int = 0  # when memory.stat was read
    below: list[Files] = field(default_factory=list)  # the watched cgroups right below
    gone: bool = False  # removed: it keeps what was read last

    def close(self) -> None:
        for fd in (self.usage_fd, self.stat_fd):
            if fd >= 0:
                os.close(fd)


class PolledTable(Table):
    """Only the hot process has one."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        super().__init__(memoryview(bytearray(MAX_DOMAINS * WORDS * 8)).cast("q"))
        self.hierarchy = hierarchy
        self._stat_keys = STAT_KEYS[hierarchy.version]
        self._files: dict[int, Files] = {}  # by index
        self._is_linked = True
        self._leaves: list[Files] = []
        self._next_leaf = 0

    def files(self, index: int) -> Files:
        """Raises LookupError where nothing is watched."""
        return self._files[index]

    def __iter__(self) -> Iterator[Files]:
        return iter(list(self._files.values()))

    def around(self, path: Path | None) -> int | None:
        """Index of the nearest watched cgroup at this path or above it, also where it is gone; None without one."""
        by_path = {files.path: files.at for files in self._files.values()}
        return next((by_path[at] for at in (path, *path.parents) if at in by_path), None) if path is not None else None

    def is_pod(self, index: int) -> bool:
        return self._words[index * WORDS + domains.FLAGS] & domains.POD != 0

    def holds(self, files: Files) -> bool:
        """Whether they are (still) of the table."""
        return self._files.get(files.at) is files

    def ceilings(self, index: int) -> list[int]:
        """In pages."""
        first = index * WORDS + domains.CEILING
        return [pages for pages in self._words[first : first + MAX_THRESHOLDS] if pages != NO_CEILING]

    def step(self, index: int) -> int:
        """Bytes."""
        return self._words[index * WORDS + domains.STEP] * PAGE

    # writing

    def _new(self, cgroup_id: int, flags: int, step: int, rearm_ns: int, path: Path | None) -> int:
        self.check_room(1)
        machine = bool(flags & MACHINE)
        usage_fd = stat_fd = -1
        try:
            if machine:
                stat_fd = os.open(VMSTAT, os.O_RDONLY | os.O_CLOEXEC)
            else:
                if path is None:
                    raise MonitorError(f"the directory of cgroup {cgroup_id} is not known", "report this")
                usage_fd = os.open(path / USAGE[self.hierarchy.version], os.O_RDONLY | os.O_CLOEXEC)
                stat_fd = os.open(path / "memory.stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if usage_fd >= 0:
                os.close(usage_fd)
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise MonitorError("no descriptors left to watch another cgroup", "raise RLIMIT_NOFILE") from None
            raise
        at = super()._new(cgroup_id, flags, step, rearm_ns, path)
        self._files[at] = Files(at, None if machine else path, usage_fd, stat_fd)
        self._is_linked = False
        return at

    def _clear(self, at: int) -> None:
        if (gone := self._files.pop(at, None)) is not None:
            gone.close()
            self._is_linked = False
        super()._clear(at)

    def cross(self, index: int, mask: int) -> None:
        """Take the ceilings in ``mask`` as crossed."""
        self._words[index * WORDS + domains.CROSSED] |= mask

    def sync(self, index: int, number: int) -> None:
        """The sweep of this number was over it; 0: none was."""
        self._words[index * WORDS + domains.SYNCED] = number

    # from the files

    def read_usage(self, files: Files) -> int:
        """Bytes in use now. A cgroup that is gone keeps what was read last; the machine is read as a whole."""
        at = files.at * WORDS + domains.USAGE
        if files.path is None:
            self.read_stat(files)
        else:
            with suppress(OSError):  # ENODEV: removed, which the pod source reports
                self._words[at] = int(os.pread(files.usage_fd, 32, 0)) // PAGE
        return self._words[at] * PAGE

    def read_stat(self, files: Files, deep: bool = False) -> None:
        """Bring the file lists up to date; of the machine its usage as well. ``deep``: ask the cgroups below as well,
        also where nothing speaks against what the parent's file says.
        """
        try:
            data = b"\n" + os.pread(files.stat_fd, _MOST, 0)
        except OSError:
            files.gone = True
            return
        files.stat_ns = time.monotonic_ns()
        w, base = self._words, files.at * WORDS
        inactive, active = base + domains.INACTIVE, base + domains.ACTIVE
        if files.path is None:
            w[inactive], w[active], anon, file = (number(data, key) for key in _VMSTAT_KEYS)
            w[base + domains.USAGE] = anon + file
            return
        w[inactive], w[active] = (number(data, key) // PAGE for key in self._stat_keys)
        if deep or self._may_lack(files, data):
            for child in files.below:
                self.read_stat(child, deep=True)
            there = [child.at * WORDS for child in files.below if not child.gone]
            w[inactive] = max(w[inactive], sum([w[at + domains.INACTIVE] for at in there]))
            if w[base + domains.FLAGS] & RECLAIMABLE:
                w[active] = max(w[active], sum([w[at + domains.ACTIVE] for at in there]))

    def _may_lack(self, files: Files, data: bytes) -> bool:
        """Whether the cgroups below have to be asked: of a pod always, of a domain with thresholds when it is above one
        only by memory of which memory.stat knows nothing. (330 cgroups are 1 ms and more, in which memory is taken.)
        """
        if not self._is_linked:
            self._link()
        ceilings = self.ceilings(files.at)
        if not ceilings:
            return bool(files.below) and not any(child.below for child in files.below)
        usage = self.read_usage(files)
        used = usage - self.reading(files.at).cache
        over = [ceiling * PAGE for ceiling in ceilings if used > ceiling * PAGE]
        if not over or not files.below:
            return False
        known = sum([number(data, key) for key in _USED_KEYS[self.hierarchy.version]])
        if self.hierarchy.version == 2 and b"\nkernel " not in data:
            known += sum([number(data, key) for key in _KERNEL_KEYS])
        return used - max(0, usage - known - _AHEAD) <= max(over)

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
        others = {self._files[at] for at in self._other.values()}  # for the other formula
        by_path = {files.path: files for files in self if files.path is not None and files not in others}
        for files in self:
            files.below = []
        for path, files in by_path.items():
            parent = next((by_path[above] for above in path.parents if above in by_path), None)
            if parent is not None:
                parent.below.append(files)
        self._leaves = [files for files in by_path.values() if not files.below]
        for files in others:
            if files.path is not None:
                files.below = by_path[files.path].below


class PolledSweeper(Stepwise):
    """Reads every watched cgroup; takes the place of the BPF programs' sweep."""

    def __init__(self, table: PolledTable) -> None:
        self._table = table

    def steps(self, forget: bool) -> Iterator[bool]:
        self.number = number = self.number + 1
        if forget:
            for files in self._table:
                self._table.sync(files.at, 0)
        for files in self._table:
            if not self._table.holds(files):
                continue  # removed since the last stretch: its descriptors may be other files by now
            self._table.read_usage(files)
            if files.path is not None:
                self._table.read_stat(files)
            self._table.sync(files.at, number)
            yield False

    def reread(self) -> None:
        """Usage of everything, but not the file lists."""
        for files in self._table:
            self._table.read_usage(files)

    def touch(self, index: int) -> None:
        """Bring an entry up to date: the file lists, and the usage of the machine."""
        self._table.read_stat(self._table.files(index))


def number(data: bytes, key: bytes) -> int:
    """The number behind ``key``; 0 where there is none, as cAdvisor has it."""
    at = data.find(key)
    if at < 0:
        return 0
    at += len(key)
    end = data.find(b"\n", at)
    return int(data[at : end if end >= 0 else None])
