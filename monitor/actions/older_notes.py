"""What earlier releases noted in files: ``STATE/changes`` (limits), ``STATE/marks`` (oom_score_adj).

They are undone as notes at cgroups are (`monitor.actions.undo`), once: nothing writes such a file any more. Each names
the boot that it is of, because inode numbers and pids are given out again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from monitor import documents
from monitor.actions import oom_values
from monitor.actions.changes import FOREIGN, UNSEEN, VANISHED, Change, is_seen, parsed, undone
from monitor.actions.ledger import OF_PROCESSES, WRONG, Noted, noted_at
from monitor.actions.mark_choice import container_of
from monitor.errors import MonitorError
from monitor.owner import changed_by

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def undo_files(state_dir: Path, on_problem: Callable[[str], object], on_undone: Callable[[str, str], object]) -> None:
    """``on_undone(what, outcome)``. What could not be undone stays for the next start. Raises nothing."""
    for name, undo in (("changes", _change), ("marks", _mark)):
        for path in sorted((state_dir / name).glob("*.json")):
            try:
                problem = changed_by(path)
                if problem:
                    raise ValueError(problem)
                made = documents.from_json(documents.decoded(documents.read_bytes(path)))
                is_of_boot = made["boot"] == _BOOT_ID.read_text().strip()
                what, outcome = undo(made) if is_of_boot else (str(path), VANISHED)
                if outcome:
                    on_undone(what, outcome)
                    path.unlink(missing_ok=True)
                else:
                    on_problem(f"{path}: {what} is not set back, or only in part")
            except (OSError, MonitorError, *WRONG) as error:
                on_problem(f"{path}: {type(error).__name__}: {error}; what it changed is not undone: remove it then")
        with suppress(OSError):
            (state_dir / name).rmdir()


def _change(made: dict[str, Any]) -> tuple[str, str]:
    change = parsed(made)
    outcome = undone(change)
    if outcome == FOREIGN and any(_took(one, change) for one in noted_at(Path(change.path), lambda _: None)):
        outcome = UNSEEN  # the hold goes on: when it is over the file has this limit again
    return f"{change.path}/{change.file}", "" if outcome == UNSEEN else outcome


def _took(note: Noted, change: Change) -> bool:
    """Whether a hold takes what is written there for the pod's own value."""
    if note.role in OF_PROCESSES:
        return False
    return any(one.file == change.file and one.old in change.written for one in note.changes())


def _mark(made: dict[str, Any]) -> tuple[str, str]:
    cgroup, cgroups = Path(made["cgroup"]), made["cgroups"]
    seen = {
        int(pid): oom_values.Seen(int(started), int(old), container_of(cgroup, str(cgroups[at])))
        for pid, started, old, at in made["processes"]
    }
    if not cgroup.is_absolute() or not all(abs(one.old) <= oom_values.RAISED for one in seen.values()):
        raise ValueError("not what a mark is made of")
    what = oom_values.set_back(oom_values.Mark(cgroup, str(made["identity"]), str(made["uid"]), seen))
    is_over = what.complete and is_seen(cgroup.parent)
    return f"oom_score_adj of the processes in {cgroup}", f"{what.restored} processes set back" if is_over else ""
