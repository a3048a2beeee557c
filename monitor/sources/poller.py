"""In place of `Rings` without BPF: the same records of crossings and steps, found by looking.

A look compares what was read with the ceilings, as the programs do in the kernel, and then plans the next one: when the
headroom could be used up at the fastest growth (`kernel/bounds.py`). A crossing is dated right after the last look that
found it below, so every delay computed from it is an upper bound.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from monitor.kernel import bounds
from monitor.kernel.domains import MAX_THRESHOLDS
from monitor.kernel.timer import SHORT_NS
from monitor.kernel.wire import CROSS, PAGE, STEP, Event
from monitor.link.counters import SharedStats
from monitor.settings import config
from monitor.sources.arming import Arming
from monitor.sources.events import EventSource
from monitor.sources.polled_table import Files, PolledTable
from monitor.sources.watch import Watch

#: Far from every threshold the looks of `Housekeeping.look` do.
IDLE_NS = 1_000_000_000
#: The pods are read again so often at most while the node moves: 110 of them take 0.3 ms.
RANK_NS = 25_000_000
#: An evicted pod is read again so long after it went, when most of it is uncharged. (At full speed a process takes 60
#: MiB in this time, and needs longer to begin.)
GIVEN_BACK_NS = 5_000_000
#: Above every ceiling there is nothing to cross; passes go on.
ABOVE_NS = 25_000_000
#: File lists of a domain that cannot have crossed (usage alone is below) are read again after this long.
LISTS_NS = 250_000_000
#: A crossing is never dated further back than this, or it would count as one that was read late.
BACK_NS = 400_000_000
#: What of a look counts for the pace: one that waited for the kernel's lists says nothing about the next.
_MOST_NS = 5_000_000
#: The loop's longer sleeps end at a whole millisecond, rounded up.
EARLY_NS = 1_000_000


class Poller(EventSource):
    """Pods are read again where a domain has moved by `monitor.settings.config.STEP`."""

    def __init__(self, table: PolledTable, arming: Arming, stats: SharedStats) -> None:
        self._table = table
        self._arming = arming
        self._stats = stats
        self._watches: Mapping[int, Watch] = {}
        self._looked_ns = self._pods_due_ns = 0
        self._due_ns = self._given_back_ns = 0  # when to look; when a pod that went is to be read, 0: none
        self._was_armed = False  # at the last look
        self._cost_ns = float(bounds.TURN_NS)

    def due_ns(self) -> int:
        return 0 if self._arming.armed and not self._was_armed else self._due_ns

    def go_on(self, now_ns: int) -> None:
        self.read_events()

    def watch(self, watches: Mapping[int, Watch]) -> None:
        self._watches = watches
        self._due_ns = 0

    def read_events(self) -> None:
        for record in self.look():
            self._consumer.event(record)

    def pod_went(self) -> None:
        """Count what it freed: against what it held before, a process that runs in it next would seem not to grow."""
        self._given_back_ns = time.monotonic_ns() + GIVEN_BACK_NS
        self._due_ns = min(self._due_ns, self._given_back_ns)

    # looking

    def look(self) -> list[Event]:
        """Compare every watched domain with its ceilings; plan the next look. Steps come before crossings."""
        start, since, began = time.monotonic_ns(), self._looked_ns, time.thread_time_ns()
        fresh: list[tuple[Watch, int]] = []
        wait, moved = self._pods_wait(start)
        for watch in self._watches.values():
            if not watch.thresholds or self._table.cgroup_id(watch.index) != watch.cgroup_id:
                continue  # the second: removed a moment ago, and another takes its place in the next turn
            files = self._table.files(watch.index)
            over, headroom = self._compare(files, start)
            if over:
                self._table.cross(watch.index, over)
                fresh.append((watch, over))
            if abs(self._table.reading(watch.index).usage - files.noted) >= config.STEP:
                moved = True
            if headroom is None:
                wait = min(wait, ABOVE_NS)
            elif self._arming.armed:
                wait = min(wait, bounds.wait_ns(headroom, self._arming.rate, int(self._cost_ns)))
        records: list[Event] = []
        if fresh or (moved and start >= self._pods_due_ns):
            records += self._steps(start)
        for watch, over in fresh:
            records += self._crossings(watch, over, max(since, start - BACK_NS))
        if not records:
            self._cost_ns = bounds.turn_ns(self._cost_ns, min(_MOST_NS, time.thread_time_ns() - began))
        self._plan(start, wait)
        return records

    def _pods_wait(self, now_ns: int) -> tuple[int, bool]:
        """The wait for pods that gave memory back, and whether they are due."""
        if not self._given_back_ns:
            return IDLE_NS, False
        if now_ns < self._given_back_ns:
            return self._given_back_ns - now_ns, False
        self._pods_due_ns, self._given_back_ns = 0, 0
        return IDLE_NS, True

    def _plan(self, looked_ns: int, wait: int) -> None:
        self._looked_ns, self._was_armed = looked_ns, self._arming.armed
        if self._was_armed:
            self._stats.set("wait_ns", wait)
        self._due_ns = time.monotonic_ns() + wait - (EARLY_NS if self._was_armed and wait >= SHORT_NS else 0)

    def _compare(self, files: Files, now_ns: int) -> tuple[int, int | None]:
        """The ceilings crossed since the last look, a bit each, and the bytes up to the next one (None: above all)."""
        table, at = self._table, files.at
        usage, ceilings = table.read_usage(files), table.ceilings(at)
        if files.path is not None:
            lowest = min(ceilings, default=0) * PAGE
            if usage > lowest:
                table.refresh_a_leaf()
            # Old lists may be wrong by all that was inactive: where that is much of the headroom, they plan no wait.
            relied_on = self._arming.armed and lowest - usage < 4 * table.reading(at).cache
            if usage > lowest or relied_on or now_ns - files.stat_ns >= LISTS_NS:
                table.read_stat(files)
        used = table.reading(at).used
        over, room = 0, None
        for i, ceiling in enumerate(ceilings):
            if used // PAGE > ceiling:
                over |= 1 << i
            else:
                left = ceiling * PAGE - used
                room = left if room is None else min(room, left)
        return over & ~table.crossed(at), room

    def _crossings(self, watch: Watch, over: int, ts_ns: int) -> Iterator[Event]:
        for which in range(MAX_THRESHOLDS):
            if over >> which & 1:
                yield self._record(CROSS, ts_ns, watch.index, which)

    def _steps(self, now_ns: int) -> list[Event]:
        """Read the usage of everything; what moved by a step."""
        table, began, found = self._table, time.monotonic_ns(), []
        for files in table:
            index, usage, step = files.at, table.read_usage(files), table.step(files.at)
            if not step or abs(usage - files.noted) < step or not table.synced(index):
                continue
            if index not in self._watches and files.path is not None:
                table.read_stat(files)
            files.noted = usage
            found.append(self._record(STEP, now_ns, index))
        ended = time.monotonic_ns()
        self._pods_due_ns = ended + max(RANK_NS, bounds.SHARE * (ended - began))
        return found

    def _record(self, kind: int, ts_ns: int, index: int, threshold: int = 0) -> Event:
        """As a program would have written it."""
        reading = self._table.reading(index)
        pages = reading.usage // PAGE, reading.inactive_file // PAGE, reading.active_file // PAGE
        return (ts_ns, self._table.cgroup_id(index), *pages, 0, 0, kind, index, threshold, 0, 0, 0)
