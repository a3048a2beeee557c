"""oom_score_adj 1000 for every process of a pod, so that the kernel's OOM killer takes it first; and back, exactly.

What the processes had is noted at the pod's cgroup before the first one is raised (`monitor.actions.ledger`): there is
nothing at a process that could hold it. A note has at most 64 KiB, some 2,000 processes: of a pod with more that have
1000 already none is raised.

Without CAP_SYS_RESOURCE a process may be lowered to the least that somebody with it ever set (fs/proc/base.c,
__set_oom_adj): raised without it, it may always go back. So it is done without, whoever has it.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from monitor.actions.changes import identity_of, opened
from monitor.actions.ledger import MARKS, WRONG, Ledger, Noted, noted_at
from monitor.actions.mark_choice import container_of, largest, may_raise
from monitor.errors import MonitorError
from monitor.kernel import cgroup_procs
from monitor.kernel.capabilities import CAP_SYS_RESOURCE, without
from monitor.kernel.cgroupfs import GONE, failure
from monitor.kernel.procfs import Process

#: The most there is (OOM_SCORE_ADJ_MAX).
RAISED = 1000
#: What runtimes give the one process of a pod's sandbox, and nobody else in a pod. It has nothing to give back, and
#: without it the whole pod is made anew.
_SANDBOX = -998
#: Processes of a pod that are raised (28 us each): the largest, where it has more. The kernel kills one at a time.
MOST = 1024
#: Looks for processes that were forked by raised ones while those were set back.
_LOOKS = 8
#: From a process to one that was raised itself: of a longer chain the least there was in its cgroup will do.
_MOST_PARENTS = 32


@dataclass(frozen=True, slots=True)
class Seen:
    """A process as it was before: when it was started, its value, and the container it was in (`container_of`)."""

    started: int
    old: int
    container: int


@dataclass(slots=True)
class Mark:
    """A pod that is marked: its cgroup, and what those of its processes had that were raised, or had 1000 already.
    ``denied``: how many of them the kernel refused.
    """

    cgroup: Path
    identity: str
    uid: str
    processes: dict[int, Seen] = field(default_factory=dict)
    denied: int = 0

    @property
    def raised(self) -> int:
        """How many processes have another value than their own."""
        return sum(seen.old != RAISED for seen in self.processes.values())


@dataclass(frozen=True, slots=True)
class Restored:
    """``restored``: processes that have their value again; ``inherited``: of them, those that appeared raised.
    ``foreign``: somebody else wrote another value since. ``denied``: the kernel refused (EACCES). ``left``: found in
    the last look, so there may be more.
    """

    restored: int = 0
    inherited: int = 0
    foreign: int = 0
    denied: int = 0
    left: int = 0

    @property
    def complete(self) -> bool:
        return not self.denied and not self.left


class MarkJournal:
    """The marks of the daemon on ``state_dir``. One thread uses it at a time."""

    def __init__(self, state_dir: Path, most: int = MOST) -> None:
        self._ledger = Ledger(state_dir, MARKS)
        self._most = most

    def mark(self, cgroup: Path, uid: str) -> Mark:
        """Raise every process of this pod. Raises OSError where nothing can be noted or the pod is gone, and then
        nothing is raised; MonitorError where its processes cannot be listed.
        """
        mark = Mark(cgroup, identity_of(cgroup), uid)
        mark.processes = self._left(cgroup)
        self.look_again(mark)
        return mark

    def look_again(self, mark: Mark) -> int:
        """Raise what is new and not raised, and keep its value; how many that was. A process that inherited the value
        is left to `restore`. Raises as `mark` does.
        """
        found: dict[int, Seen] = {}
        inside = dict(_pids(mark.cgroup))
        for pid, container in inside.items():
            seen, known = _seen(pid, container), mark.processes.get(pid)
            if seen is not None and (known is None or known.started != seen.started):
                found[pid] = seen
        before = [(s.container, s.old) for s in mark.processes.values() if s.old != RAISED]
        may = may_raise(before, [(s.container, s.old) for s in found.values() if s.old > _SANDBOX])
        lower = [pid for pid, s in found.items() if _SANDBOX < s.old < RAISED and may(s.container, s.old)]
        if mark.raised + len(lower) > self._most:
            mark.processes = {pid: seen for pid, seen in mark.processes.items() if _started(pid) == seen.started}
        new = {pid: found[pid] for pid in largest(lower, self._most - mark.raised)}
        if not mark.raised:  # later it may be inherited, which `restore` finds out
            now = mark.processes | {pid: seen for pid, seen in found.items() if seen.old == RAISED}
            mark.processes = {pid: seen for pid, seen in now.items() if pid in inside}
        if not new:
            return 0
        mark.processes |= new
        self._store(mark)
        raised = 0
        with without(CAP_SYS_RESOURCE):
            for pid, seen in new.items():
                try:
                    with Process(pid) as process:
                        raised += process.started() == seen.started and process.set_oom_score_adj(RAISED)
                except (PermissionError, MonitorError):
                    mark.denied += 1
        return raised

    def restore(self, mark: Mark) -> Restored:
        """`set_back`; the mark is forgotten, unless a process could not be set back. Raises OSError, MonitorError."""
        found = set_back(mark)
        if found.complete:
            with suppress(OSError), opened(mark.cgroup) as directory:
                if identity_of(mark.cgroup) == mark.identity:
                    self._ledger.forget(directory)
        return found

    def _left(self, cgroup: Path) -> dict[int, Seen]:
        """Of a mark of this very cgroup that could not be set back: what its processes had before counts."""
        with suppress(*WRONG):
            for one in noted_at(cgroup, lambda _: None):
                if one.attribute == self._ledger.attribute:
                    return parsed(one).processes
        return {}

    def _store(self, mark: Mark) -> None:
        processes = [[pid, s.started, s.old, s.container] for pid, s in mark.processes.items()]
        with opened(mark.cgroup) as directory:
            if identity_of(mark.cgroup) != mark.identity:
                raise FileNotFoundError(errno.ENOENT, "the cgroup was made anew", str(mark.cgroup))
            self._ledger.note_body(directory, {"uid": mark.uid, "processes": processes})


def parsed(one: Noted) -> Mark:
    """The mark that is noted at a cgroup. Raises one of `ledger.WRONG`."""
    uid, rows = one.body["uid"], one.body["processes"]
    if not isinstance(uid, str) or not all(isinstance(number, int) for row in rows for number in row):
        raise ValueError("not what a mark is made of")
    seen = {pid: Seen(started, old, container) for pid, started, old, container in rows}
    if not all(-RAISED <= one.old <= RAISED for one in seen.values()):
        raise ValueError("no oom_score_adj")
    return Mark(one.path, identity_of(one.path), uid, seen)


def set_back(mark: Mark) -> Restored:
    """Give every process of the pod its own value, also those that left it and those that were forked since. Raises
    MonitorError.
    """
    total: Counter[str] = Counter()
    left = 0
    pids = {pid: seen.container for pid, seen in mark.processes.items()} | dict(_inside(mark))
    bases = _bases(mark)
    denied: set[int] = set()
    with without(CAP_SYS_RESOURCE):
        for look in range(_LOOKS):
            fates = Counter(_set_back(mark, pid, container, bases, denied) for pid, container in pids.items())
            if look:
                del fates["foreign"]  # counted in the first look
            total += fates
            left = fates["own"] + fates["inherited"]
            if not left:
                break
            pids = dict(_inside(mark))
    for pid in list(denied):  # a program with the capability wrote since
        denied.discard(pid)
        total[_set_back(mark, pid, 0, bases, denied)] += 1
    restored = total["own"] + total["inherited"]
    return Restored(restored, total["inherited"], total["foreign"], len(denied), left)


def _inside(mark: Mark) -> Iterable[tuple[int, int]]:
    """Which processes are in the pod's cgroup, if that is still the one that was marked."""
    try:
        return _pids(mark.cgroup) if identity_of(mark.cgroup) == mark.identity else ()
    except OSError as error:
        if error.errno not in GONE:
            raise failure(mark.cgroup, "read", error) from error
        return ()


