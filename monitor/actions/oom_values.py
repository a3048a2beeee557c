"""oom_score_adj of a pod's processes that outrace changes, and how each gets its own value back.

Two reasons: near a threshold every process of the next victim is raised to 1000, so that the kernel's OOM killer takes
it first (`MarkJournal`); and under enforce each process is given the value of its QoS class (`ScoreNotes`). What the
processes had is noted at the pod's cgroup before the first one is written (`monitor.actions.ledger`): there is nothing
at a process that could hold it. A note has at most 64 KiB, some 1,400 processes.

Without CAP_SYS_RESOURCE a process may be lowered to the least that a process with it ever set (fs/proc/base.c,
__set_oom_adj): a value raised without it may always be set back. So outrace drops it for the write, where it has it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from monitor.actions.changes import identity_of, opened
from monitor.actions.ledger import MARKS, SCORES, WRONG, Ledger, Noted, noted_at
from monitor.errors import MonitorError
from monitor.kernel import cgroup_procs
from monitor.kernel.cgroupfs import CgroupGone, failure
from monitor.kernel.procfs import Process

#: The most there is (OOM_SCORE_ADJ_MAX).
RAISED = 1000
#: What runtimes give the one process of a pod's sandbox, and no other process of a pod. It has nothing to give back,
#: and without it the whole pod is made anew.
SANDBOX = -998
#: Processes of a pod that are raised (28 us each). The kernel kills one at a time.
MOST = 1024
#: A note of so many processes is looked through for ended ones: 30 us each, so not for each process that appears.
_ROOM = 64
_TICKS = os.sysconf("SC_CLK_TCK")
#: Looks for processes that were forked by raised ones while those were set back.
_LOOKS = 8
#: Parents followed up to a changed process. Without one, a raised process gets its container's usual value.
_MOST_PARENTS = 32


@dataclass(frozen=True, slots=True)
class Seen:
    """A process as it was before: when it was started, its value, and the container it was in (`container_of`).
    ``written``: the value that it was given, ``since`` when, in ticks since boot.
    """

    started: int
    old: int
    container: int
    written: int = RAISED
    since: int = 0


@dataclass(slots=True)
class Mark:
    """A pod whose processes were given other values: its cgroup, and what they had before. Of a pod that is marked for
    the OOM killer also those that had 1000 already. ``denied``: how many of them the kernel refused. ``room``: with
    more processes the note is looked through for ended ones.
    """

    cgroup: Path
    identity: str
    uid: str
    processes: dict[int, Seen] = field(default_factory=dict)
    denied: int = 0
    room: int = 0

    @property
    def raised(self) -> int:
        """How many processes have another value than their own."""
        return sum(seen.old != RAISED for seen in self.processes.values())


class Restored(NamedTuple):
    """``restored``: processes that have their value again. ``denied``: the kernel refused (EACCES). ``left``: found in
    the last look, so there may be more.
    """

    restored: int = 0
    denied: int = 0
    left: int = 0

    @property
    def complete(self) -> bool:
        return not self.denied and not self.left


class _Notes:
    """What one reason (``role``) for other values has noted, each pod's at its cgroup."""

    def __init__(self, state_dir: Path, role: str) -> None:
        self._ledger = Ledger(state_dir, role)

    def _begin(self, cgroup: Path, uid: str) -> Mark:
        """With what is left of a mark of this very cgroup that could not be set back. Raises OSError."""
        mark = Mark(cgroup, identity_of(cgroup), uid, room=_ROOM)
        mark.processes = noted_in(cgroup, lambda one: one.attribute == self._ledger.attribute)
        return mark

    def _add(self, mark: Mark, new: Mapping[int, Seen]) -> None:
        """Note these processes too, before they are written. Raises OSError, and then nothing may be."""
        kept = mark.processes
        if len(kept) + len(new) > mark.room:
            last = {seen.container: (pid, seen) for pid, seen in kept.items()}  # what they left gets its value
            kept = {**dict(last.values()), **running(kept)}
            mark.room = 2 * (len(kept) + len(new)) + _ROOM
        made = {**kept, **new}
        rows = [[pid, s.started, s.old, s.container, s.written, s.since] for pid, s in made.items()]
        with opened(mark.cgroup) as directory:
            if identity_of(mark.cgroup) != mark.identity:
                raise FileNotFoundError(errno.ENOENT, "the cgroup was made anew", str(mark.cgroup))
            self._ledger.note(directory, {"uid": mark.uid, "processes": rows})
        mark.processes = made

    def restore(self, mark: Mark) -> Restored:
        """`set_back`; the note goes, unless a process could not be set back. Raises OSError, MonitorError."""
        found = set_back(mark)
        if found.complete:
            with suppress(OSError, *WRONG), opened(mark.cgroup) as directory:
                if identity_of(mark.cgroup) == mark.identity and self._ledger.is_own(directory):
                    self._ledger.forget(directory)
        return found


