"""The store of incidents: every pressure episode with its verdict, in `STATE_DIR/incidents.db`, bounded.

The file is opened for each incident and closed after it. Incidents are rare, opening takes a millisecond, and between
two of them nothing is held: no log that could grow, no descriptor of a file that somebody has removed meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from monitor.errors import MonitorError
from monitor.side.export.log import Log
from monitor.side.incidents.reader import FILE_NAME, IncidentReader

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")


def steady_clock() -> Callable[[], float]:
    """Unix seconds by the wall clock of this moment, counted on without a look at it: setting it ages nothing."""
    since = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return lambda: since + time.clock_gettime(time.CLOCK_BOOTTIME)


MAX_AGE_S = 30 * 86400.0
MAX_BYTES = 64 << 20
KEEP = 10_000
#: Below this, the log of a single transaction would be a large part of the store.
MIN_BYTES = 1 << 20
#: How long a lock of another process is waited for, in seconds.
WAIT_S = 2.0
#: Rows deleted, and free pages (1 MiB) given back, in one transaction: its log stays small.
_BATCH = 200
_VACUUM_PAGES = 256


class IncidentStore(IncidentReader):
    """Writes incidents to ``path``. Every method may block and raise OSError; for a `Worker` of its own.

    For metrics, readable from any thread without waiting: ``failing`` (the last write did not succeed) and ``problem``
    (why, in one line, else ""); ``stored`` incidents (None before the file was looked at); ``lost`` incidents, refused
    for good; ``set_aside`` damaged files since the start.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_age_s: float = MAX_AGE_S,
        max_bytes: int = MAX_BYTES,
        keep: int = KEEP,
        log: Log | None = None,
        wait_s: float = WAIT_S,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(path, wait_s=wait_s)
        if max_bytes < MIN_BYTES:
            raise ValueError(f"max_bytes: at least {MIN_BYTES}")
        self.max_age_s, self.keep = max_age_s, keep
        # What SQLite writes goes into the log first and from there into the file: both count. While somebody reads,
        # the log grows; it gets a quarter.
        self._log_bytes = max_bytes // 4
        self._file_bytes = max_bytes - self._log_bytes
        self.failing = False
        self.problem = ""
        self.stored: int | None = None
        self.lost = 0
        self.set_aside = 0
        self._log = log if log is not None else Log()
        self._clock = clock or steady_clock()
        self._lock = threading.Lock()
        self._checked: list[tuple[int, ...]] | None = (
            None  # what the file looked like when it was last known to be whole
        )

    # what the daemon calls

    def record(self, incident: Mapping[str, Any]) -> None:
        """`add` as a worker's job: what may pass is raised (OSError); what will not is logged and counted in `lost`."""
        before = self.problem
        try:
            self.add(incident)
        except MonitorError as error:
            self.lost += 1
            if str(error) != before:
                self._log.error("an incident was not stored", incident=incident.get("id"), problem=str(error))

    def add(self, incident: Mapping[str, Any]) -> None:
        """Store an incident, or a later version of one; the oldest go when there is no room.

        On disk when it returns. Raises MonitorError for one that cannot be stored or a file that must not be written
        to, and OSError for what may pass (no space, read-only, locked); then nothing has changed.
        """
        from monitor.side.incidents.file import encode, transaction, upsert

        row = encode(incident)
        size = len(row["head"]) + len(row["steps"] or b"")
        if size > self._log_bytes // 4:
            raise MonitorError(f"incident {row['id']!r} is too large to be stored ({size} bytes)")

        def write(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                self._make_room(connection, size, row["id"])
                upsert(connection, row | {"stored": _now(connection, self._clock())})
            self._delete_old(connection, self._clock() - self.max_age_s)

        self._write(write)

    def prune(self, now: float | None = None) -> int:
        """Delete what was stored too long before ``now`` (Unix seconds); returns how many went. Raises as `add`."""
        if not self.path.exists():
            return 0
        limit = (self._clock() if now is None else now) - self.max_age_s
        return self._write(lambda connection: self._delete_old(connection, limit))

    # room

    def _make_room(self, connection: sqlite3.Connection, size: int, key: str) -> None:
        """Delete the incidents that came first until one of ``size`` bytes fits."""
        page = _number(connection, "PRAGMA page_size")
        # A row takes whole pages once it is larger than one; the indexes grow by one now and then.
        needed = (size // page + 4) * page
        known = _number(connection, "SELECT count(*) FROM incidents WHERE id = ?", key)
        while (count := _number(connection, "SELECT count(*) FROM incidents")) > known:
            used = page * (_number(connection, "PRAGMA page_count") - _number(connection, "PRAGMA freelist_count"))
            over = max(used + needed - self._file_bytes, 0)
            too_many = max(count + 1 - known - self.keep, 0)
            if not over and not too_many:
                return
            victims = max(too_many, min(_BATCH, -(-count * over // used)))
            query = "DELETE FROM incidents WHERE seq IN (SELECT seq FROM incidents WHERE id <> ? ORDER BY seq LIMIT ?)"
            connection.execute(query, (key, victims))

    def _delete_old(self, connection: sqlite3.Connection, before: float) -> int:
        """Delete incidents that were stored before that time, a few in each transaction; returns how many."""
        old = f"SELECT seq FROM incidents WHERE coalesce(stored, end) < ? LIMIT {_BATCH}"
        query = f"DELETE FROM incidents WHERE seq IN ({old})"
        total = 0
        while (gone := connection.execute(query, (before,)).rowcount) > 0:
            total += gone
        return total

    def _shrink(self, connection: sqlite3.Connection) -> None:
        """Give free pages back to the disk, all but those the next incidents will take."""
        while _number(connection, "PRAGMA freelist_count") > 2 * _VACUUM_PAGES:
            connection.execute(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})").fetchall()
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def _fold_log(self, connection: sqlite3.Connection) -> None:
        """Empty the log if it has grown. Raises OSError if a reader holds it and it has no room left."""
        from monitor.side.incidents.file import log_of

        with contextlib.suppress(FileNotFoundError):
            if log_of(self.path).stat().st_size > self._log_bytes // 2:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            if log_of(self.path).stat().st_size > self._log_bytes // 2:
                raise OSError(errno.EBUSY, "a process that reads it does not let its log shrink", str(self.path))

    # the file

    def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do ``work`` on the open file; one that turns out to be damaged is set aside, and it is done on a new one."""
        from monitor.side.incidents.file import Damaged

        with self._lock:
            try:
                self._guard()
                try:
                    result = self._attempt(work)
                except Damaged as error:
                    self._replace(error)
                    result = self._attempt(work)
            except Damaged as error:
                self._failed(f"the new incident store is damaged as well: {error}")
                raise OSError(errno.EIO, self.problem, str(self.path)) from error
            except (OSError, MonitorError) as error:
                self._failed(str(error))
                raise
            self.failing, self.problem = False, ""
            return result

    def _attempt(self, work: Callable[[sqlite3.Connection], T]) -> T:
        from monitor.side.incidents.file import connect, errors_of, prepare, verify

        seen = self._look()
        with errors_of(self.path), closing(connect(self.path, write=True, timeout_s=self.wait_s)) as connection:
            prepare(connection)
            if seen != self._checked:  # the first time, and whenever somebody else has touched it
                verify(connection)
            self._checked = None
            self._fold_log(connection)
            result = work(connection)
            self._shrink(connection)
            self.stored = _number(connection, "SELECT count(*) FROM incidents")
        self._checked = self._look()
        return result

    def _replace(self, reason: Exception) -> None:
        from monitor.side.incidents.file import errors_of
        from monitor.side.incidents.salvage import set_aside

        with errors_of(self.path):
            aside = set_aside(self.path, self._clock())
        self.set_aside += 1
        self._log.error(
            "the incident store was damaged; a new one is begun",
            path=str(self.path),
            set_aside=str(aside.path),
            saved=aside.saved,
            problem=str(reason),
        )

    def _guard(self) -> None:
        """Make the file if there is none. Raises MonitorError for one that is not safe to write to."""
        from monitor.side.incidents.file import index_of, log_of
        from monitor.side.incidents.salvage import adopt

        self._guard_directory()
        adopt(self.path)
        for path in (self.path, log_of(self.path), index_of(self.path)):
            with contextlib.suppress(FileNotFoundError):
                _guard_file(path, path.lstat())
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640))

    def _guard_directory(self) -> None:
        directory = self.path.parent
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        status = directory.stat()
        if status.st_uid != os.geteuid():
            raise MonitorError(f"{directory} belongs to user {status.st_uid}", "see `chown`; incidents are not stored")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise MonitorError(f"{directory} can be written by others", f"chmod go-w {directory}")

        if os.statvfs(directory).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self.path))  # SQLite would not say why

    def _failed(self, problem: str) -> None:
        self.failing, self.problem = True, problem


def _guard_file(path: Path, status: os.stat_result) -> None:
    """Raises MonitorError for a file that somebody else may have put there, or that leads elsewhere."""
    if stat.S_ISLNK(status.st_mode):
        raise MonitorError(f"{path} is a symbolic link", "remove it; incidents are not stored")
    if not stat.S_ISREG(status.st_mode):
        raise MonitorError(f"{path} is not a regular file", "remove it; incidents are not stored")
    if status.st_uid != os.geteuid():
        raise MonitorError(f"{path} belongs to user {status.st_uid}", "remove it; incidents are not stored")
    if status.st_nlink > 1:
        raise MonitorError(f"{path} has a second name (a hard link)", "remove one; incidents are not stored")


def _number(connection: sqlite3.Connection, query: str, *values: object) -> int:
    return int(connection.execute(query, values).fetchone()[0])


def _now(connection: sqlite3.Connection, now: float) -> float:
    """``now``, but never before what was stored last: a clock that was behind then must not make an incident old."""
    (last,) = connection.execute("SELECT max(coalesce(stored, end)) FROM incidents").fetchone()
    return now if last is None else max(now, float(last))


def store_in(state_dir: Path, log: Log) -> IncidentStore:
    """The store of a daemon, with the default bounds; nothing is opened yet."""
    return IncidentStore(state_dir / FILE_NAME, log=log)
