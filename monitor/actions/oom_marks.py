"""oom_score_adj 1000 for every process of a pod, so that the kernel's OOM killer takes it first; and back, exactly.

What the processes had is in ``STATE/marks`` before the first one is raised: one file for a pod, because a file for each
process (`monitor.actions.changes`) is two flushes of the disk for each. None here: the values end with the kernel that
has them.

Without CAP_SYS_RESOURCE a process may be lowered to the least that somebody with it ever set (fs/proc/base.c,
__set_oom_adj): raised without it, it may always go back. So it is done without, whoever has it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from monitor import documents
from monitor.actions.changes import boot_id, identity_of, is_seen
from monitor.actions.mark_choice import largest, may_raise
from monitor.actions.oomadj import Logger
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
    """A process as it was before: when it was started, its value, and the cgroup it was in."""

    started: int
    old: int
    cgroup: str


@dataclass(slots=True)
class Mark:
    """A pod that is marked: its cgroup, and what those of its processes had that were raised, or had 1000 already.
    ``denied``: how many of them the kernel refused.
    """

    cgroup: Path
    identity: str
    uid: str
    boot: str
    processes: dict[int, Seen] = field(default_factory=dict)
    denied: int = 0

    @property
    def raised(self) -> int:
        """How many processes have another value than their own."""
        return sum(seen.old != RAISED for seen in self.processes.values())

    @property
    def name(self) -> str:
        return hashlib.sha256(os.fsencode(self.cgroup)).hexdigest()[:32] + ".json"


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
    """The marks below ``state_dir``. One thread uses it at a time."""

    def __init__(self, state_dir: Path, most: int = MOST) -> None:
        self.path = state_dir / "marks"
        self._most = most
        self._boot = boot_id()

    def mark(self, cgroup: Path, uid: str) -> Mark:
        """Raise every process of this pod. Raises OSError where the journal cannot be written or the pod is gone, and
        then nothing is raised; MonitorError where its processes cannot be listed.
        """
        mark = Mark(cgroup, identity_of(cgroup), uid, self._boot)
        before = self._left(mark)
        if before is not None:
            mark.processes = before.processes
        self.look_again(mark)
        return mark

    def look_again(self, mark: Mark) -> int:
        """Raise what is new and not raised, and keep its value; how many that was. A process that inherited the value
        is left to `restore`. Raises as `mark` does.
        """
        found: dict[int, Seen] = {}
        inside = dict(_pids(mark.cgroup))
        for pid, cgroup in inside.items():
            seen, known = _seen(pid, cgroup), mark.processes.get(pid)
            if seen is not None and (known is None or known.started != seen.started):
                found[pid] = seen
        pod, before = mark.cgroup, [(s.cgroup, s.old) for s in mark.processes.values() if s.old != RAISED]
        may = may_raise(pod, before, [(s.cgroup, s.old) for s in found.values() if s.old > _SANDBOX])
        lower = [pid for pid, s in found.items() if _SANDBOX < s.old < RAISED and may(s.cgroup, s.old)]
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
        """Give every process of the pod its own value, also those that left it and those that were forked since. The
        mark is forgotten, unless one could not be set back. Raises MonitorError.
        """
        if mark.boot != self._boot:
            self._forget(mark)
            return Restored()
        total: Counter[str] = Counter()
        left = 0
        pids = {pid: seen.cgroup for pid, seen in mark.processes.items()} | dict(self._inside(mark))
        bases = _bases(mark)
        denied: set[int] = set()
        with without(CAP_SYS_RESOURCE):
            for look in range(_LOOKS):
                fates = Counter(_set_back(mark, pid, cgroup, bases, denied) for pid, cgroup in pids.items())
                if look:
                    del fates["foreign"]  # counted in the first look
                total += fates
                left = fates["own"] + fates["inherited"]
                if not left:
                    break
                pids = dict(self._inside(mark))
        for pid in list(denied):  # somebody with the capability wrote since
            denied.discard(pid)
            total[_set_back(mark, pid, "", bases, denied)] += 1
        restored = total["own"] + total["inherited"]
        found = Restored(restored, total["inherited"], total["foreign"], len(denied), left)
        if found.complete and is_seen(mark.cgroup.parent):
            self._forget(mark)
        return found

    def load(self, on_problem: Callable[[str], object] = lambda _: None) -> list[Mark]:
        """All marks that are left. A file that cannot be read is left where it is."""
        found = []
        for path in sorted(self.path.glob("*.json")):
            try:
                found.append(_parsed(path))
            except FileNotFoundError:
                continue
            except (OSError, ValueError, TypeError, LookupError) as error:
                on_problem(f"{path}: {type(error).__name__}: {error}; what it raised cannot be set back: remove it")
        return found

    def restore_all(self, on_problem: Callable[[str], object] = lambda _: None) -> list[tuple[Mark, Restored]]:
        """Set back what a daemon before left."""
        found = []
        for mark in self.load(on_problem):
            try:
                found.append((mark, self.restore(mark)))
            except (OSError, MonitorError) as error:
                on_problem(f"oom_score_adj of the processes in {mark.cgroup} is not set back: {error}")
        return found

    def _left(self, mark: Mark) -> Mark | None:
        """A mark of this very cgroup that could not be set back: what its processes had before counts."""
        try:
            found = _parsed(self.path / mark.name)
        except (OSError, ValueError, TypeError, LookupError):
            return None
        return found if (found.identity, found.boot) == (mark.identity, mark.boot) else None

    def _inside(self, mark: Mark) -> Iterable[tuple[int, str]]:
        """Who is in the pod's cgroup, if that is still the one that was marked."""
        try:
            return _pids(mark.cgroup) if identity_of(mark.cgroup) == mark.identity else ()
        except OSError as error:
            if error.errno not in GONE:
                raise failure(mark.cgroup, "read", error) from error
            return ()

    def _forget(self, mark: Mark) -> None:
        (self.path / mark.name).unlink(missing_ok=True)

    def _store(self, mark: Mark) -> None:
        self.path.mkdir(mode=0o750, parents=True, exist_ok=True)
        new = self.path / f".{mark.name}.new"
        cgroups = list({seen.cgroup: None for seen in mark.processes.values()})
        at = {cgroup: number for number, cgroup in enumerate(cgroups)}
        made = {
            "cgroup": str(mark.cgroup), "identity": mark.identity, "uid": mark.uid, "boot": mark.boot,
            "cgroups": cgroups,
            "processes": [[pid, s.started, s.old, at[s.cgroup]] for pid, s in mark.processes.items()],
        }  # fmt: skip
        try:
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "w") as file:
                json.dump(made, file)
            os.replace(new, self.path / mark.name)
        except OSError:
            with suppress(OSError):
                new.unlink()
            raise