def noted_in(cgroup: Path, is_wanted: Callable[[Noted], bool]) -> dict[int, Seen]:
    """The processes in these notes at a cgroup."""
    found = dict[int, Seen]()
    for one in noted_at(cgroup, lambda _: None):
        if is_wanted(one):
            with suppress(OSError, *WRONG):
                found |= parsed(one).processes
    return found


def parsed(one: Noted) -> Mark:
    """What is noted at a cgroup. Raises OSError or one of `ledger.WRONG`."""
    uid, rows = one.body["uid"], one.body["processes"]
    if not isinstance(uid, str) or not all(isinstance(number, int) for row in rows for number in row):
        raise ValueError("not what a mark is made of")
    seen = {pid: Seen(*rest) for pid, *rest in rows}
    if not all(-RAISED <= value <= RAISED for one in seen.values() for value in (one.old, one.written)):
        raise ValueError("no oom_score_adj")
    return Mark(one.path, identity_of(one.path), uid, seen)


def running(processes: Mapping[int, Seen]) -> dict[int, Seen]:
    """Those of them that have not ended."""
    found = dict[int, Seen]()
    for pid, seen in processes.items():
        with Process(pid) as process:
            if process.started() == seen.started:
                found[pid] = seen
    return found


def set_back(mark: Mark) -> Restored:
    """Give every process of the pod its own value, also those that left it and those that were forked since. Raises
    OSError, MonitorError.
    """
    restored = left = 0
    pids = {pid: seen.container for pid, seen in mark.processes.items()} | dict(_inside(mark))
    bases = _bases(mark)
    denied: set[int] = set()
    with without(CAP_SYS_RESOURCE):
        for _ in range(_LOOKS):
            left = sum(_set_back(mark, pid, container, bases, denied) for pid, container in pids.items())
            restored += left
            if not left:
                break
            pids = dict(_inside(mark))
    for pid in list(denied):  # a program with the capability wrote since
        denied.discard(pid)
        restored += _set_back(mark, pid, 0, bases, denied)
    return Restored(restored, len(denied), left)


def _inside(mark: Mark) -> list[tuple[int, int]]:
    """Which processes are in the pod's cgroup, if that is still the one that was marked."""
    with suppress(FileNotFoundError, CgroupGone):
        return pids_of(mark.cgroup) if identity_of(mark.cgroup) == mark.identity else []
    return []


def pids_of(cgroup: Path) -> list[tuple[int, int]]:
    """Each process, and the container that it is in. Raises OSError, MonitorError."""
    try:
        return [(pid, container_of(cgroup, path)) for path, pids in cgroup_procs.walk(cgroup) for pid in pids]
    except OSError as error:
        raise failure(cgroup / "cgroup.procs", "read", error) from error


