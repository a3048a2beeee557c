"""Second witnesses of an OOM kill: the kernel's log, and the count that the victim's own cgroup keeps.

Neither decides anything; where one disagrees with the record, that is shown.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.kmsg import Constraint, Killed
from monitor.race.events import Checked

#: A kill is looked for in the kernel's log for this long.
LOGGED_NS = 1_000_000_000
#: The victim's cgroup is asked after this long.
COUNTED_NS = 100_000_000
#: Cgroups whose kills are counted here; those of the distant past are forgotten.
_CGROUPS = 4096


class Witness:
    """Gives a `Checked` for every kill it is told of, from each source there is. ``has_log``: the log can be read."""

    def __init__(self, hierarchy: Hierarchy, has_log: bool, feed: Callable[[Checked], None]) -> None:
        self._hierarchy = hierarchy
        self._has_log = has_log
        self._feed = feed
        self._awaited: dict[int, int] = {}  # pid of a victim -> time of its mark; the log has not told of it yet
        self._logged: dict[int, tuple[int, str]] = {}  # pid -> when the log told of its end; no mark was heard of yet
        self._uncounted: dict[int, tuple[int, int, str]] = {}  # pid -> time of its mark, its cgroup's id and path
        self._kills: Counter[int] = Counter()  # by cgroup id: a cgroup made anew begins at 0

    def marked(self, pid: int, ts_ns: int, cgroup_id: int, path: str) -> None:
        """The OOM killer took a process; its mark was fed before."""
        if self._has_log:
            self._awaited[pid] = ts_ns
            self._match(pid)
        if len(self._kills) >= _CGROUPS:
            self._kills.clear()
        self._kills[cgroup_id] += 1
        self._uncounted[pid] = (ts_ns, cgroup_id, path)

    def read(self, lines: list[Killed | Constraint]) -> None:
        """Lines of the kernel's log about kills. They may come before or after the mark they are about."""
        now = time.monotonic_ns()
        for line in lines:
            if isinstance(line, Killed):
                self._logged[line.pid] = (now, line.text[:200])
                self._match(line.pid)

    def turn(self, now_ns: int) -> None:
        """Ask the counters, and give up on lines that do not come."""
        for pid, (since, cgroup_id, path) in list(self._uncounted.items()):
            if now_ns - since >= COUNTED_NS:
                del self._uncounted[pid]
                self._count(pid, cgroup_id, path, now_ns)
        for pid, since in list(self._awaited.items()):
            if now_ns - since > LOGGED_NS:
                del self._awaited[pid]
                self._feed(Checked(now_ns, "kmsg", pid, False, "the kernel's log has no line about this kill"))
        self._logged = {pid: one for pid, one in self._logged.items() if now_ns - one[0] <= LOGGED_NS}

    def _match(self, pid: int) -> None:
        """The mark and the log's line about one kill agree, if both are there."""
        if pid in self._awaited and pid in self._logged:
            del self._awaited[pid]
            at, text = self._logged.pop(pid)
            self._feed(Checked(at, "kmsg", pid, True, text))

    def _count(self, pid: int, cgroup_id: int, path: str, now_ns: int) -> None:
        directory = self._hierarchy.root / path.lstrip("/")
        try:
            if cgroupfs.cgroup_id(directory) != cgroup_id:
                return  # another one of that name by now
        except cgroupfs.CgroupGone:
            return
        counted = cgroupfs.oom_kills(self._hierarchy, directory)
        if counted is None:
            return
        source = "memory.oom_control" if self._hierarchy.version == 1 else "memory.events"
        detail = f"{path} counts {counted} OOM kills, {self._kills[cgroup_id]} were seen"
        self._feed(Checked(now_ns, source, pid, counted >= self._kills[cgroup_id], detail))
