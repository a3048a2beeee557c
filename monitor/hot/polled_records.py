"""In place of `RingRecords` without BPF: crossings found by looking, and steps.

A look compares what was read with the ceilings, as the programs do in the kernel, and then plans the next one: when the
headroom could be used up at the fastest growth (`kernel/bounds.py`). A crossing is dated right after the last look that
found it below, so every delay computed from it is an upper bound.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from monitor.errors import MonitorError
from monitor.hot.decide import Decider
from monitor.hot.loop import SHORT_NS, Loop
from monitor.hot.records import Records
from monitor.kernel import bounds, cgroupfs
from monitor.kernel.kmsg import NEVER_LOGGED, Kmsg, LoggedKill, OomLog
from monitor.kernel.wire import PAGE, OomEvent
from monitor.link.outbox import Outbox
from monitor.settings.config import STEP
from monitor.sources.gauge import Gauge
from monitor.sources.polled_table import Files, PolledTable
from monitor.sources.registry import PodEntry, Registry
from monitor.sources.source import Arming
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
#: The loop's longer sleeps end at a whole millisecond, rounded up.
EARLY_NS = 1_000_000
#: A turn that took longer did something else.
_MOST_NS = 10_000_000


class PolledRecords(Records):
    """Looks, and hands on what it finds. Pods are read again where a domain has moved by `STEP`."""

    def __init__(self, table: PolledTable, arming: Arming, decider: Decider, outbox: Outbox) -> None:
        super().__init__(decider, outbox)
        self._table = table
        self._arming = arming
        self._looked_ns = self._pods_due_ns = 0
        self._due_ns = self._given_back_ns = 0  # when to look; when a pod that went is to be read, 0: none
        self._was_armed = False  # at the last look
        self._cost_ns = float(bounds.TURN_NS)
        self._spent_ns, self._steps_then = 0, 0
        self._cpus = os.cpu_count() or 1

    def due_ns(self) -> int:
        return 0 if self._arming.armed and not self._was_armed else self._due_ns

    def go_on(self, now_ns: int) -> None:
        self._account()
        self._look()

    def watch(self, watches: Mapping[int, Watch]) -> None:
        super().watch(watches)
        self._due_ns = 0

    def read_events(self) -> int:
        return self._look()

    def pod_went(self) -> None:
        """Count what it freed: against what it held before, a process that runs in it next would seem not to grow."""
        self._given_back_ns = time.monotonic_ns() + GIVEN_BACK_NS
        self._due_ns = min(self._due_ns, self._given_back_ns)

    def _account(self) -> None:
        """What a quiet turn from one look to the next costs in CPU time; waits are planned by that."""
        spent, before = time.thread_time_ns(), self._spent_ns
        if before and self._decider.steps == self._steps_then and self._decider.is_calm:
            self._cost_ns += (min(spent - before, _MOST_NS) - self._cost_ns) / 16
        self._spent_ns, self._steps_then = spent, self._decider.steps

    # looking

    def _look(self) -> int:
        """Compare every watched domain with its ceilings; plan the next look."""
        start = time.monotonic_ns()
        fresh: list[tuple[Watch, int]] = []
        wait, moved = self._pods_wait(start)
        for watch in self.watches.values():
            if not watch.thresholds or self._table.cgroup_id(watch.index) != watch.cgroup_id:
                continue  # the second: removed a moment ago, and another takes its place in the next turn
            files = self._table.files(watch.index)
            over, headroom = self._compare(files, start)
            if over:
                self._table.cross(watch.index, over)
                fresh.append((watch, over))
            if abs(self._table.reading(watch.index).usage - files.noted) >= STEP:
                moved = True
            if headroom is None:
                wait = min(wait, ABOVE_NS)
            elif self._arming.armed:
                wait = min(wait, bounds.wait_ns(headroom, self._arming.rate, int(self._cost_ns)))
        if fresh:
            self._cross(fresh, start)
        elif moved and start >= self._pods_due_ns:
            self._pods(start)
            self._decider.steps += 1  # the busy poll lasts while a pod grows
        self._plan(start, wait)
        return len(fresh)

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
            self._bound(wait)
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

    def _cross(self, fresh: list[tuple[Watch, int]], now_ns: int) -> None:
        """Ceilings were crossed since the last look: rank by numbers of now, decide, then report."""
        looked_ns = max(self._looked_ns, now_ns - BACK_NS)
        self._decider.eventful = True
        self._pods(now_ns)
        seen_ns = time.monotonic_ns()
        self._decider.run_pass(looked_ns)
        for watch, over in fresh:
            reading = self._table.reading(watch.index)
            for which in range(len(watch.thresholds)):
                if over >> which & 1:
                    self._stats.add("records_cross")
                    self._send_crossing(watch, which, reading, looked_ns, seen_ns)

    def _pods(self, now_ns: int) -> None:
        """Read the usage of everything; what moved by a step is noted, and ranked before the next decision."""
        began = time.monotonic_ns()
        for files in self._table:
            index, usage, step = files.at, self._table.read_usage(files), self._table.step(files.at)
            if not step or abs(usage - files.noted) < step:
                continue
            if index not in self.watches and files.path is not None:
                self._table.read_stat(files)
            files.noted, reading = usage, self._table.reading(index)
            lists = reading.inactive_file // PAGE, reading.active_file // PAGE
            self._keep_step((now_ns, self._table.cgroup_id(index), usage // PAGE, *lists))
            self._stats.add("records_step")
            self._decider.stirred |= index in self.watches
            if index not in self.watches and self._table.synced(index):
                self._decider.step(index, reading.working_set)
        ended = time.monotonic_ns()
        self._pods_due_ns = ended + max(RANK_NS, bounds.SHARE * (ended - began))

    def _bound(self, wait_ns: int) -> None:
        """Report what can move unseen until the next look."""
        machine = any(watch.machine for watch in self.watches.values())
        bound = bounds.looked(self._arming.rate, self._cpus, wait_ns, machine=machine)
        self._stats.set("bound_bytes", bound.unseen_bytes)
        self._stats.set("bound_ns", bound.unseen_ns)


#: Kills are counted so often where the log cannot be read.
COUNT_NS = 1_000_000_000
#: Lines read in one turn of the hot loop (10 us each): whatever floods the log, the next look at memory does not wait.
_TURN = 50


class PolledKills(Records):
    """OOM kills, in the `oom` messages of `RingRecords`, which stands in its place where pinned programs record them.

    The kernel's log names the victim, its cgroup, and how much it held; a pidfd opened at once shows its end. Where the
    log may not be read there are the cgroups' own counts: a kill is then known, and its victim is not. What is missing
    is named in the message (``missing``), so that a verdict which depends on it is given as undetermined.
    """

    def __init__(
        self,
        gauge: Gauge,
        registry: Registry,
        decider: Decider,
        outbox: Outbox,
    ) -> None:
        super().__init__(decider, outbox)
        self._gauge = gauge
        self._registry = registry
        self._kills = OomLog(gauge.hierarchy, gauge.table.index)
        self._kmsg: Kmsg | None = None
        self._loop: Loop | None = None
        self._dying: dict[int, OomEvent] = {}  # pidfd -> the message about the kill
        self._counts: dict[Path, int] = {}
        self._count_due_ns = 0

    def open(self, loop: Loop) -> None:
        self._loop = loop
        try:
            self._kmsg = Kmsg()
        except MonitorError as error:
            message = "OOM kills are only counted: the victims are not known"
            self._log("warning", message, problem=error.message, remedy=error.remedy)
            return
        loop.register(self._kmsg.fileno(), self.consume)

    def consume(self, fd: int) -> None:
        """The log has lines, or a marked process is gone."""
        if self._kmsg is not None and fd == self._kmsg.fileno():
            self._read(self._kmsg)
        elif (message := self._dying.pop(fd, None)) is not None:
            os.close(fd)
            self._report("records_exit", message._replace(kind="exit", ts_ns=time.monotonic_ns(), missing=()))

    def _read(self, kmsg: Kmsg) -> None:
        try:
            for record in kmsg.records(_TURN):
                if record is None:  # the kills in what was overwritten are not reported
                    self._log("warning", "lines of the kernel's log were lost")
                    self._kills.forget()
                elif (found := self._kills.feed(record)) is not None:
                    self._mark(found)
        except MonitorError as error:
            assert self._loop is not None
            self._loop.unregister(kmsg.fileno())
            kmsg.close()
            self._kmsg = None
            self._log("error", "the kernel's log cannot be read", problem=error.message, remedy=error.remedy)

    def _mark(self, found: LoggedKill) -> None:
        pod = self._owner(found.event.victim_cgroup, found.victim_path)
        uid, title = (pod.uid, pod.title) if pod else (None, None)
        message = found.event._replace(pod=uid, pod_name=title)
        try:
            fd = os.pidfd_open(message.victim_pid)
            assert self._loop is not None
            self._loop.register(fd, self.consume)
            self._dying[fd] = message
        except OSError:
            message = message._replace(missing=(*message.missing, "exit"))  # gone already, at an unknown time
        self._stats.add("oom_kills")
        self._report("records_oom", message._replace(order=self._registry.leaders()))

    def _owner(self, cgroup_id: int, path: Path | None) -> PodEntry | None:
        """The pod a victim's cgroup belongs to, also one deeper than its containers."""
        found = self._registry.owner_of_cgroup(cgroup_id)
        if found is None and path is not None:
            found = next((entry for entry in self._registry if path.is_relative_to(entry.cgroup)), None)
        return found

    def _report(self, counter: str, message: OomEvent) -> None:
        self._decider.eventful |= message.kind == "mark"
        self._stats.add(counter)
        self._send(message)

    # counters

    def due_ns(self) -> int | None:
        return self._count_due_ns if self._kmsg is None else None

    def pods_came(self) -> None:
        """What they have counted before is no kill of now."""
        if self._kmsg is None:
            self.go_on(time.monotonic_ns())

    def go_on(self, now_ns: int) -> None:
        """Report the kills that the cgroups of the pods have counted since."""
        self._count_due_ns = now_ns + COUNT_NS
        version = self._gauge.hierarchy.version
        name = "memory.oom_control" if version == 1 else "memory.events.local"
        watched = [(w.path, None) for w in self._gauge.watches if w.path is not None]
        seen: dict[Path, int] = {}
        for path, pod in [*watched, *((p, e) for e in self._registry for p in (e.cgroup, *_below(e.cgroup)))]:
            found = cgroupfs.oom_kills(self._gauge.hierarchy, path)
            if found is None:
                continue
            seen[path] = found
            for _ in range(found - self._counts.get(path, found)):
                self._counted(path, pod, name)
        self._counts = seen

    def _counted(self, path: Path, pod: PodEntry | None, source: str) -> None:
        try:
            victim = cgroupfs.cgroup_id(path)
        except cgroupfs.CgroupGone:
            victim = 0
        self._stats.add("oom_kills")
        self._report(
            "records_oom",
            OomEvent(
                kind="mark",
                ts_ns=time.monotonic_ns(),
                victim_cgroup=victim,
                pod=pod.uid if pod else None,
                pod_name=pod.title if pod else None,
                order=self._registry.leaders(),
                missing=("victim", "oom", "exit", "decision", *NEVER_LOGGED),
                source=source,
            ),
        )


def _below(cgroup: Path) -> list[Path]:
    try:
        return cgroupfs.descendants(cgroup)
    except MonitorError:
        return []
