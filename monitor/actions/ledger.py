"""What a hold changed in a pod's cgroups, kept in the kernel itself: it comes back exactly also after a SIGKILL.

An extended attribute of the pod's cgroup: written in 1.4 us (1.6 at the 99th percentile, measured) and never waiting
for a disk, which a store into a mapped file does (3.8 ms on ext4 with a busy disk, without end on a frozen one: the
first store after each writeback is a transaction). It goes with its cgroup, and so says which one it was; it survives
every process, and ends with the machine as cgroups do. ``trusted.``: only CAP_SYS_ADMIN writes it, so that nobody in a
container can have his own limits "undone".

It names the daemon that wrote it, and each state dir has one of its own: a daemon that starts undoes what the last one
on its state dir left, and what any other left that is dead (`monitor.actions.daemons`).

What was changed is described and judged as in `monitor.actions.changes`.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from monitor.actions.changes import RESTORED, UNCHANGED, UNSEEN, VANISHED, Change, boot_id, identity_of, parsed, undone
from monitor.actions.daemons import is_dead, this_daemon
from monitor.actions.inherited import enable_below
from monitor.actions.oomadj import Logger
from monitor.errors import MonitorError
from monitor.kernel import cgroupfs, instances

#: Bytes that are read of one: three changes have less than 2,000, with paths of 4,095 bytes less than 14,000.
_MOST = 1 << 16
_PREFIX = "trusted.outrace."
#: Why something is changed: it is in force, or put back and not over (cgroups below have it, or a thread is late).
HELD, OVER = "hold", "hold that is over"
#: For `dataclasses.asdict`, which copies deeply: it took 120 of the 220 us of a brake.
_FIELDS = tuple(field.name for field in fields(Change))


class Noted(NamedTuple):
    """What is written down at a cgroup, and by whom (`monitor.actions.daemons`)."""

    path: Path
    attribute: str
    owner: str
    changes: list[Change]


class Ledger:
    """Writes down what the daemon on ``state_dir`` is about to change; each state dir has an attribute of its own."""

    def __init__(self, state_dir: Path) -> None:
        self.attribute = attribute_of(state_dir)
        self.boot = boot_id()
        self._owner = this_daemon()

    def obstacle(self, directory: int) -> str:
        """Why nothing can be written down at a cgroup; "" if it can."""
        try:
            if self.attribute in _names(directory):
                return "what an earlier daemon held is not undone"
            self.note(directory, [])
            os.removexattr(directory, self.attribute)
        except OSError as error:
            remedy = "; give outrace CAP_SYS_ADMIN" if error.errno == errno.EPERM else ""
            return f"nothing can be written down at it: {error.strerror}{remedy}"
        return ""

    def note(self, directory: int, changes: Sequence[Change], since_ns: int = 0) -> None:
        """``directory``: descriptor of the pod's cgroup. ``changes``: in the order in which they are to be undone.
        ``since_ns``: when it was held first (CLOCK_MONOTONIC). Raises OSError (EPERM: no CAP_SYS_ADMIN; EROFS; ENODEV:
        the cgroup is gone).
        """
        noted = [{name: getattr(change, name) for name in _FIELDS} for change in changes]
        made = {"owner": self._owner, "since_ns": since_ns, "changes": noted}
        os.setxattr(directory, self.attribute, json.dumps(made).encode())

    def since_ns(self, directory: int) -> int:
        """When the pod was held first; 0: not known, by a release before this was written down. Raises OSError."""
        with suppress(ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return int(json.loads(os.getxattr(directory, self.attribute)[:_MOST])["since_ns"])
        return 0

    def changes(self, directory: int) -> list[Change]:
        """What is written down at a cgroup. Raises OSError, and ValueError for what is not readable."""
        try:
            return _read(os.getxattr(directory, self.attribute))[1]
        except OSError as error:
            if error.errno != errno.ENODATA:
                raise
            return []
        except (TypeError, LookupError, AttributeError, RecursionError) as error:
            raise ValueError(str(error)) from error

    def with_own_value(self, directory: int, change: Change | None) -> Change | None:
        """The change with the pod's own value as the old one, where that is what another daemon wrote: it would come
        back when that one holds the pod no more. Raises OSError.
        """
        if change is not None:
            for name in _names(directory):
                with suppress(OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
                    for other in _read(os.getxattr(directory, name))[1] if name != self.attribute else ():
                        is_same = (other.file, other.identity, other.boot) == (
                            change.file,
                            change.identity,
                            change.boot,
                        )
                        if is_same and change.old in other.written:
                            change = replace(change, old=other.old)
        return change

    def forget(self, directory: int) -> None:
        """All of it is undone."""
        with suppress(OSError):  # none there, or the cgroup is gone
            os.removexattr(directory, self.attribute)


def attribute_of(state_dir: Path) -> str:
    return _PREFIX + instances.instance_directory(state_dir).name


def _names(cgroup: Path | int) -> list[str]:
    """The attributes of daemons at a cgroup. Raises OSError."""
    return [name for name in os.listxattr(cgroup) if name.startswith(_PREFIX)]


def _read(text: bytes) -> tuple[str, list[Change]]:
    """Who wrote it, and what. Raises ValueError, TypeError, LookupError, AttributeError or RecursionError."""
    made: dict[str, Any] = json.loads(text[:_MOST])
    return str(made["owner"]), [parsed(one) for one in made["changes"]]


def noted(root: Path, on_problem: Callable[[str], object] = lambda _: None) -> Iterator[Noted]:
    """All that is written down in cgroups below ``root``. (15 us for each cgroup.) Raises MonitorError."""
    for path in _below(root):
        yield from _noted_at(path, on_problem)


def is_noted(path: Path, attribute: str) -> bool:
    """Whether the daemon that this attribute is of has written something down at a cgroup. (2 us.)"""
    try:
        return attribute in os.listxattr(path)
    except OSError:
        return False


def _below(root: Path) -> Iterator[Path]:
    try:
        yield from cgroupfs.below(root)
    except OSError as error:
        raise cgroupfs.failure(root, "list", error) from error


def _noted_at(path: Path, on_problem: Callable[[str], object]) -> Iterator[Noted]:
    attribute = _PREFIX
    try:
        for attribute in _names(path):
            yield Noted(path, attribute, *_read(os.getxattr(path, attribute)))
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.ENOTSUP, errno.ENAMETOOLONG, *cgroupfs.GONE):
            on_problem(f"{path}: {attribute}: {error.strerror}")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        remedy = f"remove it: setfattr -x {attribute} {path}"
        on_problem(f"{path}: {attribute}: {type(error).__name__}: {error}; what it changed cannot be undone; {remedy}")


def undo_all(
    state_dir: Path | None, hierarchy: cgroupfs.Hierarchy, on_problem: Callable[[str], object] = lambda _: None
) -> list[tuple[Change, str]]:
    """Undo what hot processes that have ended hold, the one on ``state_dir`` and all that are known to be dead: every
    change, and what became of it. Not while one runs on it.
    """
    return [found for found in _undoing(state_dir, hierarchy, on_problem) if found is not None]


def _undoing(
    state_dir: Path | None,
    hierarchy: cgroupfs.Hierarchy,
    on_problem: Callable[[str], object],
    keep: Callable[[Path], bool] = lambda _: False,
    paths: Iterable[Path] | None = None,
) -> Iterator[tuple[Change, str] | None]:
    """The same in steps of one cgroup; None where there is nothing to say."""
    mine = attribute_of(state_dir) if state_dir is not None else ""
    for path in _below(hierarchy.root) if paths is None else paths:
        for one in _noted_at(path, on_problem):
            if (one.attribute == mine or is_dead(one.owner)) and not keep(path):
                yield from _undo(one, on_problem)
        yield None


def _undo(one: Noted, on_problem: Callable[[str], object]) -> Iterator[tuple[Change, str] | None]:
    """The values first, then what cgroups below have inherited; when all is back nothing is written down any more."""
    is_over, fates = True, list[tuple[Change, str]]()
    for change in one.changes:
        try:
            fates.append(_undone(change, one.path))
        except OSError as error:
            on_problem(_refused(change, error))
            is_over = False
    yield from fates
    for change, fate in fates:
        is_over = is_over and fate != UNSEEN
        try:
            for _ in enable_below(change) if fate in (RESTORED, UNCHANGED) else ():
                yield None
        except OSError as error:
            on_problem(_refused(change, error))
            is_over = False
    if is_over:
        with suppress(OSError):
            os.removexattr(one.path, one.attribute)


def _undone(change: Change, path: Path) -> tuple[Change, str]:
    """What became of a change that is written down at the cgroup ``path``. Raises OSError where the kernel refuses."""
    # Where it is mounted elsewhere than the daemon had it, the pod's cgroup is the one that says so.
    # (v1's freezer is another hierarchy, with inode numbers of its own, which may be the same.)
    if change.file != "freezer.state" and change.identity == identity_of(path):
        change = replace(change, path=str(path))
    return change, VANISHED if change.boot != boot_id() else undone(change)


def _refused(change: Change, error: OSError) -> str:
    return f"{change.path}/{change.file} cannot be set back to {change.old}: {error.strerror}"


def undo_holds(state_dir: Path, log: Logger, hierarchy: cgroupfs.Hierarchy | None = None) -> int:
    """`undo_all`, said in the log; how many pods are no longer held because of it."""
    return len({change.uid for change in undoing_holds(state_dir, log, hierarchy) if change is not None})


def undoing_holds(
    state_dir: Path,
    log: Logger,
    hierarchy: cgroupfs.Hierarchy | None,
    keep: Callable[[Path], bool] = lambda _: False,
    paths: Iterable[Path] | None = None,
) -> Iterator[Change | None]:
    """The same in steps of one cgroup (20 us), for the hot process while it watches: what it has changed itself (at the
    cgroups ``keep``) stays. ``paths``: only at these.
    """

    def on_problem(problem: str) -> None:
        log("error", "a hold of an earlier daemon is not undone", problem=problem)

    try:
        for found in _undoing(state_dir, hierarchy or cgroupfs.detect(), on_problem, keep, paths):
            if found is not None:
                change, fate = found
                fields = {"cgroup": change.path, "file": change.file, "value": change.old, "uid": change.uid}
                log("info", "a hold of an earlier daemon is undone", **fields, outcome=fate)
            yield None if found is None else found[0]
    except (MonitorError, OSError) as error:
        log("error", "holds of an earlier daemon cannot be looked for", problem=str(error))
