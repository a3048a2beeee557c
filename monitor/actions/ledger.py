"""What outrace changes in the kernel, written down in the kernel before: it comes back exactly also after a SIGKILL.

A note is an extended attribute of the pod's cgroup: written in 1.4 us (1.6 at the 99th percentile, measured) and never
waiting for a disk, which a store into a mapped file does (3.8 ms on ext4 with a busy disk, without end on a frozen one:
the first store after each writeback is a transaction). It goes with its cgroup, and so says which one it was; it
survives every process, and ends with the machine as cgroups do. ``trusted.``: only CAP_SYS_ADMIN writes it, so that no
container can have its own limits "undone".

Each of the `ROLES` of each state dir has a note of its own at a cgroup, so that none waits for a lock, or for another
one's write. All of them hold the value from before any of them: what another one wrote is no value of the pod's
(`BrakeLedger.change`). A note names the process that wrote it.
`monitor.actions.undo` undoes the notes of processes that have ended.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from monitor.actions.changes import FILES, BrakeFile, Change, parsed
from monitor.kernel import cgroupfs, instances
from monitor.kernel.procfs import Process
from monitor.kernel.troubles import TROUBLES

OnProblem = Callable[[str], object]

#: Bytes that are read of one: the most that the kernel takes.
_MOST = 1 << 16
_PREFIX = "trusted.outrace."
#: What a note is of: holds of the hot process; soft brakes of the helper process, and memory.high that it raised for a
#: stall (`monitor.side.relax`); and oom_score_adj that the helper has given processes: for the OOM killer, by their QoS
#: class (`monitor.actions.oom_values`). The end of the attribute's name.
HOT, SIDE, RELAX, MARKS, SCORES = "", "-side", "-relax", "-marks", "-scores"
ROLES = (HOT, SIDE, RELAX, MARKS, SCORES)
#: Of processes, not of files of the cgroup.
OF_PROCESSES = (MARKS, SCORES)
#: Why something is changed, by what the note is of.
WHY = {HOT: "hold", SIDE: "soft brake", RELAX: "stall", MARKS: "victim", SCORES: "QoS"}
#: Why nothing can be noted, until it is undone. (No pod writes these attributes.)
LEFT = "what an earlier daemon changed is not undone"
#: What a note that says something else raises.
WRONG = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
_OWNER = re.compile(r"pid (\d{1,9}) started (\d{1,19}) in (\S+ \S+)")
#: States of a process that does not run any more, though its parent has not waited for it (proc(5)).
_ENDED = ("Z", "X", "x")


@cache
def this_daemon() -> str:
    return owner_of(os.getpid())


def owner_of(pid: int) -> str:
    """A process: its pid, its start (ticks since boot), and the namespaces by which those are counted. An execv changes
    none of them.
    """
    with Process(pid) as process:
        return f"pid {process.pid} started {process.started()} in {_namespaces(process)}"


def _namespaces(process: Process) -> str:
    """Of pids, and of the clock since boot (Linux 5.6; None before)."""
    return f"{process.namespace('pid')} {process.namespace('time')}"


def runs(owner: str) -> bool | None:
    """Whether the process that ``owner`` describes runs. None where that is not known: it is of another pid or time
    namespace, or its entry in /proc may not be read.
    """
    made = _OWNER.fullmatch(owner)
    try:
        with Process(os.getpid()) as own:
            if made is None or _namespaces(own) != made[3]:
                return None
        with Process(int(made[1])) as process:
            return process.started() == int(made[2]) and process.state() not in _ENDED
    except OSError:
        return None


class Noted(NamedTuple):
    """What is written down at a cgroup, and by which process (`this_daemon`). ``body``: all of it."""

    path: Path
    attribute: str
    owner: str
    body: dict[str, Any]

    @property
    def role(self) -> str:
        return next((role for role in ROLES[1:] if self.attribute.endswith(role)), HOT)

    def changes(self) -> list[Change]:
        """Raises one of `WRONG`."""
        return [parsed(one) for one in self.body["changes"]]


class Ledger:
    """Writes down what one process (``role``) of the daemon on ``state_dir`` is about to change."""

    def __init__(self, state_dir: Path, role: str = HOT) -> None:
        self.role, self.attribute = role, attribute_of(state_dir, role)
        self._owner = this_daemon()

    def obstacle(self, directory: int) -> str:
        """Why nothing can be written down at a cgroup; "" if it can."""
        try:
            if self.attribute in _names(directory):
                return LEFT
            self.note(directory, {"changes": []})
            os.removexattr(directory, self.attribute)
        except OSError as error:
            remedy = "; give outrace CAP_SYS_ADMIN" if error.errno == errno.EPERM else ""
            return f"nothing can be written down at it: {error.strerror}{remedy}"
        return ""

    def note(self, directory: int, body: dict[str, Any]) -> None:
        """Write it down at a cgroup, in the place of what was. Raises OSError (EPERM: no CAP_SYS_ADMIN; EROFS; ENODEV:
        the cgroup is gone; E2BIG: more than `_MOST` bytes).
        """
        text = json.dumps({"owner": self._owner, **body}, separators=(",", ":")).encode()
        os.setxattr(directory, self.attribute, text)

    def others(self, directory: Path | int) -> list[str]:
        """Attributes of other processes that have changed files of this cgroup. Raises OSError."""
        return [name for name in _names(directory) if name != self.attribute and not name.endswith(OF_PROCESSES)]

    def is_own(self, directory: int) -> bool:
        """Whether this very process wrote the note: the next daemon's on its state dir may come before this one ends.
        Raises OSError, or one of `WRONG`.
        """
        return bool(body_of(directory, self.attribute)["owner"] == self._owner)

    def forget(self, directory: int) -> None:
        """All of it is undone."""
        with suppress(OSError):  # none there, or the cgroup is gone
            os.removexattr(directory, self.attribute)


#: What is to be changed, by the name of the file: None where the value is there already, and is not ours.
Planned = dict[str, Change | None]
#: Times that a file is read anew because another process of outrace has written it meanwhile.
_TRIES = 8


class BrakeLedger:
    """Of one pod."""

    def __init__(self, uid: str, journal: Ledger) -> None:
        self._uid, self._journal = uid, journal
        #: Descriptor of the pod's cgroup, which has the note.
        self.directory = -1
        self.files: dict[str, BrakeFile] = {}
        #: By file: in force, or about to be.
        self.changes: dict[str, Change] = {}
        #: When the pod was held first (CLOCK_MONOTONIC), perhaps by an earlier daemon; 0: it is not.
        self.since_ns = 0

    def open(self, cgroup: Path, *files: str) -> str:
        """Open a cgroup and these files of it; why nothing can be noted at it, "" if it can. Raises OSError."""
        try:
            self.directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            for name in files:
                self.files[name] = BrakeFile(cgroup, name)
        except OSError:
            self.close()
            raise
        return self._journal.obstacle(self.directory)

    def file(self, names: Sequence[str]) -> str | None:
        """The first of these that is here."""
        return next((name for name in names if name in self.files), None)

    def adopt(self) -> None:
        """Adopt the changes that an earlier daemon noted, if one is there still, and this one has all of their files:
        else `changes` is empty. Raises OSError, or one of `WRONG`.
        """
        body = body_of(self.directory, self._journal.attribute)
        noted = {change.file: change for change in map(parsed, body["changes"])}
        if noted.keys() <= self.files.keys() and any(self.files[name].has(change) for name, change in noted.items()):
            self.changes = noted
            with suppress(*WRONG):
                self.since_ns = int(body["since_ns"])

    def change(self, name: str, value: str) -> Change | None:
        """What a write of ``value`` would change; None where the file has it already, not from us. Raises OSError."""
        file, others = self.files[name], self._journal.others(self.directory)
        # Another process of outrace notes before it writes, and restores before it removes its note: its value, if it
        # is read here, has a note before or after the read, unless the file changes again.
        change = None
        for _ in range(_TRIES):
            now = file.read()
            change = self._change(file, now, value)
            others = [*others, *self._journal.others(self.directory)]
            if change is None or not others:
                break
            change = self._with_own_value(change, others)
            if file.read() == now:
                break
        return change

    def _change(self, file: BrakeFile, now: str, value: str) -> Change | None:
        """The same where the file has ``now``."""
        before = self.changes.get(file.file)
        old, written = now, tuple[str, ...]()
        if before is not None and now in (before.old, *before.written):
            # Only what is there: a value that the kernel refused (EBUSY) is in `before`, and never was in force.
            old, written = before.old, (now,) if now not in (before.old, value) else ()
        elif now == value:
            return None
        return Change(str(file.path), file.file, file.identity, old, (*written, value), self._uid)

    def _with_own_value(self, change: Change, others: Sequence[str]) -> Change:
        """The change with the pod's own value as the old one, where that is what one of these processes wrote."""
        for name in others:
            with suppress(OSError, *WRONG):
                for other in map(parsed, body_of(self.directory, name)["changes"]):
                    is_same = (other.file, other.identity) == (change.file, change.identity)
                    if is_same and change.old in other.written:
                        change = change._replace(old=other.old)
        return change

    def put(self, values: Mapping[str, str]) -> None:
        """Change these files, in this order, each noted before. Raises OSError."""
        planned = {name: self.change(name, value) for name, value in values.items()}
        self.expect(planned)
        self.write(planned)

    def expect(self, planned: Planned) -> None:
        """Note what is about to be changed, and all that is. None: the value that is there is another program's, and
        stays as it is. Raises OSError.
        """
        for name, change in planned.items():
            if change is None:
                self.changes.pop(name, None)
            else:
                self.changes[name] = change
        self._note()

    def write(self, planned: Planned) -> None:
        """Write the last of each change's values, in this order. Raises OSError."""
        for name, change in planned.items():
            if change is not None:
                self.files[name].write(change.written[-1])

    def put_back(self, *names: str) -> list[tuple[str, str]]:
        """Restore these files, or all: (file, what became of it). What the kernel refuses to undo stays noted."""
        fates = []
        for name in names or FILES:
            if (change := self.changes.get(name)) is not None:
                try:
                    fates.append((name, self.files[name].put_back(change)))
                    del self.changes[name]
                except OSError as error:
                    TROUBLES.note("cgroup", error, self._uid)
        if fates:
            try:
                self._note()
            except OSError as error:
                TROUBLES.note("cgroup", error, self._uid)
        return fates

    def _note(self) -> None:
        """Note what is changed, or about to be. Raises OSError."""
        if not self.changes:
            self._journal.forget(self.directory)
            return
        why = {"why": WHY[self._journal.role]}  # outrace 0.2 reads it
        ordered = [self.changes[name]._asdict() | why for name in FILES if name in self.changes]
        self._journal.note(self.directory, {"since_ns": self.since_ns, "changes": ordered})

    def close(self) -> None:
        for file in self.files.values():
            file.close()
        with suppress(OSError):
            os.close(self.directory)
        self.files, self.changes = {}, {}
        self.directory, self.since_ns = -1, 0