def _pids(cgroup: Path) -> list[tuple[int, int]]:
    """Each process, and the container that it is in."""
    try:
        return [(pid, container_of(cgroup, path)) for path, pids in cgroup_procs.walk(cgroup) for pid in pids]
    except OSError as error:
        raise failure(cgroup / "cgroup.procs", "read", error) from error


def _seen(pid: int, container: int) -> Seen | None:
    with Process(pid) as process:
        started, now = process.started(), process.oom_score_adj()
    return None if started is None or now is None else Seen(started, now, container)


def _started(pid: int) -> int | None:
    with Process(pid) as process:
        return process.started()


def _set_back(mark: Mark, pid: int, container: int, bases: dict[int | None, int], denied: set[int]) -> str:
    """What became of one process: "own" or "inherited" (set back), "foreign", or "" (nothing to do)."""
    if pid in denied:
        return ""
    with Process(pid) as process:
        now, started = process.oom_score_adj(), process.started()
        if now is None or started is None:
            return ""  # gone
        known = mark.processes.get(pid)
        own = known is not None and known.started == started
        if known is not None and own:
            if now != RAISED:
                return "foreign" if now != known.old else ""
            old = known.old
        elif now != RAISED:
            return ""
        else:
            old = _inherited(mark, process, container, bases)
        if old == RAISED:
            return ""
        try:
            if not process.set_oom_score_adj(old):
                return ""
        except PermissionError:
            denied.add(pid)
            return ""
        return "own" if own else "inherited"


def _inherited(mark: Mark, process: Process, container: int, bases: dict[int | None, int]) -> int:
    """What a process would have that was forked by a raised one: what its parent had, or the parent of that."""
    parent = process.parent()
    for _ in range(_MOST_PARENTS):
        if not parent:
            break
        with Process(parent) as above:
            known = mark.processes.get(parent)
            if known is not None and above.started() == known.started:
                return known.old
            parent = above.parent()
    return bases.get(container, bases.get(None, RAISED))


def _bases(mark: Mark) -> dict[int | None, int]:
    """What a process has whose parents are gone: what most had in its container; None: in the rest of the pod."""
    counts: dict[int | None, Counter[int]] = {}
    for seen in mark.processes.values():
        if seen.old > _SANDBOX:
            for key in (seen.container, None):
                counts.setdefault(key, Counter())[seen.old] += 1
    return {key: max(counted.items(), key=lambda item: (item[1], item[0]))[0] for key, counted in counts.items()}
