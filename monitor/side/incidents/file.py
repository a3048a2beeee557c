"""The file of incidents: its schema, its rows, and what SQLite's errors mean.

An incident is kept as the JSON it came as, compressed: zlib's checksum tells damage inside a row, which SQLite itself
does not look for. The columns beside it only serve to find it. sqlite3 costs some MB, so only those who use the file
import this module.
"""

from __future__ import annotations

import datetime
import errno
import json
import math
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from monitor.errors import MonitorError

#: "outr", at offset 68 of the file (https://sqlite.org/fileformat.html#application_id): tells our file from others.
APPLICATION_ID = 0x6F757472
#: What leads from each schema version to the next; the version of a file is how many of these it has seen.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE incidents (
            seq INTEGER PRIMARY KEY, -- in the order they came, whatever the clock said
            id TEXT NOT NULL UNIQUE,
            start REAL NOT NULL, -- Unix seconds
            end REAL NOT NULL,
            verdict TEXT NOT NULL,
            flags TEXT NOT NULL, -- a JSON array
            pods TEXT NOT NULL, -- a JSON array
            head BLOB NOT NULL, -- zlib of the JSON object, with null in the place of its steps
            steps BLOB -- zlib of the JSON array
        )""",
        "CREATE INDEX incidents_by_start ON incidents (start)",
        "CREATE INDEX incidents_by_end ON incidents (end)",
    ),
    (
        # Unix seconds by the store's own clock, which never goes back; NULL of older incidents, which go by `end`.
        "ALTER TABLE incidents ADD COLUMN stored REAL",
        "CREATE INDEX incidents_by_age ON incidents (coalesce(stored, end))",
        "DROP INDEX incidents_by_end",
    ),
)
#: Pages of SQLite's cache, in KiB: a row is a few of them.
_CACHE_KIB = 512

_SMALLEST = 512  # bytes: the smallest page of SQLite

Incident = dict[str, Any]


class Damaged(Exception):
    """The file is not, or no longer, a store of incidents."""


class NewerSchema(MonitorError):
    """The file was written by a later version of outrace."""


# rows


def encode(incident: Mapping[str, Any]) -> dict[str, Any]:
    """An incident as a row. Raises MonitorError naming what is missing in it."""
    try:
        row = columns(incident)
        row["head"] = _pack({**incident, "steps": None} if "steps" in incident else dict(incident))
        row["steps"] = _pack(incident["steps"]) if "steps" in incident else None
    except KeyError as error:
        raise MonitorError(f"incident {incident.get('id')!r} cannot be stored: it has no {error.args[0]}") from None
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise MonitorError(f"incident {incident.get('id')!r} cannot be stored: {error}") from None
    return row


def columns(incident: Mapping[str, Any]) -> dict[str, Any]:
    """What an incident is found by. Raises KeyError, TypeError or ValueError for one that has not what it needs."""
    key, verdict = incident["id"], incident["verdict"]
    if not (isinstance(key, str) and key and key.isprintable() and isinstance(verdict, str)):
        raise ValueError("id and verdict must be text")
    return {
        "id": key,
        "start": unix_time(incident["start"]),
        "end": unix_time(incident["end"]),
        "verdict": json.dumps(verdict)[1:-1],  # ASCII, whatever it is
        "flags": json.dumps(list(incident.get("flags", ()))),
        "pods": json.dumps(pods_of(incident)),
    }


def decode(head: bytes, steps: bytes | None = None) -> Incident:
    """The incident of a row; without ``steps`` it has none. Raises Damaged."""
    try:
        incident = json.loads(zlib.decompress(head))
        if not isinstance(incident, dict):
            raise TypeError("not an object")
        if steps is None:
            incident.pop("steps", None)
        else:
            incident["steps"] = json.loads(zlib.decompress(steps))
    except (zlib.error, ValueError, TypeError, RecursionError) as error:
        raise Damaged(f"an incident in it cannot be read ({error})") from None
    return incident


def verify(connection: sqlite3.Connection) -> None:
    """Look at the whole file. Raises Damaged, also for a row that SQLite finds in order but whose content is not."""
    (answer,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if answer != "ok":
        raise Damaged(str(answer).replace("\n", " "))
    for *found, head, steps in connection.execute(
        "SELECT id, start, end, verdict, flags, pods, head, steps FROM incidents"
    ):
        try:
            if list(columns(decode(head)).values()) != found:
                raise ValueError(f"{found[0]!r} is not what it is listed as")
            if steps is not None:
                zlib.decompress(steps)
        except (zlib.error, AttributeError, KeyError, TypeError, ValueError) as error:
            raise Damaged(f"an incident in it cannot be read ({error})") from None


def unix_time(value: object) -> float:
    """Unix seconds of a number, or of an ISO 8601 time with its offset. Raises ValueError."""
    if isinstance(value, str):
        when = datetime.datetime.fromisoformat(value)
        if when.tzinfo is None:
            raise ValueError(f"{value!r} does not say its offset from UTC")
        return when.timestamp()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a time")
    return float(value)


def pods_of(incident: Mapping[str, Any]) -> list[str]:
    """Every pod that has a part in it: evicted, killed, or at whose allocation the kernel killed."""
    people = [*incident.get("evicted", ()), *incident.get("oom_victims", ()), incident.get("invoker") or {}]
    return list(dict.fromkeys(str(who["pod"]) for who in people if who.get("pod")))


def _pack(value: object) -> bytes:
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        # JSON knows no infinity (a forecast of something that does not grow): null, as every reader understands it.
        text = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)
    return zlib.compress(text.encode())


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def upsert(connection: sqlite3.Connection, row: Mapping[str, Any]) -> None:
    """Write a row of `encode`; a later version of an incident takes the place of the earlier one."""
    changes = ", ".join(f"{name} = excluded.{name}" for name in row if name != "id")
    connection.execute(
        f"INSERT INTO incidents ({', '.join(row)}) VALUES ({', '.join(f':{name}' for name in row)})"
        f" ON CONFLICT (id) DO UPDATE SET {changes}",
        dict(row),
    )


# the file


def connect(path: Path, *, write: bool, timeout_s: float) -> sqlite3.Connection:
    """Open an existing file in autocommit mode; another process's lock is waited for ``timeout_s`` seconds.

    Raises Damaged for a file too short to be one, which SQLite would take for an empty one and write over.
    """
    if 0 < path.stat().st_size < _SMALLEST:
        raise Damaged("it is shorter than the smallest page")
    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode={'rw' if write else 'ro'}"
    connection = sqlite3.connect(uri, uri=True, timeout=timeout_s, isolation_level=None, check_same_thread=False)
    connection.text_factory = lambda text: text.decode(errors="replace")  # damaged text is found by what it says
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        if write:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = OFF")  # Debian's default writes zeros over what is deleted
    except UnicodeDecodeError as error:  # what SQLite says of a damaged schema quotes it, in bytes that are no text
        connection.close()
        raise Damaged("its schema is damaged") from error
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(connection: sqlite3.Connection) -> None:
    """Bring an empty file, or one of an older version, to the present schema, in one transaction.

    Raises NewerSchema, or Damaged if it is something else altogether.
    """
    if not _check_version(connection):
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # heeded only before the first table
        connection.execute("PRAGMA journal_mode = WAL")
    if _pragma(connection, "user_version") < len(MIGRATIONS):
        with transaction(connection):
            for step in MIGRATIONS[_pragma(connection, "user_version") :]:
                for statement in step:
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    check_schema(connection)


def check_schema(connection: sqlite3.Connection) -> bool:
    """Whether there is a store in the file at all: False if it is empty. Raises as `prepare`."""
    if not _check_version(connection):
        return False
    version = _pragma(connection, "user_version")
    if _schema(connection) != _expected(version):
        raise Damaged("its tables are not those of an incident store")
    return True


def _check_version(connection: sqlite3.Connection) -> bool:
    application, version = _pragma(connection, "application_id"), _pragma(connection, "user_version")
    if (application, version) == (0, 0) and not _schema(connection):
        return False
    if application != APPLICATION_ID or version < 1:
        raise Damaged("it is not an incident store")
    if version > len(MIGRATIONS):
        raise NewerSchema(
            f"the incident store is of a newer outrace (schema {version}, this one knows {len(MIGRATIONS)})",
            "use that version, or move the file away to begin a new one",
        )
    return True


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _schema(connection: sqlite3.Connection) -> list[tuple[str, str, str | None]]:
    return sorted(connection.execute("SELECT type, name, sql FROM sqlite_schema").fetchall())


def _expected(version: int) -> list[tuple[str, str, str | None]]:
    with closing(sqlite3.connect(":memory:")) as scratch:
        for step in MIGRATIONS[:version]:
            for statement in step:
                scratch.execute(statement)
        return _schema(scratch)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


# errors

_ERRNOS = {
    sqlite3.SQLITE_BUSY: (errno.EBUSY, "locked by another process"),
    sqlite3.SQLITE_LOCKED: (errno.EBUSY, "locked by another process"),
    sqlite3.SQLITE_PROTOCOL: (errno.EBUSY, "locked by another process"),
    sqlite3.SQLITE_PERM: (errno.EACCES, "permission denied"),
    sqlite3.SQLITE_READONLY: (errno.EROFS, "cannot be written"),
    sqlite3.SQLITE_NOMEM: (errno.ENOMEM, "out of memory"),
    sqlite3.SQLITE_FULL: (errno.ENOSPC, "no space left on device"),
    sqlite3.SQLITE_IOERR: (errno.EIO, "input/output error"),
    sqlite3.SQLITE_CANTOPEN: (errno.EACCES, "cannot be opened"),
}


@contextmanager
def errors_of(path: Path) -> Iterator[None]:
    """SQLite's errors as OSError (whatever may pass: locked, full, read-only) or Damaged."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code is None:
            raise  # a mistake in how sqlite3 is used here, nothing about the file
        if code == sqlite3.SQLITE_IOERR_SHMSIZE:  # no room for the index of the log
            raise OSError(errno.ENOSPC, "no space left on device", str(path)) from error
        if (code & 0xFF) in _ERRNOS:
            number, text = _ERRNOS[code & 0xFF]
            raise OSError(number, f"{text} ({error})", str(path)) from error
        raise Damaged(str(error)) from error
    except UnicodeDecodeError as error:  # as in `connect`
        raise Damaged("what SQLite says of it is no text") from error


def log_of(path: Path) -> Path:
    """The write-ahead log beside a file."""
    return path.with_name(f"{path.name}-wal")


def index_of(path: Path) -> Path:
    """The shared index of that log."""
    return path.with_name(f"{path.name}-shm")