def _set_back(mark: Mark, pid: int, container: int, bases: dict[int | None, int], denied: set[int]) -> bool:
    """Whether one process was set back: not one that has its own value, or another program's."""
    if pid in denied:
        return False
    with Process(pid) as process:
        now, started = process.oom_score_adj(), process.started()
        if now is None or started is None:
            return False  # gone
        known = mark.processes.get(pid)
        if known is not None and known.started == started:
            old = known.old if now == known.written else now
        else:
            old = _inherited(mark, process, started, now, bases.get(container, bases.get(None, now)))
        try:
            return old != now and process.set_oom_score_adj(old)
        except PermissionError:
            denied.add(pid)
            return False


def _inherited(mark: Mark, process: Process, started: int, now: int, base: int) -> int:
    """What a process would have that was forked by a changed one: what its parent had, or the parent of that; of a
    raised one whose parents are gone ``base``. ``now``: its value, which stays where it is inherited from none.
    """
    if now != RAISED and not any(seen.written == now for seen in mark.processes.values()):
        return now
    parent = process.parent()
    for _ in range(_MOST_PARENTS):
        if not parent:
            break
        with Process(parent) as above:
            known = mark.processes.get(parent)
            if known is not None and above.started() == known.started:
                return known.old if now == known.written and started >= known.since else now
            parent = above.parent()
    return base if now == RAISED else now


def _bases(mark: Mark) -> dict[int | None, int]:
    """What a process has whose parents are gone: what most had in its container; None: in the rest of the pod."""
    counts: dict[int | None, Counter[int]] = {}
    for seen in mark.processes.values():
        if seen.old > SANDBOX and not seen.since:  # else it is not raised, and more may have 1000 of their own
            for key in (seen.container, None):
                counts.setdefault(key, Counter())[seen.old] += 1
    return {key: max(counted.items(), key=lambda item: (item[1], item[0]))[0] for key, counted in counts.items()}


CAP_SYS_RESOURCE = 24
#: _LINUX_CAPABILITY_VERSION_3 (linux/capability.h): two words of 32 capabilities.
_VERSION = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def without(capability: int) -> Iterator[None]:
    """This thread alone does without it meanwhile; nothing changes where it does not have it. Raises OSError."""
    words = (ctypes.c_uint32 * 6)()  # twice: effective, permitted, inheritable
    _call(_libc.capget, words)
    at, bit = capability // 32 * 3, 1 << capability % 32
    had = words[at] & bit
    if had:
        words[at] &= ~bit
        _call(_libc.capset, words)
    try:
        yield
    finally:
        if had:
            words[at] |= bit
            _call(_libc.capset, words)


def _call(function: Callable[..., int], words: ctypes.Array[ctypes.c_uint32]) -> None:
    if function((ctypes.c_uint32 * 2)(_VERSION, 0), words):  # pid 0: the calling thread
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def container_of(pod: Path, cgroup: str) -> int:
    """A number for the first directory below the pod's: limits of a container count all that is below. The pod itself
    has 0. (The pod's author chooses the names, and a note has room for numbers.)
    """
    return zlib.crc32(os.fsencode(cgroup.removeprefix(str(pod)).lstrip("/").partition("/")[0]))


