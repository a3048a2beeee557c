"""The table of watched cgroups. `DomainTable` shares it with the BPF programs through memory (map ``domains``, struct
domain); without BPF it is filled from files (`monitor.sources.polled_table`).

One process (hot) writes the first half of an entry; BPF writes the second half; everybody may read. Every access is
one aligned 64-bit word, so no reader ever sees half a number.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from monitor.errors import MonitorError
from monitor.kernel.cgroupfs import Reading as Reading
from monitor.kernel.pins import Map, Pins
from monitor.kernel.wire import PAGE

MAX_DOMAINS = 4096
MAX_THRESHOLDS = 4
#: Levels below the root at which a watched cgroup is found, and watched ones one inside the other.
MAX_LEVEL, MAX_NESTED = 12, 6
WORDS = 32
NO_CEILING = 0x7FFFFFFFFFFFFFFF

MACHINE, POD, CGROUP = 1, 2, 4
#: An entry for thresholds by another formula (bpf/wire.h), and from which bit of the first entry's flags it is named.
RECLAIMABLE = 8
_NAMED_AT = 16

# Words of an entry: what user space writes ...
FLAGS, CEILING, LOWEST, PULL, STEP, REARM = 1, 2, 6, 7, 8, 9
# ... and what BPF, or the reader of files, writes.
USAGE, INACTIVE, ACTIVE, CROSSED, SYNCED, DIPPED = 12, 13, 14, 18, 19, 22
#: What a domain's processes caused beyond the budgets of the programs (bpf/memcg.h: afford()) -> its word.
OVER = {"steps": 25, "kills": 27, "processes": 29, "reclaims": 31, "exits": 11}
_STEP_KEY = 255  # in the map of crossings: a step is being reported


class Table:
    """Each watched cgroup at one index, and at one more for the other formula (`RECLAIMABLE`)."""

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self._begin()

    def _begin(self) -> None:
        self.high = 0  # one more than the highest index in use
        self._known: dict[int, int] = {}  # cgroup id -> index
        self._other: dict[int, int] = {}  # index -> that of the same cgroup for the other formula
        self._free: list[int] = []

    def check_room(self, entries: int) -> None:
        """Raises MonitorError if fewer than ``entries`` cgroups can be added."""
        if len(self._free) + MAX_DOMAINS - self.high < entries:
            remedy = "watch fewer: containers count as well as pods"
            raise MonitorError(f"more than {MAX_DOMAINS} cgroups to watch", remedy)

    def index(self, cgroup_id: int) -> int | None:
        """Where the cgroup's entry is, None if it is not watched."""
        return self._known.get(cgroup_id)

    def reading(self, index: int) -> Reading:
        w, at = self._words, index * WORDS
        inactive, active = max(0, w[at + INACTIVE]) * PAGE, max(0, w[at + ACTIVE]) * PAGE
        return Reading(w[at + USAGE] * PAGE, inactive, active, w[at + FLAGS] & RECLAIMABLE != 0)

    def working_set(self, index: int) -> int:
        """Bytes; two loads, for the hot path."""
        w, at = self._words, index * WORDS
        return max(0, w[at + USAGE] - w[at + INACTIVE]) * PAGE

    def working_sets(self, indexes: Sequence[int]) -> list[int]:
        """The same of many: a third of the time."""
        w = self._words
        return [max(0, w[i * WORDS + USAGE] - w[i * WORDS + INACTIVE]) * PAGE for i in indexes]

    def room(self, index: int) -> int:
        """Bytes from what is used to the lowest ceiling; negative above it. Six loads at most, for the hot path."""
        w, at = self._words, index * WORDS
        active = max(0, w[at + ACTIVE]) if w[at + FLAGS] & RECLAIMABLE else 0
        return (w[at + LOWEST] - w[at + USAGE] + w[at + INACTIVE] + active) * PAGE

    def cgroup_id(self, index: int) -> int:
        return self._words[index * WORDS]

    def synced(self, index: int) -> int:
        """Number of the last complete sweep that this entry took part in; 0 if none."""
        return self._words[index * WORDS + SYNCED]

    def crossed(self, index: int) -> int:
        """Bit per ceiling that the working set is above, as BPF last saw it."""
        return self._words[index * WORDS + CROSSED]

    def reset(self) -> None:
        """Forget every entry."""
        for at in range(self.high):
            if self._words[at * WORDS]:
                self._clear(at)
        self._begin()

    def add(
        self, cgroup_id: int, *, flags: int = 0, step: int = 0, rearm_ns: int = 5_000_000, path: Path | None = None
    ) -> int:
        """Watch the cgroup at ``path``; its index. Its numbers are complete after the next sweep. ``step`` in bytes.

        Raises MonitorError when the table is full or, where files are read, descriptors are; OSError when it is gone.
        """
        at = self._known.get(cgroup_id)
        if at is None:
            at = self._new(cgroup_id, flags if flags & MACHINE else flags | CGROUP, step, rearm_ns, path)
            self._known[cgroup_id] = at
            self._publish(cgroup_id, at)
        return at

    def _publish(self, cgroup_id: int, at: int) -> None:
        """Others may find the entry from now on."""

    def add_formula(self, first: int, formula: int, path: Path | None = None) -> int:
        """Watch the cgroup of entry ``first`` by another formula as well (`RECLAIMABLE`): the index of an entry that is
        brought up to date with it, compares with ceilings of its own and ends with it. There is one such formula: an
        entry that has it (the node, where it is kubepods too) keeps it. Raises as `add`.
        """
        if first in self._other:
            return self._other[first]
        w, base = self._words, first * WORDS
        flags = w[base + FLAGS]
        at = self._new(w[base], formula | flags & (MACHINE | CGROUP), 0, w[base + REARM], path)
        self._other[first] = at
        w[base + FLAGS] = flags | (at + 1) << _NAMED_AT
        return at

    def _new(self, cgroup_id: int, flags: int, step: int, rearm_ns: int, path: Path | None) -> int:
        self.check_room(1)
        if self._free:
            at = self._free.pop()
        else:
            at, self.high = self.high, self.high + 1
        self._clear(at)
        w, base = self._words, at * WORDS
        w[base + FLAGS] = flags
        w[base + STEP] = max(1, step // PAGE) if step else 0
        w[base + REARM] = rearm_ns
        w[base] = cgroup_id
        return at

    def remove(self, cgroup_id: int) -> None:
        at = self._known.pop(cgroup_id, None)
        for gone in () if at is None else {at, self._other.pop(at, at)}:
            self._clear(gone)
            self._free.append(gone)

    def set_ceilings(self, index: int, ceilings: list[int], pull_above: int = NO_CEILING) -> None:
        """Ceilings in pages of working set (crossed while above), at most 4; all are taken as not crossed yet. Above
        ``pull_above`` pages the armed victim is signalled in the kernel.
        """
        if len(ceilings) > MAX_THRESHOLDS:
            raise MonitorError(f"more than {MAX_THRESHOLDS} memory thresholds on one cgroup", "drop some")
        w, base = self._words, index * WORDS
        w[base + LOWEST] = w[base + PULL] = NO_CEILING  # nothing is compared while they change
        for i in range(MAX_THRESHOLDS):
            w[base + CEILING + i] = ceilings[i] if i < len(ceilings) else NO_CEILING
        self._forget_crossings(index)
        w[base + PULL] = pull_above
        w[base + LOWEST] = min(ceilings, default=NO_CEILING)

    def clear_crossings(self, index: int, mask: int) -> None:
        """Take the ceilings in ``mask`` as not crossed, so that being above them is reported as a crossing again."""
        base = index * WORDS
        self._words[base + CROSSED] &= ~mask
        self._words[base + DIPPED] &= ~mask

    def _forget_crossings(self, at: int) -> None:
        self.clear_crossings(at, (1 << MAX_THRESHOLDS) - 1)

    def _clear(self, at: int) -> None:
        w, base = self._words, at * WORDS
        for i in range(WORDS):
            w[base + i] = 0
        for i in range(CEILING, PULL + 1):
            w[base + i] = NO_CEILING


class DomainTable(Table):
    """The map as memory, plus the id -> index hash."""

    def __init__(self, pins: Pins) -> None:
        super().__init__(memoryview(pins.mmap("domains", MAX_DOMAINS * WORDS * 8)).cast("q"))
        self._index: Map = pins.map("domain_of", 4)
        self._crossings: Map = pins.map("crossings", 8)

    def close(self) -> None:
        os.close(self._index.fd)
        os.close(self._crossings.fd)

    def index(self, cgroup_id: int) -> int | None:
        at = self._known.get(cgroup_id)
        if at is not None and self._words[at * WORDS] == cgroup_id:
            return at
        raw = self._index.lookup(cgroup_id.to_bytes(8, sys.byteorder))
        if raw is None:
            return None
        if len(self._known) >= 2 * MAX_DOMAINS:  # a reader hears nothing of what was removed
            there = [(known, at) for known, at in list(self._known.items()) if self._words[at * WORDS] == known]
            self._known = dict(there)
        at = self._known[cgroup_id] = int.from_bytes(raw, sys.byteorder)
        return at

    def read(self, cgroup_id: int) -> Reading | None:
        """The cgroup's memory now; None if it is not watched or not counted yet."""
        at = self.index(cgroup_id)
        return None if at is None or not self.synced(at) else self.reading(at)

    def over(self, cgroup_id: int) -> dict[str, int]:
        """Records by kind (`OVER`) withheld for a cgroup's processes since it is watched; {} if it is not."""
        at = self.index(cgroup_id)
        return {} if at is None else {name: self._words[at * WORDS + word] for name, word in OVER.items()}

    def reset(self) -> None:
        """Also those of an earlier daemon."""
        self.high = MAX_DOMAINS
        super().reset()

    def _publish(self, cgroup_id: int, at: int) -> None:
        self._index.update(cgroup_id.to_bytes(8, sys.byteorder), at.to_bytes(4, sys.byteorder))

    def clear_crossings(self, index: int, mask: int) -> None:
        for i in range(MAX_THRESHOLDS):
            if mask >> i & 1:
                self._crossings.delete((index << 8 | i).to_bytes(8, sys.byteorder))
        super().clear_crossings(index, mask)

    def _forget_crossings(self, at: int) -> None:
        super()._forget_crossings(at)
        self._crossings.delete((at << 8 | _STEP_KEY).to_bytes(8, sys.byteorder))

    def _clear(self, at: int) -> None:
        w, base = self._words, at * WORDS
        if cgroup_id := w[base]:
            self._index.delete(cgroup_id.to_bytes(8, sys.byteorder))
        w[base] = 0
        if w[base + LOWEST] != NO_CEILING or w[base + STEP]:
            self._forget_crossings(at)
        super()._clear(at)


def ceiling_pages(capacity: int, threshold: int) -> int:
    """The working set (pages) above which capacity - working set < ``threshold``."""
    return (capacity - threshold) // PAGE
