"""Undoes the notes of processes that have ended (`monitor.actions.ledger`).

The next start calls it, a start that fails, the helper process when its hot process is gone, `outrace unload`, and the
service manager (ExecStopPost=, `outrace unload --holds`). A daemon that runs puts its own changes back the same way
(`monitor.actions.changes.BrakeFile.put_back`), and values of oom_score_adj by `monitor.actions.oom_values`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from monitor.actions.changes import UNSEEN, Change, undone
from monitor.actions.ledger import (
    OF_PROCESSES,
    ROLES,
    WHY,
    WRONG,
    Noted,
    OnProblem,
    attributes_of,
    body_of,
    noted,
    noted_at,
    runs,
    this_daemon,
    wrong,
)
from monitor.errors import MonitorError
from monitor.kernel import cgroupfs

if TYPE_CHECKING:
    from monitor.actions.oomadj import Logger


def undo(
    hierarchy: cgroupfs.Hierarchy,
    on_problem: OnProblem,
    ended: Collection[str] = (),
    roles: Collection[str] = ROLES,
    spared: str | None = None,
    paths: Iterable[Path] | None = None,
) -> Iterator[tuple[Change, str, str]]:
    """Undoes the notes of dead processes: each change, of `WHY`, and what became of it. ``ended``: attributes whose
    processes the caller knows to have ended, but for the process ``spared``; a note whose process is seen to live
    stays: a state dir in a container has the same path. ``roles``, ``paths``: only these. Raises MonitorError.
    """
    notes = (one for path in paths or () for one in noted_at(path, on_problem))
    for one in noted(hierarchy.root, on_problem) if paths is None else notes:
        known = runs(one.owner)
        has_ended = known is False or (one.attribute in ended and (known is None or one.owner == this_daemon()))
        if one.role not in roles or one.owner == spared or not has_ended:
            continue
        problems = list[str]()
        for change, fate in (_undo_values if one.role in OF_PROCESSES else _undo_files)(one, problems.append):
            yield change, WHY[one.role], fate
        for problem in filter(None, problems):
            on_problem(problem)
        if not problems:
            with suppress(OSError, *WRONG):
                if body_of(one.path, one.attribute) == one.body:  # not of the next daemon, where two undo it at once
                    os.removexattr(one.path, one.attribute)


def undo_left(
    state_dirs: Iterable[Path],
    log: Logger,
    hierarchy: cgroupfs.Hierarchy | None = None,
    roles: Collection[str] = ROLES,
    spared: str | None = None,
    paths: Iterable[Path] | None = None,
) -> list[Change]:
    """`undo`, with the processes on these state dirs known to have ended but for ``spared``; logged. Raises nothing."""
    found = list[Change]()

    def on_problem(problem: str) -> None:
        log("error", "a change of an earlier daemon is not undone", problem=problem)

    try:
        ended = attributes_of(state_dirs, roles)
        for one, why, outcome in undo(hierarchy or cgroupfs.detect(), on_problem, ended, roles, spared, paths):
            fields = {"cgroup": one.path, "file": one.file, "value": one.old, "uid": one.uid}
            log("info", "a change of an earlier daemon is undone", **fields, outcome=outcome, was_for=why)
            found.append(one)
    except (MonitorError, OSError) as error:
        log("error", "changes of an earlier daemon cannot be looked for", problem=str(error))
    return found


def _undo_files(one: Noted, on_problem: OnProblem) -> Iterator[tuple[Change, str]]:
    """A problem: all of it stays noted."""
    for change in one.changes():
        if change.file != "freezer.state":  # of another hierarchy; the others may be mounted elsewhere than they were
            change = change._replace(path=str(one.path))
        refused = f"{change.path}/{change.file} cannot be set back to {change.old}"
        try:
            fate = undone(change)
        except OSError as error:
            on_problem(f"{refused}: {error.strerror}")
            continue
        yield change, fate
        if fate == UNSEEN:
            on_problem(f"{refused}: it is in no hierarchy that is mounted here")


def _undo_values(one: Noted, on_problem: OnProblem) -> Iterator[tuple[Change, str]]:
    """The same of oom_score_adj. The problem "": the cgroup is gone."""
    from monitor.actions import oom_values  # the hot process never comes here

    try:
        mark = oom_values.parsed(one)
        what = oom_values.set_back(mark)
    except FileNotFoundError:
        on_problem("")
    except (OSError, MonitorError) as error:
        on_problem(f"oom_score_adj of the processes in {one.path} is not set back: {error}")
    except WRONG as error:
        on_problem(wrong(one.path, one.attribute, error))
    else:
        outcome = f"{what.restored} processes set back"
        yield Change(str(one.path), "oom_score_adj", mark.identity, "", (), mark.uid), outcome
        if not what.complete:
            on_problem(f"oom_score_adj of {what.denied + what.left} processes in {one.path} is not set back")
