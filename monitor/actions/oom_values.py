"""oom_score_adj of a pod's processes that outrace has changed, and how each gets its own value back.

Without CAP_SYS_RESOURCE a process may be lowered to the least that a process with it ever set (fs/proc/base.c,
__set_oom_adj): a value raised without it may always be set back. So outrace drops it for the write, where it has it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from monitor.actions.changes import identity_of, opened
from monitor.actions.ledger import WRONG, Ledger, Noted, noted_at
from monitor.kernel import cgroup_procs
from monitor.kernel.cgroupfs import GONE, failure
from monitor.kernel.procfs import Process

#: The most there is (OOM_SCORE_ADJ_MAX).
RAISED = 1000
#: What runtimes give the one process of a pod's sandbox, and no other process of a pod. It has nothing to give back,
#: and without it the whole pod is made anew.
SANDBOX = -998
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
    the OOM killer also those that had 1000 already. ``denied``: how many of them the kernel refused.
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
    ``foreign``: another program wrote another value since. ``denied``: the kernel refused (EACCES). ``left``: found in
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


def store(ledger: Ledger, mark: Mark) -> None:
    """Note it at its cgroup. Raises OSError, and then nothing more may be written."""
    rows = [[pid, s.started, s.old, s.container, s.written, s.since] for pid, s in mark.processes.items()]
    with opened(mark.cgroup) as directory:
        if identity_of(mark.cgroup) != mark.identity:
            raise FileNotFoundError(errno.ENOENT, "the cgroup was made anew", str(mark.cgroup))
        ledger.note_body(directory, {"uid": mark.uid, "processes": rows})


def restore(ledger: Ledger, mark: Mark) -> Restored:
    """`set_back`; the note goes, unless a process could not be set back. Raises OSError, MonitorError."""
    found = set_back(mark)
    if found.complete:
        with suppress(OSError, *WRONG), opened(mark.cgroup) as directory:
            if identity_of(mark.cgroup) == mark.identity and ledger.is_own(directory):
                ledger.forget(directory)
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
        return pids_of(mark.cgroup) if identity_of(mark.cgroup) == mark.identity else ()
    except OSError as error:
        if error.errno not in GONE:
            raise failure(mark.cgroup, "read", error) from error
        return ()


def pids_of(cgroup: Path) -> list[tuple[int, int]]:
    """Each process, and the container that it is in."""
    try:
        return [(pid, container_of(cgroup, path)) for path, pids in cgroup_procs.walk(cgroup) for pid in pids]
    except OSError as error:
        raise failure(cgroup / "cgroup.procs", "read", error) from error


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
            if now != known.written:
                return "foreign" if now != known.old else ""
            old = known.old
        else:
            old = _inherited(mark, process, started, now, bases.get(container, bases.get(None, now)))
        if old == now:
            return ""
        try:
            if not process.set_oom_score_adj(old):
                return ""
        except PermissionError:
            denied.add(pid)
            return ""
        return "own" if own else "inherited"


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


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Word(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextmanager
def without(capability: int) -> Iterator[None]:
    """This thread alone does without it meanwhile; nothing changes where it does not have it. Raises OSError."""
    words = (_Word * 2)()
    _call(_libc.capget, words)
    word, bit = words[capability // 32], 1 << capability % 32
    had = word.effective & bit
    if had:
        word.effective &= ~bit
        _call(_libc.capset, words)
    try:
        yield
    finally:
        if had:
            word.effective |= bit
            _call(_libc.capset, words)


def _call(function: Callable[..., int], words: ctypes.Array[_Word]) -> None:
    if function(ctypes.byref(_Header(_VERSION, 0)), words):  # pid 0: the calling thread
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def container_of(pod: Path, cgroup: str) -> int:
    """A number for the first directory below the pod's: limits of a container count all that is below. The pod itself
    has 0. (The pod's author chooses the names, and a note has room for numbers.)
    """
    return zlib.crc32(os.fsencode(cgroup.removeprefix(str(pod)).lstrip("/").partition("/")[0]))