def attribute_of(state_dir: Path, role: str = HOT) -> str:
    return f"{_PREFIX}{instances.instance_directory(state_dir).name}{role}"


def attributes_of(state_dirs: Iterable[Path], roles: Iterable[str] = ROLES) -> set[str]:
    """Of the daemons on these state dirs."""
    return {attribute_of(state_dir, role) for state_dir in state_dirs for role in roles}


def _names(cgroup: Path | int) -> list[str]:
    """The attributes of daemons at a cgroup. Raises OSError."""
    return [name for name in os.listxattr(cgroup) if name.startswith(_PREFIX)]


def body_of(cgroup: Path | int, attribute: str) -> dict[str, Any]:
    """Raises OSError, or one of `WRONG`."""
    made: dict[str, Any] = json.loads(os.getxattr(cgroup, attribute)[:_MOST])
    return made


def is_noted(path: Path, attribute: str) -> bool:
    """Whether the process that this attribute is of has written something down at a cgroup. (2 us.)"""
    try:
        return attribute in os.listxattr(path)
    except OSError:
        return False


def noted(root: Path, on_problem: OnProblem = lambda _: None) -> Iterator[Noted]:
    """All that is written down in cgroups below ``root``. (15 us for each cgroup.) Raises MonitorError."""
    try:
        for path in cgroupfs.below(root):
            yield from noted_at(path, on_problem)
    except OSError as error:
        raise cgroupfs.failure(root, "list", error) from error


def noted_at(path: Path, on_problem: OnProblem) -> Iterator[Noted]:
    try:
        names = _names(path)
    except OSError as error:
        _unreadable(path, _PREFIX, error, on_problem)
        return
    for attribute in names:
        try:
            body = body_of(path, attribute)
            one = Noted(path, attribute, str(body["owner"]), body)
            if one.role not in OF_PROCESSES:
                one.changes()
        except OSError as error:
            _unreadable(path, attribute, error, on_problem)
        except WRONG as error:
            on_problem(wrong(path, attribute, error))
        else:
            yield one


def wrong(path: Path, attribute: str, error: Exception) -> str:
    remedy = f"remove it: setfattr -x {attribute} {path}"
    return f"{path}: {attribute}: {type(error).__name__}: {error}; what it changed cannot be undone; {remedy}"


def _unreadable(path: Path, attribute: str, error: OSError, on_problem: OnProblem) -> None:
    if error.errno not in (errno.ENODATA, errno.ENOTSUP, errno.ENAMETOOLONG, *cgroupfs.GONE):
        on_problem(f"{path}: {attribute}: {error.strerror}")
