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
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from monitor.actions.changes import Change, parsed
from monitor.kernel import cgroupfs, instances
from monitor.kernel.procfs import Process

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
#: Why something is changed.
HELD, SOFT, STALL = "hold", "soft brake", "stall"
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
        self.attribute = attribute_of(state_dir, role)
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
