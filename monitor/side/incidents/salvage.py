"""A damaged file of incidents: what can be read of it is copied into a new one, and it is set aside under another name.

Killed at any point in between, either the damaged file is still in its place and all of it is done again, or the new
one is complete and `adopt` puts it there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from monitor.errors import MonitorError
from monitor.side.incidents.file import (
    Damaged,
    connect,
    decode,
    encode,
    index_of,
    log_of,
    prepare,
    transaction,
    upsert,
)

#: Damaged files that are kept; each is at most as large as the store.
KEEP_DAMAGED = 3
#: SQLite's default page, which this file has: its first one holds the header and the schema.
_PAGE = 4096
#: How long a lock on the damaged file is waited for.
_WAIT_S = 2.0
_PASSING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOMEM)


class SetAside(NamedTuple):
    """Where the damaged file is now, and how many of its incidents are in the new one."""

    path: Path
    saved: int


def adopt(path: Path) -> None:
    """Finish what a process that was killed while it set a file aside had begun. Raises OSError."""
    new = _new(path)
    if not path.exists() and new.exists():
        _forget_log(path)
        new.rename(path)


def set_aside(path: Path, now: float) -> SetAside:
    """Put a new file with what could be read of ``path`` in its place. ``now``: Unix seconds. Raises OSError."""
    new, graft = _new(path), path.with_name(f"{path.name}.graft")
    try:
        _create(new)
        saved = _copy_rows(path, new)
        if not saved and _graft(path, new, graft):
            saved = _copy_rows(graft, new)
    finally:
        _remove(graft)
    aside = _free_name(path, now)
    # The log first: left beside a new file, SQLite would take it for that one's.
    with contextlib.suppress(FileNotFoundError):
        if log_of(path).stat().st_size:
            log_of(path).rename(log_of(aside))
        else:
            log_of(path).unlink()
    index_of(path).unlink(missing_ok=True)
    path.rename(aside)
    new.rename(path)
    for old in damaged_files(path)[:-KEEP_DAMAGED]:
        _remove(old)
    for log in path.parent.glob(f"{path.name}.damaged-*-wal"):
        if not log.with_name(log.name.removesuffix("-wal")).exists():  # killed between the two renames
            log.unlink()
    return SetAside(aside, saved)


def damaged_files(path: Path) -> list[Path]:
    """The files set aside, oldest first."""
    found = [other for other in path.parent.glob(f"{path.name}.damaged-*") if not other.name.endswith(("-wal", "-shm"))]
    return sorted(found)


def _new(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def _free_name(path: Path, now: float) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    for number in range(1000):
        aside = path.with_name(f"{path.name}.damaged-{stamp}" + (f".{number:03d}" if number else ""))
        if not aside.exists():
            return aside
    raise FileExistsError(f"{path}.damaged-{stamp}")


def _create(new: Path) -> None:
    _remove(new)
    os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640))
    with closing(connect(new, write=True, timeout_s=0)) as connection:
        prepare(connection)


def _copy_rows(source: Path, new: Path) -> int:
    """How many incidents of ``source`` could be read; all of them are in ``new``, or none if that cannot be written."""
    saved = 0
    with closing(connect(new, write=True, timeout_s=0)) as target, transaction(target):
        for head, steps in _readable(source):
            try:
                row = encode(decode(head, steps))
            except (Damaged, MonitorError):
                continue  # the damage went through this row
            upsert(target, row)
            saved += 1
    return saved


def _readable(source: Path) -> Iterator[tuple[bytes, bytes | None]]:
    """The rows that can be reached, oldest first.

    A walk ends at the first damaged page, so their numbers are gathered along the table and along both indexes, each
    from either end. Each row is then looked up by itself: only damage on its own path hides it.
    """
    try:
        connection = connect(source, write=False, timeout_s=_WAIT_S)
    except Damaged:
        return
    except sqlite3.DatabaseError as error:
        _pass_if_damage(error)
        return
    with closing(connection):
        numbers: set[int] = set()
        for walk in ("NOT INDEXED ORDER BY seq", "ORDER BY start", "ORDER BY id"):
            for direction in ("ASC", "DESC"):
                try:
                    for (seq,) in connection.execute(f"SELECT seq FROM incidents {walk} {direction}"):
                        numbers.add(seq)
                except sqlite3.DatabaseError as error:
                    _pass_if_damage(error)
        for seq in sorted(numbers):
            try:
                found = connection.execute("SELECT head, steps FROM incidents WHERE seq = ?", (seq,)).fetchone()
            except sqlite3.DatabaseError as error:
                _pass_if_damage(error)
                continue
            if found is not None:
                yield found


def _pass_if_damage(error: sqlite3.DatabaseError) -> None:
    """Raise what is not about the content of the file: then nothing can be said about what is in it."""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING:
        raise error


def _graft(path: Path, fresh: Path, graft: Path) -> bool:
    """A copy of ``path`` with the first page of ``fresh``; False if there is nothing behind that page.

    The first page is written at every checkpoint, so it is the likeliest to be torn; the schema in it is the same in
    every file, its place of the tables as well. Fields by https://sqlite.org/fileformat.html#the_database_header.
    """
    pages = path.stat().st_size // _PAGE
    if pages < 2:
        return False
    first = bytearray(fresh.read_bytes()[:_PAGE])
    first[18:20] = b"\x01\x01"  # no log
    first[28:32] = pages.to_bytes(4, "big")
    first[32:40] = bytes(8)  # no free pages
    first[92:96] = first[24:28]  # the number of pages is valid for this version
    shutil.copyfile(path, graft)
    with open(graft, "r+b") as file:
        file.write(first)
        file.truncate(pages * _PAGE)
    return True


def _forget_log(path: Path) -> None:
    log_of(path).unlink(missing_ok=True)
    index_of(path).unlink(missing_ok=True)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    _forget_log(path)