def restore_left(state_dir: Path, log: Logger) -> None:
    """Set back what a daemon before left raised, and say so."""
    try:
        found = MarkJournal(state_dir).restore_all(
            lambda problem: log("error", "oom_score_adj that an earlier daemon raised is not set back", problem=problem)
        )
    except OSError as error:
        log("error", "what an earlier daemon raised cannot be read", problem=str(error))
        return
    for mark, what in found:
        fields = {"cgroup": str(mark.cgroup), "uid": mark.uid, **asdict(what)}
        log("info", "oom_score_adj that an earlier daemon raised is set back", **fields)


def _pids(cgroup: Path) -> list[tuple[int, str]]:
    try:
        return [(pid, path) for path, pids in cgroup_procs.walk(cgroup) for pid in pids]
    except OSError as error:
        raise failure(cgroup / "cgroup.procs", "read", error) from error


def _seen(pid: int, cgroup: str) -> Seen | None:
    with Process(pid) as process:
        started, now = process.started(), process.oom_score_adj()
    return None if started is None or now is None else Seen(started, now, cgroup)


def _started(pid: int) -> int | None:
    with Process(pid) as process:
        return process.started()


def _set_back(mark: Mark, pid: int, cgroup: str, bases: dict[str, int], denied: set[int]) -> str:
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
            old = _inherited(mark, process, cgroup, bases)
        if old == RAISED:
            return ""
        try:
            if not process.set_oom_score_adj(old):
                return ""
        except PermissionError:
            denied.add(pid)
            return ""
        return "own" if own else "inherited"


def _inherited(mark: Mark, process: Process, cgroup: str, bases: dict[str, int]) -> int:
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
    return bases.get(cgroup, bases.get("", RAISED))


def _bases(mark: Mark) -> dict[str, int]:
    """What a process in each cgroup has whose parents are gone: what most had there; "" is for the rest of the pod."""
    counts: dict[str, Counter[int]] = {}
    for seen in mark.processes.values():
        if seen.old > _SANDBOX:
            for key in (seen.cgroup, ""):
                counts.setdefault(key, Counter())[seen.old] += 1
    return {key: max(counted.items(), key=lambda item: (item[1], item[0]))[0] for key, counted in counts.items()}


def _parsed(path: Path) -> Mark:
    made: dict[str, Any] = documents.from_json(documents.decoded(documents.read_bytes(path)))
    texts = [made[key] for key in ("cgroup", "identity", "uid", "boot")]
    numbers = [number for one in made["processes"] for number in one]
    if not all(isinstance(one, str) for one in (*texts, *made["cgroups"])) or not all(
        isinstance(one, int) for one in numbers
    ):
        raise ValueError("not what a mark is made of")
    cgroup, identity, uid, boot = texts
    seen = {pid: Seen(started, old, made["cgroups"][at]) for pid, started, old, at in made["processes"]}
    mark = Mark(Path(cgroup), identity, uid, boot, seen)
    if path.name != mark.name or not mark.cgroup.is_absolute():
        raise ValueError("its name is not that of its content")
    return mark
