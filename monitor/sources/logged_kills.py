"""OOM kills without BPF: the marks and exits that the rings have, by the kernel's log or by the cgroups' own counts.

The log names the victim, its cgroup, and how much it held; a pidfd opened at once shows its end. Where the log may not
be read the cgroups' counts tell of a kill, and not of its victim. What is missing is named in the record
(``missing``), so that a verdict which depends on it is given as undetermined.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from monitor.errors import MonitorError
from monitor.kernel import cgroupfs
from monitor.kernel.kmsg import NEVER_LOGGED, Kmsg, LoggedKill
from monitor.kernel.wire import OomEvent
from monitor.link.outbox import Outbox
from monitor.sources.events import Consumer, Epoll, EventSource
from monitor.sources.polled_table import PolledTable

#: Kills are counted so often where the log cannot be read.
COUNT_NS = 1_000_000_000
#: Lines read in one turn of the hot loop (10 us each): whatever floods the log, the next look at memory does not wait.
_TURN = 50


class LoggedKills(EventSource):
    def __init__(self, table: PolledTable, outbox: Outbox) -> None:
        self._table = table
        self._hierarchy = table.hierarchy
        self._log = outbox.log
        self._kmsg: Kmsg | None = None
        self._dying: dict[int, LoggedKill] = {}  # by pidfd
        self._counts: dict[Path, int] = {}
        self._count_due_ns = 0

    def open(self, epoll: Epoll, consumer: Consumer) -> None:
        super().open(epoll, consumer)
        try:
            self._kmsg = Kmsg(self._hierarchy)
        except MonitorError as error:
            message = "OOM kills are only counted: the victims are not known"
            self._log("warning", message, problem=error.message, remedy=error.remedy)
            return
        epoll.register(self._kmsg.fileno(), self.consume)

    def consume(self, fd: int) -> None:
        """The log has lines, or a marked process is gone."""
        if self._kmsg is not None and fd == self._kmsg.fileno():
            self._read(self._kmsg)
        elif (found := self._dying.pop(fd, None)) is not None:
            os.close(fd)
            gone, now = found.event, time.monotonic_ns()
            victim = gone.victim_pid, gone.victim_tid, gone.victim_comm, gone.victim_cgroup
            self._consumer.oom(OomEvent("exit", now, *victim, self._table.around(found.victim_path)))

    def _read(self, kmsg: Kmsg) -> None:
        kills: list[LoggedKill] = []
        try:
            for found in kmsg.kills(_TURN):
                if found is None:  # the kills in what was overwritten are not reported
                    self._log("warning", "lines of the kernel's log were lost")
                else:
                    kills.append(found)
        except MonitorError as error:  # it is closed, and so out of the epoll
            self._kmsg = None
            self._log("error", "the kernel's log cannot be read", problem=error.message, remedy=error.remedy)
        for kill in kills:
            self._consumer.oom(self._mark(kill))

    def _mark(self, found: LoggedKill) -> OomEvent:
        event, fd = found.event._replace(domain=self._table.around(found.victim_path)), -1
        try:
            fd = os.pidfd_open(event.victim_pid)
            self._epoll.register(fd, self.consume)
            self._dying[fd] = found
        except OSError:
            event = event._replace(missing=(*event.missing, "exit"))  # gone already, at an unknown time
            if fd >= 0:
                os.close(fd)
        return event

    # counters

    def due_ns(self) -> int | None:
        return self._count_due_ns if self._kmsg is None else None

    def pods_came(self) -> None:
        """What they have counted before is no kill of now."""
        if self._kmsg is None:
            self.go_on(time.monotonic_ns())

    def go_on(self, now_ns: int) -> None:
        """Report the kills that the domains and the cgroups of the pods have counted since."""
        self._count_due_ns = now_ns + COUNT_NS
        seen: dict[Path, int] = {}
        for path in set(self._counting()):
            found = cgroupfs.oom_kills(self._hierarchy, path)
            if found is None:
                continue
            seen[path] = found
            for _ in range(found - self._counts.get(path, found)):
                self._consumer.oom(self._counted(path))
        self._counts = seen

    def _counting(self) -> Iterator[Path]:
        for files in self._table:
            if files.path is not None:
                yield files.path
                if self._table.is_pod(files.at):
                    with suppress(OSError):
                        yield from cgroupfs.below(files.path)

    def _counted(self, path: Path) -> OomEvent:
        try:
            victim = cgroupfs.cgroup_id(path)
        except cgroupfs.CgroupGone:
            victim = 0
        return OomEvent(
            kind="mark",
            ts_ns=time.monotonic_ns(),
            victim_cgroup=victim,
            domain=self._table.around(path),
            missing=("victim", "oom", "exit", "decision", *NEVER_LOGGED),
            source=cgroupfs.KILLS[self._hierarchy.version],
        )
