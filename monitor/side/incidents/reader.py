"""Reading the store of incidents: while the daemon writes to it, when none runs, from a disk that is read-only.

Every question opens the file, reads all of its answer and closes it again: a reader that waits for its terminal must
not keep the writer waiting. sqlite3 costs some MB, so it is imported when a file is opened.

An incident is kept as the JSON it came as, compressed: zlib's checksum finds damage inside a row, which SQLite does not
look for. The columns beside it only serve to find it.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import math
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from monitor.errors import MonitorError
from monitor.owner import changed_by, mend

if TYPE_CHECKING:
    import sqlite3

#: "outr", at offset 68 of the file (https://sqlite.org/fileformat.html#application_id): this is our file.
APPLICATION_ID = 0x6F757472
SCHEMA_VERSION = 2
_SCHEMA = (
    """CREATE TABLE incidents (
        seq INTEGER PRIMARY KEY, -- in the order they came, whatever the clock showed
        id TEXT NOT NULL UNIQUE,
        start REAL NOT NULL, -- Unix seconds
        end REAL NOT NULL,
        stored REAL NOT NULL, -- Unix seconds by the store's own clock, which never goes back
        verdict TEXT NOT NULL,
        flags TEXT NOT NULL, -- a JSON array
        pods TEXT NOT NULL, -- a JSON array
        head BLOB NOT NULL, -- zlib of the JSON object, with null in the place of its steps
        steps BLOB -- zlib of the JSON array
    )""",
    "CREATE INDEX incidents_by_start ON incidents (start)",
    "CREATE INDEX incidents_by_stored ON incidents (stored)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
_PRAGMAS = (
    "PRAGMA trusted_schema = OFF",
    "PRAGMA cell_size_check = ON",
    "PRAGMA cache_size = -512",  # KiB: a row is a few pages
    "PRAGMA secure_delete = OFF",  # Debian's default writes zeros over what is deleted
)

Incident = dict[str, Any]


class Damaged(Exception):
    """The file is not, or no longer, a store of incidents."""


class NeedsRollback(OSError):
    """A writer was killed within a transaction: the file has to be written to before it can be read."""


# rows


def encode(incident: Mapping[str, Any]) -> dict[str, Any]:
    """An incident as a row, but for ``stored``. Raises MonitorError naming what is missing in it."""
    try:
        key, verdict = incident["id"], incident["verdict"]
        if not (isinstance(key, str) and key and key.isprintable() and isinstance(verdict, str)):
            raise ValueError("id and verdict must be text")
        return {
            "id": key,
            "start": unix_time(incident["start"]),
            "end": unix_time(incident["end"]),
            "verdict": json.dumps(verdict)[1:-1],  # ASCII, whatever it is
            "flags": json.dumps(list(incident.get("flags", ()))),
            "pods": json.dumps(_pods(incident)),
            "head": _pack({**incident, "steps": None} if "steps" in incident else dict(incident)),
            "steps": _pack(incident["steps"]) if "steps" in incident else None,
        }
    except KeyError as error:
        raise MonitorError(f"incident {incident.get('id')!r} cannot be stored: it has no {error.args[0]}") from None
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise MonitorError(f"incident {incident.get('id')!r} cannot be stored: {error}") from None


def decode(head: bytes, steps: bytes | None = None) -> Incident:
    """The incident of a row; without ``steps`` it has none. Raises Damaged."""
    try:
        incident = json.loads(zlib.decompress(head))
        if not isinstance(incident, dict):
            raise TypeError("not an object")
        for key in ("start", "end"):
            unix_time(incident[key])
        if not (isinstance(incident["id"], str) and isinstance(incident["verdict"], str)):
            raise TypeError("its id or verdict is no text")
        if steps is None:
            incident.pop("steps", None)
        else:
            incident["steps"] = json.loads(zlib.decompress(steps))
    except (zlib.error, ValueError, TypeError, KeyError, RecursionError) as error:
        raise Damaged(f"an incident in it cannot be read ({error})") from None
    return incident


def unix_time(value: object) -> float:
    """Unix seconds of a number, or of an ISO 8601 time with its offset. Raises ValueError."""
    if isinstance(value, str):
        when = datetime.datetime.fromisoformat(value)
        if when.tzinfo is None:
            raise ValueError(f"{value!r} does not have its offset from UTC")
        return when.timestamp()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a time")
    return float(value)


def _pods(incident: Mapping[str, Any]) -> list[str]:
    """Every pod that has a part in it: evicted, refused to be, held, killed, stalled, or that led to it."""
    parts = [*incident.get("evicted", ()), *incident.get("oom_victims", ()), incident.get("invoker") or {}]
    names = [part["pod"] for part in parts if part.get("pod")] + [*incident.get("refused", ())]
    names += [one["pod"] for one in incident.get("holds", ())]
    stall = incident.get("stall") or {}
    names += [stall[key] for key in ("pod", "cause") if stall.get(key)]
    return list(dict.fromkeys(map(str, names)))


def _pack(value: object) -> bytes:
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        # JSON knows no infinity: null, as every reader understands it.
        text = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)
    return zlib.compress(text.encode())


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def upsert(connection: sqlite3.Connection, row: Mapping[str, Any]) -> None:
    """Write a row of `encode` with ``stored``; a later version of an incident takes the place of the earlier one."""
    changes = ", ".join(f"{name} = excluded.{name}" for name in row if name != "id")
    connection.execute(
        f"INSERT INTO incidents ({', '.join(row)}) VALUES ({', '.join(f':{name}' for name in row)})"
        f" ON CONFLICT (id) DO UPDATE SET {changes}",
        dict(row),
    )


# the file


@contextmanager
def opened(path: Path, mode: Literal["ro", "rw"], timeout_s: float) -> Iterator[sqlite3.Connection]:
    """The existing file in autocommit mode; another process's lock is waited for ``timeout_s`` seconds.

    Raises OSError for what may pass (locked, full, read-only), NeedsRollback and Damaged.
    """
    import sqlite3

    if 0 < path.stat().st_size < 512:  # SQLite would treat it as empty and write over it
        raise Damaged("it is shorter than the smallest page")
    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode={mode}"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=timeout_s, isolation_level=None)) as connection:
            connection.text_factory = lambda text: text.decode(errors="replace")  # damaged text is found by what it is
            for pragma in _PRAGMAS:
                connection.execute(pragma)
            yield connection
    except sqlite3.Error as error:
        raise _meaning(error, path) from error
    except UnicodeDecodeError as error:  # SQLite quotes a damaged schema in its message, in bytes that are no text
        raise Damaged("its schema is damaged") from error


def prepare(connection: sqlite3.Connection) -> None:
    """Make the tables in an empty file, in one transaction. Raises as `holds_store`."""
    # The journal is emptied, not deleted: a reader never takes it for one that is left over from a kill.
    connection.execute("PRAGMA journal_mode = TRUNCATE")
    with transaction(connection):
        if not holds_store(connection):
            for statement in _SCHEMA:
                connection.execute(statement)


def holds_store(connection: sqlite3.Connection) -> bool:
    """Whether there is a store in the file: False if it is empty. Raises MonitorError for one of a newer version, and
    Damaged for anything else.
    """
    found = number(connection, "PRAGMA application_id"), number(connection, "PRAGMA user_version")
    if found == (0, 0) and not number(connection, "SELECT count(*) FROM sqlite_schema"):
        return False
    if found[0] == APPLICATION_ID and found[1] > SCHEMA_VERSION:
        raise MonitorError(
            f"the incident store is of a newer outrace (schema {found[1]}, this one knows {SCHEMA_VERSION})",
            "use that version, or move the file away to begin a new one",
        )
    if found != (APPLICATION_ID, SCHEMA_VERSION):
        raise Damaged(f"it is not an incident store of schema {SCHEMA_VERSION}")
    return True


def select(
    path: Path, mode: Literal["ro", "rw"], timeout_s: float, query: str, values: Sequence[object] | Mapping[str, object]
) -> list[tuple[Any, ...]]:
    """All that SQLite answers, of one moment; nothing if there is no store in the file. Raises as `opened`."""
    with opened(path, mode, timeout_s) as connection:
        connection.execute("BEGIN")  # a store that is being made is otherwise half of one
        return connection.execute(query, values).fetchall() if holds_store(connection) else []


def number(connection: sqlite3.Connection, query: str, *values: object) -> int:
    return int(connection.execute(query, values).fetchone()[0])


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


def _meaning(error: sqlite3.Error, path: Path) -> Exception:
    import sqlite3

    errnos = {
        sqlite3.SQLITE_BUSY: (errno.EBUSY, "locked by another process"),
        sqlite3.SQLITE_LOCKED: (errno.EBUSY, "locked by another process"),
        sqlite3.SQLITE_PERM: (errno.EACCES, "permission denied"),
        sqlite3.SQLITE_READONLY: (errno.EROFS, "cannot be written"),
        sqlite3.SQLITE_NOMEM: (errno.ENOMEM, "out of memory"),
        sqlite3.SQLITE_FULL: (errno.ENOSPC, "no space left on device"),
        sqlite3.SQLITE_IOERR: (errno.EIO, "input/output error"),
        sqlite3.SQLITE_CANTOPEN: (errno.EACCES, "cannot be opened"),
    }
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return error  # a mistake in how sqlite3 is used here, nothing about the file
    if code == sqlite3.SQLITE_READONLY_ROLLBACK:
        return NeedsRollback(errno.EROFS, "cannot be written", str(path))
    if (code & 0xFF) in errnos:
        number, text = errnos[code & 0xFF]
        return OSError(number, f"{text} ({error})", str(path))
    return Damaged(str(error))


def journal_of(path: Path) -> Path:
    """What undoes the transaction that a writer is in, or was killed in: it belongs to the file."""
    return path.with_name(f"{path.name}-journal")


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


@dataclass(eq=False)
class IncidentReader:
    """Answers questions about the file ``path``, which need not exist. All of them may block.

    They raise OSError, or MonitorError for a file that is damaged or of a newer version. Incidents that cannot be read
    in a file that otherwise can are left out of the answer and counted in ``unreadable``.
    """

    path: Path
    _: KW_ONLY
    wait_s: float = WAIT_S
    unreadable: int = 0

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
        begin = [known for known in ids if key and known.startswith(key)]
        matches = [key] if key in ids else ids[:1] if key == "latest" else begin
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
            with contextlib.suppress(Damaged):
                return self._read(query, values)
            try:  # again: perhaps it was renamed, or copied, while the monitor wrote to it
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
