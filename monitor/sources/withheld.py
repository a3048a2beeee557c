"""Page cache that the kernel does not get at once, for `*.obtainable`: dirty, under writeback, or kept by protection.

What is dirty or under writeback the events add up where there are events (bpf/stats.c: on_dirty), from a beginning that
memory.stat has to give. That file may lack what was counted in the last 2 s (monitor/sources/polled_table.py), so the
beginning is put right when nothing was written for longer. On rungs that see charges only it is read again with every
look; without BPF the table reads it itself. The machine's own counters have it exactly.

Protection (memory.min, memory.low; cgroup v2): reclaim of a domain ends in each of its children where usage is down to
what that child is protected by. Deeper settings only share that out, so the children alone are looked at. (With the
mount option memory_recursiveprot, as systemd mounts; without it less may be kept.) memory.low counts as well: the
kernel breaks it only where nothing else is left, a moment before the OOM killer.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.domains import OBTAINABLE
from monitor.kernel.page_cache import children, dirty_bytes, kept, protection
from monitor.kernel.wire import PAGE
from monitor.sources.source import MemorySource
from monitor.sources.watch import Watch

#: After this long without a write memory.stat lacks nothing: the kernel brings it up to date every 2 s.
_SETTLED_NS = 3_000_000_000
#: Children whose protection is read again in one look: 20 us for each that has one, 8 us for any other.
_CHILDREN = 64
_EVERY_NS = 100_000_000


class Withheld:
    """Keeps what the table takes for withheld up to date; costs nothing where no threshold asks for it."""

    def __init__(self, source: MemorySource, hierarchy: Hierarchy) -> None:
        self._table = source.table
        self._hierarchy = hierarchy
        self._has_events = source.is_exact and not source.arming.partial
        self._reads_itself = not source.is_exact
        self._due_ns = 0
        self._was_armed = False
        self._base: dict[int, int] = {}  # index -> pages that the events know nothing of
        self._still: dict[int, tuple[int, int]] = {}  # index -> the sum of the events, and since when it is that
        self._protected: dict[Path, dict[Path, int]] = {}  # domain -> child -> bytes
        self._next: dict[Path, int] = {}

    def refresh(self, watches: Sequence[Watch], now_ns: int, *, armed: bool) -> None:
        """Bring it up to date, if that is due. Nothing is raised: what cannot be read stays as it was."""
        mine = [watch for watch in watches if watch.formula == OBTAINABLE]
        if not mine or (now_ns < self._due_ns and armed == self._was_armed):
            return
        self._due_ns = now_ns + _EVERY_NS
        for watch in mine:
            with suppress(OSError):  # removed
                pages = self._kept(watch) // PAGE
                if not watch.machine and not self._reads_itself:
                    pages += self._unseen(watch, now_ns, armed)
                self._table.set_withheld(watch.index, pages)
        self._was_armed = armed

    def _unseen(self, watch: Watch, now_ns: int, armed: bool) -> int:
        """Pages dirty or under writeback that the events did not add."""
        assert watch.path is not None
        at, seen = watch.index, self._table.dirty(watch.index)
        if self._has_events and armed and self._was_armed:
            since = self._still.get(at)
            if since is None or since[0] != seen:
                self._still[at] = since = seen, now_ns
            if at in self._base and now_ns - since[1] < _SETTLED_NS:
                return self._base[at]
        data = b"\n" + (watch.path / "memory.stat").read_bytes()
        base = dirty_bytes(data, self._hierarchy.version) // PAGE - seen
        if self._has_events and self._table.dirty(at) != seen:
            return self._base.setdefault(at, base)  # written to meanwhile
        self._base[at] = base
        return base

    def _kept(self, watch: Watch) -> int:
        """Bytes of page cache that memory.min or memory.low of its children keep."""
        if self._hierarchy.version != 2:
            return 0
        path = watch.path or self._hierarchy.root
        known = self._protected.setdefault(path, {})
        there = children(path)
        for gone in known.keys() - set(there):
            del known[gone]
        begin = self._next.get(path, 0) if self._next.get(path, 0) < len(there) else 0
        known |= {child: protection(child) for child in there[begin : begin + _CHILDREN]}
        self._next[path] = begin + _CHILDREN
        return sum([kept(child, protected) for child, protected in known.items() if protected])
