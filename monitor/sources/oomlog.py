"""OOM kills as far as they can be known without BPF: the kernel's log line by line, each kill one record.

The record has the shape of `OomEvent`. What the log does not have (rate limited after 10 reports in 5 s) is 0 or "",
and named in ``missing``; nothing is guessed. A kill is dated when its line is read, an upper bound: the log has a clock
of its own, which goes apart from CLOCK_MONOTONIC by 0.5 s a day (measured).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.kmsg import Constraint, Invoked, Killed, line_of, parse, path_of
from monitor.kernel.procfs import Process
from monitor.kernel.wire import SI_KERNEL, OomEvent

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
#: A victim is named again as a member of its group, if it has not gone by then.
_AGAIN_NS = 5_000_000_000


@dataclass(slots=True)
class _Report:
    """The lines so far of the kill that is being reported."""

    invoker_pid: int = 0
    invoker_comm: str = ""
    usage: int = 0
    limit: int = 0


class LoggedKill(NamedTuple):
    """A kill, what is ``missing`` of it, and the victim's cgroup directory (None: not known)."""

    event: OomEvent
    missing: tuple[str, ...]
    victim_path: Path | None


class OomLog:
    """Puts the lines of one kill together. ``index`` gives a watched cgroup's place in the table by its id."""

    def __init__(self, hierarchy: Hierarchy, index: Callable[[int], int | None]) -> None:
        self._hierarchy = hierarchy
        self._index = index
        self._report = _Report()
        self._constraint: Constraint | None = None
        #: Of the last kill, which those of its group share: its report, where, and (the group's cgroup, when).
        self._last: tuple[_Report, Constraint | None] = (self._report, None)
        self._group: tuple[Path, int] | None = None
        self._victims: dict[int, int] = {}  # pid -> the log's time

    def feed(self, record: bytes) -> LoggedKill | None:
        """Take in one record of /dev/kmsg; the kill when it is complete."""
        line = parse(record)
        if isinstance(line, Killed):
            return self._killed(line)
        if isinstance(line, Constraint):
            self._constraint = line
            return None
        if isinstance(line, Invoked):
            self._report, self._constraint = _Report(invoker_comm=line.comm), None
            return None
        ts_ns, text = line_of(record)
        if found := _WHERE.match(text):
            if self._report.invoker_comm and not self._report.invoker_pid:
                self._report.invoker_pid = int(found[1])
        elif found := _LIMIT.match(text):
            self._report.usage, self._report.limit = int(found[1]) * _KIB, int(found[2]) * _KIB
        elif _NOBODY.match(text):
            self.forget()
        elif found := _GROUP.match(text):
            self._group = self._hierarchy.root / path_of(found[1]).lstrip("/"), ts_ns
        return None

    def forget(self) -> None:
        """No process was killed in the end, or lines were lost: no later kill belongs to the lines so far."""
        self._report, self._constraint, self._group = _Report(), None, None

    def _killed(self, line: Killed) -> LoggedKill | None:
        self._victims = {pid: at for pid, at in self._victims.items() if line.ts_ns - at < _AGAIN_NS}
        if line.pid in self._victims:
            return None
        self._victims[line.pid] = line.ts_ns
        report, task, limit = self._reported(line)
        victim, at = self._id(task), self._id(limit)
        found = _HELD.search(line.text)
        held: dict[str, Any] = {}
        for name, n in found.groupdict("0").items() if found else ():
            held[name] = int(n) * (1 if name in _NO_SIZES else _KIB)
        known = {
            "victim_cgroup": victim,
            "oom": at or not line.in_memcg,  # whose limit it was
            "invoker": report.invoker_pid,
            "rss": held,
        }
        event = OomEvent(
            kind="mark",
            ts_ns=time.monotonic_ns(),
            victim_pid=line.pid,
            victim_tid=line.pid,
            victim_comm=line.comm,
            victim_cgroup=victim,
            domain=self._index(victim) if victim else None,
            invoker_pid=report.invoker_pid,
            invoker_tid=report.invoker_pid,
            invoker_comm=report.invoker_comm,
            invoker_cgroup=self._of_process(report.invoker_pid, victim if report.invoker_pid == line.pid else 0),
            oom_cgroup=at,
            oom_usage=report.usage,
            oom_limit=report.limit,
            si_code=SI_KERNEL,
            **held,
        )
        return LoggedKill(event, (*NEVER_LOGGED, *(name for name, there in known.items() if not there)), task)

    def _reported(self, line: Killed) -> tuple[_Report, Path | None, Path | None]:
        """The report that a kill belongs to; the cgroups of the victim and of the limit that was hit."""
        constraint = self._constraint
        task, limit = self._cgroups(line, constraint)
        if self._is_member(line, task):
            report, constraint = self._last
            return report, *self._cgroups(line, constraint)
        if constraint is not None and constraint.pid != line.pid:  # a report that came to nothing
            self.forget()
            constraint = None
            task, limit = self._cgroups(line, None)
        report = self._report
        # At most 10 reports in 5 s are written: the next kill may come with none, and has no part in this one's.
        self.forget()
        self._last = report, constraint
        return report, task, limit

    def _is_member(self, line: Killed, task: Path | None) -> bool:
        """Whether this is one of the group that the last kill was extended to."""
        if self._group is None or self._report.invoker_comm:
            return False
        group, since_ns = self._group
        return line.ts_ns - since_ns <= _GROUP_NS and (task is None or task.is_relative_to(group))

    def _cgroups(self, line: Killed, constraint: Constraint | None) -> tuple[Path | None, Path | None]:
        """The cgroups of the victim and of the limit that was hit."""
        root, limit = self._hierarchy.root, None
        if constraint is not None and constraint.oom_memcg is not None and line.in_memcg:
            limit = root / constraint.oom_memcg.lstrip("/")
        if constraint is not None and constraint.pid == line.pid:
            return root / constraint.task_memcg.lstrip("/"), limit
        return self._now_in(line.pid), limit  # killed with its group, or the line was left out: it may still be there

    def _of_process(self, pid: int, known: int) -> int:
        return known if known or not pid else self._id(self._now_in(pid))

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
        except cgroupfs.CgroupGone:
            return 0
