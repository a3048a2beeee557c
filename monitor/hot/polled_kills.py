"""OOM kills without BPF, in the `oom` messages of `RingRecords`: from the kernel's log, else from counters.

The log names the victim, its cgroup, and how much it held; a pidfd opened at once shows its end. Where the log may not
be read there are the cgroups' own counts: a kill is then known, and its victim is not. What is missing is named in the
message (``missing``), so that a verdict which depends on it is given as undetermined.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from monitor.errors import MonitorError
from monitor.hot.decide import Decider
from monitor.hot.loop import Loop
from monitor.hot.records import Records
from monitor.kernel import cgroupfs
from monitor.kernel.kmsg import NEVER_LOGGED, Kmsg, LoggedKill, OomLog
from monitor.kernel.wire import OomEvent
from monitor.link.messages import LogLine, Oom
from monitor.link.outbox import Outbox
from monitor.sources.gauge import Gauge
from monitor.sources.registry import PodEntry, Registry

#: Kills are counted so often where the log cannot be read.
COUNT_NS = 1_000_000_000
#: Lines read in one turn of the hot loop (10 us each): whatever floods the log, the next look at memory does not wait.
_TURN = 50


class PolledKills(Records):
    """Reads the log, or the counts where it may not be read. Where programs are pinned that record kills, `RingRecords`
    takes its place.
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
        self._log = OomLog(gauge.hierarchy, gauge.table.index)
        self._kmsg: Kmsg | None = None
        self._loop: Loop | None = None
        self._dying: dict[int, Oom] = {}  # pidfd -> the message about the kill
        self._counts: dict[Path, int] = {}
        self._count_due_ns = 0

    def open(self, loop: Loop) -> None:
        """Read the log from now on, where it may be read."""
        self._loop = loop
        try:
            self._kmsg = Kmsg()
        except MonitorError as error:
            self._send(
                LogLine(
                    "warning",
                    "OOM kills are only counted: the victims are not known",
                    {"problem": error.message, "remedy": error.remedy},
                )
            )
            return
        loop.register(self._kmsg.fileno(), self.consume)

    def consume(self, fd: int) -> None:
        """The log has lines, or a marked process is gone."""
        if self._kmsg is not None and fd == self._kmsg.fileno():
            self._read(self._kmsg)
        elif (message := self._dying.pop(fd, None)) is not None:
            os.close(fd)
            event = replace(message.event, kind="exit", ts_ns=time.monotonic_ns())
            self._report("records_exit", message._replace(event=event, missing=()))

    def _read(self, kmsg: Kmsg) -> None:
        try:
            for record in kmsg.records(_TURN):
                if record is None:  # the kills in what was overwritten are not reported
                    self._send(LogLine("warning", "lines of the kernel's log were lost", {}))
                    self._log.forget()
                elif (found := self._log.feed(record)) is not None:
                    self._mark(found)
        except MonitorError as error:
            assert self._loop is not None
            self._loop.unregister(kmsg.fileno())
            kmsg.close()
            self._kmsg = None
            fields = {"problem": error.message, "remedy": error.remedy}
            self._send(LogLine("error", "the kernel's log cannot be read", fields))

    def _mark(self, found: LoggedKill) -> None:
        pod = self._owner(found.event.victim_cgroup, found.victim_path)
        uid, title = (pod.uid, pod.title) if pod else (None, None)
        message = Oom(found.event, uid, title, while_away=False, missing=found.missing)
        try:
            fd = os.pidfd_open(message.event.victim_pid)
            assert self._loop is not None
            self._loop.register(fd, self.consume)
            self._dying[fd] = message
        except OSError:
            message = message._replace(missing=(*found.missing, "exit"))  # gone already, at an unknown time
        self._stats.add("oom_kills")
        self._report("records_oom", message._replace(order=self._registry.leaders()))

    def _owner(self, cgroup_id: int, path: Path | None) -> PodEntry | None:
        """The pod a victim's cgroup belongs to, also one deeper than its containers."""
        found = self._registry.owner_of_cgroup(cgroup_id)
        if found is None and path is not None:
            found = next((entry for entry in self._registry if path.is_relative_to(entry.cgroup)), None)
        return found

    def _report(self, counter: str, message: Oom) -> None:
        self._decider.eventful |= message.event.kind == "mark"
        self._stats.add(counter)
        self._send(message)

    # counters

    def due_ns(self) -> int | None:
        """When to count again, where the log cannot be read."""
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
            Oom(
                OomEvent(kind="mark", ts_ns=time.monotonic_ns(), victim_cgroup=victim),
                pod=pod.uid if pod else None,
                pod_name=pod.title if pod else None,
                while_away=False,
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
