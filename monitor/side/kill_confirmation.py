"""Confirmation of an OOM kill by two other sources: the kernel's log, and the count of the victim's own cgroup.

Neither decides anything; an incident shows where one disagrees with the record.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.kmsg import Constraint, Invoked, Killed
from monitor.race.events import KMSG, KMSG_BY_HAND, KMSG_PLACE, Checked

#: How long a kill's lines are expected in the kernel's log.
LOGGED_NS = 1_000_000_000
#: The count of the victim's cgroup is read after this long.
COUNTED_NS = 100_000_000
#: A kill is counted microseconds before it is marked: one this close to the first look may be in it or not.
UNSURE_NS = 10_000_000
#: Most cgroups whose kills are counted here; the oldest are forgotten.
_CGROUPS = 4096


class RecordedKill(NamedTuple):
    """What is recorded of a kill: its victim's cgroup, and whose limit it was (None: the machine's)."""

    ts_ns: int
    cgroup_id: int
    path: str
    limit: str | None


class KillConfirmation:
    """Feeds a `Checked` for every kill, from each source there is. ``has_log``: the kernel's log can be read."""

    def __init__(self, hierarchy: Hierarchy, has_log: bool, feed: Callable[[Checked], None]) -> None:
        self._hierarchy = hierarchy
        self._has_log = has_log
        self._feed = feed
        self._awaited: dict[int, RecordedKill] = {}  # by pid of a victim; not in the log yet
        self._logged: dict[int, tuple[int, str]] = {}  # pid -> when the log had its end; no mark yet
        # pid -> when the log had its constraint, which precedes its end, and whether SysRq f asked for the kill
        self._placed: dict[int, tuple[int, Constraint, bool]] = {}
        self._by_hand = False  # the report that the log is in; the kernel writes one after the other (oom_lock)
        self._uncounted: dict[int, RecordedKill] = {}  # by pid
        self._kills: Counter[int] = Counter()  # by cgroup id: a cgroup made anew begins at 0
        self._base: dict[int, tuple[int, int]] = {}  # cgroup id -> when it was first seen, and its count then

    def known(self, cgroup_id: int, path: str) -> None:
        """A cgroup is new here: the kills that it has counted by now are earlier ones."""
        counted = self._ask(cgroup_id, path)
        if counted is None:
            return
        if len(self._base) >= _CGROUPS:
            del self._base[next(iter(self._base))]
        self._base[cgroup_id] = (time.monotonic_ns(), counted)

    def marked(self, pid: int, kill: RecordedKill) -> None:
        """The OOM killer chose a process; its mark was fed before."""
        if self._has_log:
            self._awaited[pid] = kill
            self._match(pid)
        base = self._base.get(kill.cgroup_id)
        if base is not None and kill.ts_ns < base[0] + UNSURE_NS:
            return  # it may be among what was counted then
        if len(self._kills) >= _CGROUPS:
            self._kills.clear()
        self._kills[kill.cgroup_id] += 1
        self._uncounted[pid] = kill

    def read(self, lines: list[Killed | Constraint | Invoked]) -> None:
        """Lines of the kernel's log about kills. They may come before or after the mark they are about."""
        now = time.monotonic_ns()
        for line in lines:
            if isinstance(line, Invoked):
                self._by_hand = line.by_hand
            elif isinstance(line, Constraint):
                self._placed[line.pid] = (now, line, self._by_hand)
            else:
                self._logged[line.pid] = (now, line.text[:200])
                self._match(line.pid)

    def turn(self, now_ns: int) -> None:
        """Read the counters, and give up on lines of the log that do not come."""
        for pid, kill in list(self._uncounted.items()):
            if now_ns - kill.ts_ns >= COUNTED_NS:
                del self._uncounted[pid]
                self._count(pid, kill, now_ns)
        for pid, kill in list(self._awaited.items()):
            if now_ns - kill.ts_ns > LOGGED_NS:
                del self._awaited[pid]
                self._feed(Checked(now_ns, KMSG, pid, False, "the kernel's log has no line about this kill"))
        self._logged = {pid: one for pid, one in self._logged.items() if now_ns - one[0] <= LOGGED_NS}
        self._placed = {pid: one for pid, one in self._placed.items() if now_ns - one[0] <= LOGGED_NS}

    def _match(self, pid: int) -> None:
        """The mark and the log's lines about one kill, if both are there."""
        if pid not in self._awaited or pid not in self._logged:
            return
        kill = self._awaited.pop(pid)
        at, text = self._logged.pop(pid)
        self._feed(Checked(at, KMSG, pid, True, text))
        _, placed, by_hand = self._placed.pop(pid, (0, None, False))
        if placed is not None:  # the kernel writes at most 10 of these in 5 s
            self._feed(Checked(at, KMSG_PLACE, pid, *_agrees(placed, kill)))
        if by_hand:
            self._feed(Checked(at, KMSG_BY_HAND, pid, True, "SysRq f asked for this kill (order=-1)"))

    def _count(self, pid: int, kill: RecordedKill, now_ns: int) -> None:
        counted = self._ask(kill.cgroup_id, kill.path)
        if counted is None:
            return
        source = "memory.oom_control" if self._hierarchy.version == 1 else "memory.events"
        seen, base = self._kills[kill.cgroup_id], self._base.get(kill.cgroup_id, (0, 0))[1]
        earlier = f", {base} of them before it was watched" if base else ""
        detail = f"{kill.path} counts {counted} OOM kills{earlier}, {seen} were seen"
        self._feed(Checked(now_ns, source, pid, counted - base >= seen, detail))

    def _ask(self, cgroup_id: int, path: str) -> int | None:
        """The kills a cgroup has counted; None if it is gone, another one by now, or does not count them."""
        directory = self._hierarchy.root / path.lstrip("/")
        try:
            if cgroupfs.cgroup_id(directory) != cgroup_id:
                return None
        except cgroupfs.CgroupGone:
            return None
        return cgroupfs.oom_kills(self._hierarchy, directory)


def _agrees(placed: Constraint, kill: RecordedKill) -> tuple[bool, str]:
    """Whether the log names the limit and the victim's cgroup that the record does, and what it says."""
    limit = "the machine" if placed.oom_memcg is None else placed.oom_memcg
    same = _same(placed.oom_memcg, kill.limit) and _same(placed.task_memcg, kill.path)
    detail = f"{placed.constraint}: limit of {limit}, victim in {placed.task_memcg}"
    if not same:
        detail += f"; the record: limit of {kill.limit or 'the machine'}, victim in {kill.path}"
    return same, detail


def _same(logged: str | None, ours: str | None) -> bool:
    """Whether two paths are one cgroup. The log's begin at the root of the hierarchy, of which only a part may be
    mounted here; one that is known by its id alone ("#7") says nothing.
    """
    if logged is None or ours is None:
        return logged is ours
    return "#" in ours or ours == "/" or logged == ours or logged.endswith(ours)
