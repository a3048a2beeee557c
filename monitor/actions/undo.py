"""Undoes what processes of outrace that have ended changed in the kernel: the one way back.

The next start calls it, a start that fails, the helper process when its hot process is gone, `outrace unload`, and with
`--holds` the service manager (ExecStopPost=). A daemon that runs puts its own changes back the same way
(`monitor.actions.changes.way_back`).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from monitor.actions.changes import UNSEEN, Change, undone, way_back
from monitor.actions.ledger import (
    MARKS,
    OF_PROCESSES,
    ROLES,
    WRONG,
    Noted,
    attributes_of,
    noted,
    runs,
    this_daemon,
    wrong,
)
from monitor.errors import MonitorError
from monitor.kernel import cgroupfs

if TYPE_CHECKING:
    from monitor.actions.oomadj import Logger

OnProblem = Callable[[str], object]


class Undone(NamedTuple):
    """A file that was changed, in the directory ``path``, and what became of it. ``value``: the one from before."""

    path: str
    file: str
    value: str
    uid: str
    why: str
    outcome: str


def undoing(
    hierarchy: cgroupfs.Hierarchy, on_problem: OnProblem, ended: Collection[str] = (), roles: Collection[str] = ROLES
) -> Iterator[Undone]:
    """Undoes the notes of dead processes. ``ended``: attributes whose processes the caller knows to have ended; a note
    whose process is seen to live stays: a state dir in a container has the same path. ``roles``: only these. Raises
    MonitorError.
    """
    for one in noted(hierarchy.root, on_problem):
        if one.role in roles and _has_ended(one, ended):
            way = _undo_values if one.role in OF_PROCESSES else _undo
            is_over = yield from way(one, on_problem)
            if is_over:
                with suppress(OSError):
                    os.removexattr(one.path, one.attribute)


def _has_ended(one: Noted, ended: Collection[str]) -> bool:
    known = runs(one.owner)
    return known is False or (one.attribute in ended and (known is None or one.owner == this_daemon()))


def undo(hierarchy: cgroupfs.Hierarchy, on_problem: OnProblem, ended: Collection[str] = ()) -> list[Undone]:
    """All of `undoing` at once."""
    return list(undoing(hierarchy, on_problem, ended))


def undo_left(
    state_dirs: Iterable[Path], log: Logger, hierarchy: cgroupfs.Hierarchy | None = None, roles: Collection[str] = ROLES
) -> list[Undone]:
    """`undo`, with the processes on these state dirs known to have ended; logged. Raises nothing."""
    found = list[Undone]()

    def on_problem(problem: str) -> None:
        log("error", "a change of an earlier daemon is not undone", problem=problem)

    try:
        ended = attributes_of(state_dirs, roles)
        for one in undoing(hierarchy or cgroupfs.detect(), on_problem, ended, roles):
            fields = {"cgroup": one.path, "file": one.file, "value": one.value, "uid": one.uid}
            log("info", "a change of an earlier daemon is undone", **fields, outcome=one.outcome, was_for=one.why)
            found.append(one)
    except (MonitorError, OSError) as error:
        log("error", "changes of an earlier daemon cannot be looked for", problem=str(error))
    return found


#: Whether all that is noted is over: then the note goes.
_Way = Generator[Undone, None, bool]


def _undo(one: Noted, on_problem: OnProblem) -> _Way:
    """The values first, then what cgroups below have inherited."""
    is_over, begun = True, list[tuple[Change, str, Iterator[str]]]()

    def refused(change: Change, why: str | None) -> None:
        nonlocal is_over
        is_over = False
        on_problem(f"{change.path}/{change.file} cannot be set back to {change.old}: {why}")

    for found in one.changes():
        change = _at(found, one.path)
        steps = way_back(change, undone)
        try:
            begun.append((change, next(steps), steps))
        except OSError as error:
            refused(change, error.strerror)
    for change, fate, _ in begun:
        yield Undone(change.path, change.file, change.old, change.uid, change.why, fate)
        if fate == UNSEEN:
            refused(change, "it is in no hierarchy that is mounted here")
    for change, _, steps in begun:
        try:
            deque(steps, 0)
        except OSError as error:
            refused(change, error.strerror)
    return is_over


def _at(change: Change, path: Path) -> Change:
    """A change that is noted at the cgroup ``path``, which may be mounted elsewhere than the daemon had it. (v1's
    freezer is another hierarchy.)
    """
    return change if change.file == "freezer.state" else replace(change, path=str(path))


def _undo_values(one: Noted, on_problem: OnProblem) -> _Way:
    from monitor.actions import oom_values

    try:
        mark = oom_values.parsed(one)
    except OSError:
        return False  # the cgroup is gone
    except WRONG as error:
        on_problem(wrong(one.path, one.attribute, error))
        return False
    try:
        what = oom_values.set_back(mark)
    except (OSError, MonitorError) as error:
        on_problem(f"oom_score_adj of the processes in {one.path} is not set back: {error}")
        return False
    outcome = f"{what.restored} processes set back, {what.inherited} of them forked since"
    yield Undone(str(one.path), "oom_score_adj", "", mark.uid, "victim" if one.role == MARKS else "QoS", outcome)
    if not what.complete:
        on_problem(f"oom_score_adj of {what.denied + what.left} processes in {one.path} is not set back")
    return what.complete
