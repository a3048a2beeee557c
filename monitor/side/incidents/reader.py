"""Reading the store of incidents: while the daemon writes to it, when none runs, from a disk that is read-only.

Every question opens the file, reads all of its answer and closes it again: a reader that waits for its terminal must
not keep the writer waiting.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from monitor.errors import MonitorError
from monitor.owner import changed_by, mend
from monitor.side.incidents.file import Damaged, Incident, NeedsRollback, decode, journal_of, select

Incidents = list[Incident]
Rows = list[tuple[Any, ...]]
Values = Sequence[object] | Mapping[str, object]
Ids = list[str]  # a name for it: inside the class, `list` is the method

FILE_NAME = "incidents.db"
#: How long a lock of another process is waited for, in seconds.
WAIT_S = 5.0
#: Incidents read at a time by `all`, and ids named in an error.
_PAGE = 100
_NAMED = 3
#: What to do about a damaged file.
REMEDY = "the monitor renames the file at its next start and begins a new one; without a monitor, move it away"
_NEWEST_FIRST = "ORDER BY start DESC, seq DESC"


class UnknownIncident(MonitorError):
    """No incident, or more than one, has this id."""


class IncidentReader:
    """Answers questions about the file ``path``, which need not exist. All of them may block.

    They raise OSError, or MonitorError for a file that is damaged or of a newer version. Incidents that cannot be read
    in a file that otherwise can are left out of the answer and counted in ``unreadable``.
    """

    def __init__(self, path: Path, *, wait_s: float = WAIT_S) -> None:
        self.path = path
        self.wait_s = wait_s
        self.unreadable = 0

    def list(
        self,
        *,
        since: float | None = None,
        until: float | None = None,
        verdict: str | None = None,
        flag: str | None = None,
        pod: str | None = None,
        limit: int | None = None,
    ) -> Incidents:
        """Incidents without their steps, newest first. ``since`` and ``until`` are Unix seconds of their start.

        ``pod`` is NAMESPACE/NAME, or the name alone; a pod has a part in an incident when it was evicted, killed, or
        at whose allocation the kernel killed.
        """
        clauses = {
            "start >= :since": since,
            "start <= :until": until,
            "verdict = :verdict": verdict,
            "EXISTS (SELECT 1 FROM json_each(flags) WHERE value = :flag)": flag,
            "EXISTS (SELECT 1 FROM json_each(pods) WHERE :pod IN (value, substr(value, instr(value, '/') + 1)))": pod,
        }
        where = " AND ".join(clause for clause, value in clauses.items() if value is not None) or "1"
        values: dict[str, object] = {"since": since, "until": until, "verdict": verdict, "flag": flag, "pod": pod}
        values["limit"] = -1 if limit is None else limit
        query = f"SELECT head FROM incidents WHERE {where} {_NEWEST_FIRST} LIMIT :limit"
        return self._decoded(self._rows(query, values))

    def get(self, key: str) -> Incident:
        """The incident whose id is, or uniquely begins with, ``key``, with its steps; ``latest`` is the newest.

        Raises UnknownIncident naming the ids that are close.
        """
        ids = self._ids()
        if not ids:
            raise UnknownIncident(f"no incidents stored in {self.path.parent} yet")
        if key in ids:
            matches = [key]
        else:
            matches = ids[:1] if key == "latest" else [known for known in ids if key and known.startswith(key)]
        if len(matches) > 1:
            raise UnknownIncident(f"{len(matches)} incidents begin with {key!r}", f"say more of it: {_some(matches)}")
        if not matches:
            import difflib

            close = difflib.get_close_matches(key, ids, _NAMED, 0.5)
            raise UnknownIncident(
                f"no incident has the id {key!r}", f"close: {_some(close)}" if close else f"the newest is {ids[0]}"
            )
        found = self._fetch(matches)
        if not found and self.unreadable:
            raise MonitorError(f"incident {matches[0]!r} in {self.path} is damaged")
        if not found:
            raise UnknownIncident(f"incident {matches[0]!r} has just been deleted, being too old")
        return found[0]

    def all(self) -> Iterator[Incident]:
        """Every incident with its steps, oldest first; one that is deleted meanwhile may be missing."""
        ids = self._ids()[::-1]
        for start in range(0, len(ids), _PAGE):
            yield from self._fetch(ids[start : start + _PAGE])

    def _ids(self) -> Ids:
        return [key for (key,) in self._rows(f"SELECT id FROM incidents {_NEWEST_FIRST}")]

    def _fetch(self, ids: Ids) -> Incidents:
        marks = ", ".join("?" * len(ids))
        return self._decoded(
            self._rows(f"SELECT head, steps FROM incidents WHERE id IN ({marks}) ORDER BY start, seq", ids)
        )

    def _decoded(self, rows: Rows) -> Incidents:
        found = []
        for row in rows:
            try:
                found.append(decode(*row))
            except Damaged:
                self.unreadable += 1
        return found

    def _rows(self, query: str, values: Values = ()) -> Rows:
        """All that SQLite answers; nothing if there is no store yet."""
        with contextlib.suppress(FileNotFoundError):
            try:
                return self._read(query, values)
            except Damaged:
                pass  # perhaps it was renamed, or copied, while the monitor wrote to it
            try:
                return self._read(query, values)
            except Damaged as error:
                raise MonitorError(f"{self.path} is damaged: {error}", REMEDY) from error
        return []

    def _read(self, query: str, values: Values) -> Rows:
        if not stat.S_ISREG(self.path.stat().st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(self.path))
        if os.geteuid() == 0 and (problem := changed_by(self.path)):  # root has no other user's file parsed
            raise MonitorError(problem, f"{mend(problem)}, or read it as another user")
        try:
            return select(self.path, "ro", self.wait_s, query, values)
        except NeedsRollback:
            # The writer was killed, and the reader may have no right to write, or the disk is read-only: in a copy.
            with tempfile.TemporaryDirectory(prefix="outrace-") as directory:
                copy = Path(directory) / self.path.name
                shutil.copyfile(self.path, copy)
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(journal_of(self.path), journal_of(copy))
                return select(copy, "rw", self.wait_s, query, values)


def damaged_files(path: Path) -> list[Path]:
    """The damaged files that were renamed to begin a new ``path``, oldest first."""
    return sorted(path.parent.glob(f"{path.name}.damaged-*Z"))


def _some(ids: Ids) -> str:
    return ", ".join(ids[:_NAMED]) + (", ..." if len(ids) > _NAMED else "")
