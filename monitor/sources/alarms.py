"""The alarms of a rung without BPF, one or two for each domain with thresholds, in the epoll of the hot loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from monitor.errors import MonitorError
from monitor.kernel import bounds
from monitor.kernel.alarms import Epoll, EventsFile, PsiTrigger, UsageThreshold, alarm_remedy
from monitor.kernel.bounds import REAIM_BYTES
from monitor.kernel.cgroupfs import detect
from monitor.kernel.rungs import EVENTFD, PSI
from monitor.kernel.wire import PAGE
from monitor.link.messages import LogLine, Send
from monitor.sources.polled_entry import Entry
from monitor.sources.watch import Watch

_PRESSURE = Path("/proc/pressure/memory")

Alarm = PsiTrigger | EventsFile | UsageThreshold


class Alarms:
    """Opened for what is watched, closed for what is not any more. What cannot be had is logged once."""

    def __init__(self, rung: str, version: int, send: Send) -> None:
        self._rung = rung
        self._version = version
        self._send = send
        self._epoll: Epoll | None = None
        self._wanted: Sequence[Watch] = ()
        self._by_fd: dict[int, Alarm] = {}
        self._of: dict[int, list[Alarm]] = {}  # by cgroup id
        self._aims: dict[int, UsageThreshold] = {}  # by cgroup id
        self._targets: dict[int, dict[str, int]] = {}  # the same: usage at which each signal's next line is
        self._reported: set[str] = set()

    def open(self, epoll: Epoll) -> None:
        """Open what was asked for before."""
        self._epoll = epoll
        self.watch(self._wanted)

    def watch(self, watches: Sequence[Watch]) -> None:
        """Have alarms for these domains and no others."""
        self._wanted = watches
        if self._epoll is None:
            return
        known = {w.cgroup_id: w for w in watches}
        for gone in self._of.keys() - known.keys():
            self._close(gone)
        for cgroup_id in known.keys() - self._of.keys():
            self._of[cgroup_id] = self._make(known[cgroup_id])

    def _make(self, watch: Watch) -> list[Alarm]:
        made: list[Alarm] = []
        makers: list[Callable[[], Alarm]] = []
        path = watch.path
        if self._rung == PSI:
            pressure = _PRESSURE if path is None else path / "memory.pressure"
            makers.append(lambda: PsiTrigger(pressure))
            if path is not None:  # the root of v2 has none
                makers.append(lambda: EventsFile(path))
        elif self._rung == EVENTFD:
            directory = detect().root if path is None else path
            makers.append(lambda: UsageThreshold(directory))
        for make in makers:
            try:
                alarm = make()
            except OSError as error:
                self._complain(f"{watch.name}: {error}", alarm_remedy(error))
                continue
            except MonitorError as error:
                self._complain(f"{watch.name}: {error.message}", error.remedy)
                continue
            made.append(alarm)
            self._by_fd[alarm.fileno()] = alarm
            assert self._epoll is not None
            self._epoll.register(alarm.fileno(), alarm.events)
            if isinstance(alarm, UsageThreshold):
                self._aims[watch.cgroup_id] = alarm
        return made

    def _close(self, cgroup_id: int) -> None:
        self._aims.pop(cgroup_id, None)
        self._targets.pop(cgroup_id, None)
        for alarm in self._of.pop(cgroup_id):
            del self._by_fd[alarm.fileno()]
            self._silence(alarm.fileno())
            alarm.close()

    def _complain(self, problem: str, remedy: str) -> None:
        if problem not in self._reported:
            self._reported.add(problem)
            fields = {"problem": problem, "remedy": remedy}
            self._send(LogLine("warning", "an alarm cannot be had: polling alone", fields))

    def acknowledge(self, fd: int) -> int | None:
        """Take in an alarm: the id of the cgroup that has passed its usage threshold, 0 for an alarm that only calls to
        look. None if the descriptor is no alarm's.
        """
        alarm = self._by_fd.get(fd)
        if alarm is None:
            return None
        if isinstance(alarm, UsageThreshold):
            by_kernel = alarm.acknowledge()
            return next(cgroup for cgroup, one in self._aims.items() if one is alarm) if by_kernel else 0
        alarm.acknowledge()
        if not alarm.path.exists():
            self._silence(fd)  # the files of a cgroup that was removed are ready for ever
        return 0

    def _silence(self, fd: int) -> None:
        assert self._epoll is not None
        with suppress(FileNotFoundError):  # done before
            self._epoll.unregister(fd)

    # usage thresholds

    @property
    def are_aimed(self) -> bool:
        """Whether the kernel compares usage for every domain."""
        return bool(self._aims) and all(_is_on_target(alarm) for alarm in self._aims.values())

    def aim(self, watch: Watch, entry: Entry) -> None:
        """Move the usage threshold to the next ceiling, corrected by what page cache is inactive now.

        Usage may pass the ceiling by as much as is inactive; where that has moved, the threshold moves.
        """
        alarm = self._aims.get(watch.cgroup_id)
        if alarm is None:
            return
        if alarm.problem:
            self._complain(f"{watch.name}: cgroup.event_control: {alarm.problem}", alarm.remedy)
        ahead = [c for i, c in enumerate(entry.ceilings) if not entry.crossed >> i & 1]
        targets = self._targets.setdefault(watch.cgroup_id, {})
        targets.pop(watch.signal, None)
        if ahead:
            targets[watch.signal] = min(ahead) * PAGE + entry.cache
        if not targets:
            return
        target = min(targets.values())  # a cgroup has one threshold, however many formulas it is watched by
        if alarm.wanted is None or abs(target - alarm.wanted) >= REAIM_BYTES:
            alarm.aim(target)

    def wait_ns(self, watch: Watch, entry: Entry, headroom: int, rate: int, cost_ns: int) -> int:
        """How long a domain with ``headroom`` bytes left need not be polled."""
        alarm = self._aims.get(watch.cgroup_id)
        if alarm is not None and _is_on_target(alarm) and entry.cache < REAIM_BYTES:
            return bounds.COARSEST_NS  # usage cannot pass unannounced, and there is no page cache to hide growth
        return bounds.wait_ns(headroom, rate, cost_ns)


def _is_on_target(alarm: UsageThreshold) -> bool:
    """Whether the kernel compares with what was asked for last."""
    return alarm.armed is not None and alarm.armed == alarm.wanted
