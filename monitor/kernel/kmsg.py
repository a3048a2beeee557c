"""The lines of the kernel's log about OOM kills: they confirm a kill and never decide anything.

Their wording has changed before, and parts of them are rate limited (10 in 5 s). Reading begins at the end of the log.
Without BPF kills are known as far as the log has them (`OomLog`), each one an `OomEvent`: what the log does not have is
0 or "", and named in ``missing``. A kill is dated when its line is read, an upper bound: the log has a clock of its
own, which goes apart from CLOCK_MONOTONIC by 0.5 s a day (measured).
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from monitor.errors import MonitorError, remedy_of
from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.procfs import Process
from monitor.kernel.wire import SI_KERNEL, OomEvent, printable

_KILLED = re.compile(r"(Memory cgroup out of memory|Out of memory)[^:]*: Killed process (\d+) \((.*)\)")
_CONSTRAINT = re.compile(
    # To the very end, because a task is called as it likes: "x,pid=1,uid=0" is a name.
    r"oom-kill:constraint=\w+,.*?(?:oom_memcg=(.*?),)?(?:global_oom,)?task_memcg=(.*?),task=.*,pid=(\d+),uid=\d+$"
)
#: With the order of the allocation; -1 where SysRq f called the OOM killer (is_sysrq_oom, mm/oom_kill.c).
_INVOKED = re.compile(r"(.*) invoked oom-killer: (?:.*, order=(-?\d+))?")
#: What /dev/kmsg writes for each byte that is no printable ASCII, and for a backslash (msg_add_ext_text, printk.c).
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
#: A record of /dev/kmsg is at most this long (CONSOLE_EXT_LOG_MAX).
_RECORD = 8192
#: Records read at once: a flood of the log must not hold up its reader.
_MOST = 500
_WHERE = re.compile(r"CPU: \d+ (?:UID: \d+ )?PID: (\d+) Comm: ")
_LIMIT = re.compile(r"memory: usage (\d+)kB, limit (\d+)kB")
#: Groups are fields of the event.
_HELD = re.compile(
    r"total-vm:(?P<total_vm>\d+)kB, anon-rss:(?P<anon_rss>\d+)kB, file-rss:(?P<file_rss>\d+)kB, "
    r"shmem-rss:(?P<shmem_rss>\d+)kB(?:, UID:(?P<uid>\d+))?(?: pgtables:(?P<pgtables>\d+)kB)?"
    r"(?: oom_score_adj:(?P<oom_score_adj>-?\d+))?"
)
_NO_SIZES = ("uid", "oom_score_adj")
_GROUP = re.compile(r"Tasks in (.+) are going to be killed due to memory\.oom\.group set")
_KIB = 1024
#: What no log line has: the task that had to reclaim before.
NEVER_LOGGED = ("reclaim",)
#: Reports that end without a kill.
_NOBODY = re.compile(r"OOM victim \d+ |Out of memory and no killable processes")
#: The members of a group are killed in one go, after the victim.
_GROUP_NS = 1_000_000_000
#: ... and the victim itself is named again with them, no later than this: a console writes 64 lines a second, and lines
#: in between may be lost.
_AGAIN_NS = 5_000_000_000


def line_of(record: bytes) -> tuple[int, str]:
    """Time (ns, by the log's own clock) and text of a record of /dev/kmsg; no text unless the kernel wrote it. The low
    bits of the first field are the level, the rest the facility, of which 0 is the kernel's alone: any process may
    write lines of another one.
    """
    head, _, rest = record.decode(errors="replace").partition(";")
    fields = head.split(",")
    if len(fields) < 3 or not (fields[0].isdecimal() and fields[2].isdecimal()) or int(fields[0]) >> 3:
        return 0, ""
    return int(fields[2]) * 1000, rest.split("\n", 1)[0]


def _bytes(logged: str) -> bytes:
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), logged.encode())


class Kmsg:
    """The kills in the log from now on. Raises MonitorError when it may not be read."""

    def __init__(self, hierarchy: Hierarchy, path: str = "/dev/kmsg") -> None:
        self._log = OomLog(hierarchy)
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as error:
            raise MonitorError(
                f"{path} cannot be read ({error.strerror}): OOM kills are not checked against the kernel's log",
                "run as root, or give it CAP_SYSLOG",
            ) from None

    def fileno(self) -> int:
        return self._fd

    def kills(self, most: int = _MOST) -> Iterator[LoggedKill | None]:
        """Those in what was written since the last time, of a flood in the first ``most`` records; None where others
        were overwritten before they were read. Raises MonitorError, after which it is closed.
        """
        for _ in range(most):
            try:
                record = os.read(self._fd, _RECORD)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.EPIPE:
                    self.close()
                    raise MonitorError(
                        f"the kernel's log cannot be read any more: {error.strerror}",
                        remedy_of(error.errno, "restart outrace with CAP_SYSLOG"),
                    ) from None
                self._log.forget()
                yield None
                continue
            if not record:
                return
            if (found := self._log.feed(record)) is not None:
                yield found

    def close(self) -> None:
        os.close(self._fd)


@dataclass(slots=True)
class _Report:
    """The lines so far of the kill that is being reported. ``pid``: of the victim, 0 until the line about its cgroup,
    ``task``; ``limited``: the cgroup whose limit was hit, None for the machine.
    """

    invoker_pid: int = 0
    invoker_comm: str = ""
    by_hand: bool = False
    usage: int = 0
    limit: int = 0
    pid: int = 0
    task: Path | None = None
    limited: Path | None = None


class LoggedKill(NamedTuple):
    """A kill, and the victim's cgroup directory (None: not known). ``text``: the line that is never rate limited.
    ``by_hand``: SysRq f asked for it.
    """

    event: OomEvent
    victim_path: Path | None
    text: str = ""
    by_hand: bool = False


class OomLog:
    """Puts the lines of one kill together."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self._hierarchy = hierarchy
        self._report = _Report()
        #: Of the last kill, which those of its group share: its report and pid, and (the group's cgroup, when).
        self._last, self._victim = self._report, (0, 0)
        self._group: tuple[Path, int] | None = None

    def feed(self, record: bytes) -> LoggedKill | None:
        """Take in one record of /dev/kmsg; the kill when it is complete."""
        ts_ns, text = line_of(record)
        if found := _KILLED.match(text):
            return self._killed(ts_ns, found)
        if found := _CONSTRAINT.match(text):
            # A cgroup's name is free text: ",task_memcg=/another" within a name makes the line name two.
            if text.count("oom_memcg=") <= 1 and text.count("task_memcg=") <= 1:
                limited, task, pid = found.groups()
                self._report.limited = None if limited is None else self._path(limited)
                self._report.task, self._report.pid = self._path(task), int(pid)
        elif found := _INVOKED.match(text):
            self._report = _Report(invoker_comm=printable(_bytes(found[1])), by_hand=found[2] == "-1")
        elif found := _WHERE.match(text):
            if self._report.invoker_comm and not self._report.invoker_pid:
                self._report.invoker_pid = int(found[1])
        elif found := _LIMIT.match(text):
            self._report.usage, self._report.limit = int(found[1]) * _KIB, int(found[2]) * _KIB
        elif _NOBODY.match(text):
            self.forget()
        elif found := _GROUP.match(text):
            self._group = self._path(found[1]), ts_ns
        return None

    def forget(self) -> None:
        """No process was killed in the end, or lines were lost: no later kill belongs to the lines so far."""
        self._report, self._group = _Report(), None

    def _killed(self, ts_ns: int, line: re.Match[str]) -> LoggedKill | None:
        pid = int(line[2])
        report, before = self._report, self._victim
        if pid == before[0] and ts_ns - before[1] < _AGAIN_NS:  # it has not gone yet, and is named with its group
            return None
        # Killed with its group, or the line was left out: it may still be there.
        task = report.task if report.pid == pid else self._now_in(pid)
        if self._is_member(ts_ns, task):
            report = self._last
        else:
            if report.pid not in (0, pid):  # a report that came to nothing
                report = _Report()
            # At most 10 reports in 5 s are written: the next kill may come with none, and has no part in this one's.
            self.forget()
            self._last, self._victim = report, (pid, ts_ns)
        return LoggedKill(self._event(report, task, pid, line), task, line.string, report.by_hand)

    def _event(self, report: _Report, task: Path | None, pid: int, line: re.Match[str]) -> OomEvent:
        in_memcg = line[1].startswith("Memory")
        victim, at = self._id(task), self._id(report.limited if in_memcg else None)
        invoker_in = victim if report.invoker_pid == pid else 0
        if report.invoker_pid and not invoker_in:
            invoker_in = self._id(self._now_in(report.invoker_pid))
        found = _HELD.search(line.string)
        held: dict[str, Any] = {}
        for name, n in found.groupdict("0").items() if found else ():
            held[name] = int(n) * (1 if name in _NO_SIZES else _KIB)
        known = {
            "victim_cgroup": victim,
            "oom": at or not in_memcg,  # whose limit it was
            "invoker": report.invoker_pid,
            "rss": held,
        }
        return OomEvent(
            kind="mark",
            ts_ns=time.monotonic_ns(),
            victim_pid=pid,
            victim_tid=pid,
            victim_comm=printable(_bytes(line[3])),
            victim_cgroup=victim,
            invoker_pid=report.invoker_pid,
            invoker_tid=report.invoker_pid,
            invoker_comm=report.invoker_comm,
            invoker_cgroup=invoker_in,
            oom_cgroup=at,
            oom_usage=report.usage,
            oom_limit=report.limit,
            si_code=SI_KERNEL,
            missing=(*NEVER_LOGGED, *(name for name, there in known.items() if not there)),
            **held,
        )

    def _is_member(self, ts_ns: int, task: Path | None) -> bool:
        """Whether this is one of the group that the last kill was extended to."""
        if self._group is None or self._report.invoker_comm:
            return False
        group, since_ns = self._group
        return ts_ns - since_ns <= _GROUP_NS and (task is None or task.is_relative_to(group))

    def _path(self, logged: str) -> Path:
        """A cgroup's directory, from its path in the log."""
        return self._hierarchy.root / os.fsdecode(_bytes(logged)).lstrip("/")

    def _now_in(self, pid: int) -> Path | None:
        try:
            with Process(pid) as process:
                return process.memory_cgroup(self._hierarchy)
        except OSError:
            return None  # no descriptor left to look

    @staticmethod
    def _id(path: Path | None) -> int:
        try:
            return 0 if path is None else cgroupfs.cgroup_id(path)
        except MonitorError:
            return 0