class MarkJournal(_Notes):
    """The marks of the daemon on ``state_dir`` for the OOM killer. One thread uses it at a time."""

    def __init__(self, state_dir: Path, most: int = MOST) -> None:
        super().__init__(state_dir, MARKS)
        self._most = most

    def mark(self, cgroup: Path, uid: str) -> Mark:
        """Raise every process of this pod. Raises OSError where nothing can be noted or the pod is gone, and then
        nothing is raised; MonitorError where its processes cannot be listed.
        """
        mark = self._begin(cgroup, uid)
        self.look_again(mark)
        return mark

    def look_again(self, mark: Mark) -> int:
        """Raise what is new and not raised, and keep its value; how many that was. A process that inherited the value
        is left to `restore`. Raises as `mark` does.
        """
        found: dict[int, Seen] = {}
        inside = dict(pids_of(mark.cgroup))
        for pid, container in inside.items():
            seen, known = _seen(pid, container), mark.processes.get(pid)
            if seen is not None and (known is None or known.started != seen.started):
                found[pid] = seen
        before = [(s.container, s.old) for s in mark.processes.values() if s.old != RAISED]
        may = may_raise(before, [(s.container, s.old) for s in found.values() if s.old > SANDBOX])
        lower = [pid for pid, s in found.items() if SANDBOX < s.old < RAISED and may(s.container, s.old)]
        if mark.raised + len(lower) > self._most:
            mark.processes = running(mark.processes)
        qos = noted_in(mark.cgroup, lambda one: one.role == SCORES) if lower else {}
        new = {pid: _own(found[pid], qos.get(pid)) for pid in lower[: max(0, self._most - mark.raised)]}
        if not mark.raised:  # later it may be inherited, which `restore` finds out
            now = mark.processes | {pid: seen for pid, seen in found.items() if seen.old == RAISED}
            mark.processes = {pid: seen for pid, seen in now.items() if pid in inside}
        if not new:
            return 0
        self._add(mark, new)
        raised = 0
        with without(CAP_SYS_RESOURCE):
            for pid, seen in new.items():
                try:
                    with Process(pid) as process:
                        raised += process.started() == seen.started and process.set_oom_score_adj(RAISED)
                except (PermissionError, MonitorError):
                    mark.denied += 1
        return raised


def _seen(pid: int, container: int) -> Seen | None:
    with Process(pid) as process:
        started, now = process.started(), process.oom_score_adj()
    return None if started is None or now is None else Seen(started, now, container)


def _own(seen: Seen, given: Seen | None) -> Seen:
    """With the process's own value, where the one that it has is outrace's (`monitor.actions.oomadj`)."""
    if given is None or (given.started, given.written) != (seen.started, seen.old):
        return seen
    return replace(seen, old=given.old)


def may_raise(before: Iterable[tuple[int, int]], found: Iterable[tuple[int, int]]) -> Callable[[int, int], bool]:
    """Whether a process in this container with this oom_score_adj may be raised, without another one dying at the
    container's own limit. There the kernel compares the same values: where a container ranks its processes (a
    database's server -100, its workers 0), all of them at 1000 would cost the largest, which may be the one that it
    protects. Such a container is left alone. ``before``: what those had that are raised; ``found``: what others have.
    In a container with raised processes a new one is raised if its value is no lower than theirs were: else it
    would die after them.
    """
    raised, apart = dict[int, int](), dict[int, set[int]]()
    for container, value in before:
        raised[container] = max(value, raised.get(container, value))
    for container, value in found:
        apart.setdefault(container, set()).add(value)

    def may(container: int, value: int) -> bool:
        return value >= raised[container] if container in raised else len(apart[container]) == 1

    return may


def seen_now(started: int, is_now: int, should: int, pod: Path, cgroup: str) -> Seen:
    """A process in ``cgroup`` that is about to be given the value that it should have."""
    since = int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)
    return Seen(started, is_now, container_of(pod, cgroup), should, since)


class ScoreNotes(_Notes):
    """Notes what processes had before they are given the value of their QoS class."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__(state_dir, SCORES)
        self._marks: dict[Path, Mark] = {}

    def note(self, cgroup: Path, uid: str, wanted: Mapping[int, Seen]) -> None:
        """Before it is written. Raises OSError, and then nothing may be."""
        mark = self._marks.get(cgroup)
        if mark is None or mark.identity != identity_of(cgroup):
            mark = self._begin(cgroup, uid)
            self._marks = {path: one for path, one in self._marks.items() if path.exists()} | {cgroup: mark}
        self._add(mark, {pid: _own(seen, mark.processes.get(pid)) for pid, seen in wanted.items()})

    def close(self, timeout_s: float = 2.0) -> None:
        """Give every process its own value back. What cannot be in that time is noted, for the next start."""
        until = time.monotonic() + timeout_s
        for mark in self._marks.values():
            if time.monotonic() > until:
                return
            with suppress(OSError, MonitorError):
                self.restore(mark)
        self._marks.clear()
