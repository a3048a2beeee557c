"""The store of incidents: every pressure episode with its verdict, in `STATE_DIR/incidents.db`, bounded.

The file is opened for each incident and closed after it. Incidents are rare, opening takes a millisecond, and between
two of them nothing is held: no descriptor of a file that was removed meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monitor.errors import MonitorError
from monitor.owner import changed_by, mend
from monitor.side.export.log import Log
from monitor.side.incidents.reader import (
    Damaged,
    IncidentReader,
    damaged_files,
    encode,
    journal_of,
    number,
    opened,
    prepare,
    transaction,
    upsert,
)

if TYPE_CHECKING:
    import sqlite3

MAX_AGE_S = 30 * 86400.0
MAX_BYTES = 64 << 20
KEEP = 10_000
#: How long a lock of another process is waited for, in seconds.
WAIT_S = 2.0
#: Damaged files that are kept; each is at most as large as the store.
KEEP_DAMAGED = 3
#: Rows too old that are deleted in one transaction: its journal stays small.
_BATCH = 200
#: Deletes from the namespace with most incidents, there from the pods with most, oldest first: a tenant makes
#: any number of pods.
_SURPLUS = """DELETE FROM incidents WHERE seq IN (
    SELECT seq FROM (SELECT seq, count(*) OVER (PARTITION BY substr(pods, 1, instr(pods, '/'))) AS those,
        count(*) OVER (PARTITION BY pods) AS its FROM incidents WHERE id <> ?)
    ORDER BY those DESC, its DESC, seq LIMIT ?)"""


def _boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def steady_clock(wall: Callable[[], float] = time.time, boot: Callable[[], float] = _boot_s) -> Callable[[], float]:
    """Unix seconds: the wall clock read once, then the time since boot. Setting the clock ages nothing."""
    since = wall() - boot()
    return lambda: since + boot()


@dataclass(eq=False)
class IncidentStore(IncidentReader):
    """Writes incidents to ``path``, from one thread. Every method may block and raise OSError.

    For metrics, readable from any thread without waiting: ``problem`` (why the last write failed, in one line; "" if it
    did not); ``stored`` incidents (None before the file was looked at); ``lost`` incidents, refused for good.
    """

    wait_s: float = WAIT_S
    max_age_s: float = MAX_AGE_S
    max_bytes: int = MAX_BYTES
    keep: int = KEEP
    log: Log = field(default_factory=Log)
    clock: Callable[[], float] = field(default_factory=steady_clock)

    def __post_init__(self) -> None:
        # A quarter is for SQLite's journal, and the file grows by one incident before others go.
        self._largest = self.max_bytes // 16
        self._file_bytes = self.max_bytes - self.max_bytes // 4 - self._largest
        self.problem = ""
        self.stored: int | None = None
        self.lost = 0
        self._checked = False

    def record(self, incident: Mapping[str, Any]) -> None:
        """`add` as a worker's job: raises an OSError that may pass; logs other errors and counts them in `lost`."""
        before = self.problem
        try:
            self.add(incident)
        except MonitorError as error:
            self.lost += 1
            if str(error) != before:
                self.log.error("an incident was not stored", incident=incident.get("id"), problem=str(error))

    def add(self, incident: Mapping[str, Any]) -> None:
        """Store an incident, or a later version of one; where they do not fit, others are deleted (`_make_room`).

        On disk when it returns. Raises MonitorError for one that cannot be stored or a file that must not be written
        to, and OSError for what may pass (no space, read-only, locked); then nothing has changed.
        """
        row = encode(incident)
        size = len(row["head"]) + len(row["steps"] or b"")
        if size > self._largest:
            raise MonitorError(f"incident {row['id']!r} is too large to be stored ({size} bytes)")
        try:
            self._guard()
            try:
                self._write(row)
            except Damaged as error:
                self._rename_damaged(error)
                self._write(row)
        except Damaged as error:
            self.problem = f"the new incident store is damaged as well: {error}"
            raise OSError(errno.EIO, self.problem, str(self.path)) from error
        except (OSError, MonitorError) as error:
            self.problem = str(error)
            raise
        self.problem = ""

    def _write(self, row: dict[str, Any]) -> None:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640))
        with opened(self.path, "rw", self.wait_s) as connection:
            prepare(connection)
            if not self._checked:
                (answer,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
                if answer != "ok":
                    raise Damaged(str(answer).replace("\n", " "))
                self._checked = True
            with transaction(connection):
                # Never before what was stored last: a clock that was behind then must not make an incident old.
                (last,) = connection.execute("SELECT max(stored) FROM incidents").fetchone()
                upsert(connection, row | {"stored": max(self.clock(), last or 0.0)})
                self._make_room(connection, row["id"])
            old = f"SELECT seq FROM incidents WHERE stored < ? LIMIT {_BATCH}"
            while connection.execute(
                f"DELETE FROM incidents WHERE seq IN ({old})", (self.clock() - self.max_age_s,)
            ).rowcount:
                pass
            self.stored = number(connection, "SELECT count(*) FROM incidents")

    def _make_room(self, connection: sqlite3.Connection, key: str) -> None:
        """Delete incidents other than ``key``, in the order of `_SURPLUS`, until the rest fits. A pod
        that kills its own children, or runs into its own limit all day, leaves other pods theirs.
        """
        page = number(connection, "PRAGMA page_size")
        while True:
            count = number(connection, "SELECT count(*) FROM incidents")
            used = page * (number(connection, "PRAGMA page_count") - number(connection, "PRAGMA freelist_count"))
            surplus = max(count - self.keep, -(-count * (used - self._file_bytes) // used))
            if surplus <= 0 or count == 1:
                return
            connection.execute(_SURPLUS, (key, surplus))

    def _rename_damaged(self, reason: Exception) -> None:
        """Give the damaged file another name, the newest `KEEP_DAMAGED` of which are kept."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self.clock()))
        aside = self.path.with_name(f"{self.path.name}.damaged-{stamp}")
        # The file last: killed before that, it is found damaged again, and its journal is never the new file's.
        for suffix in ("-wal", "-shm", "-journal", ""):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{self.path}{suffix}").rename(f"{aside}{suffix}")
        for old in damaged_files(self.path)[:-KEEP_DAMAGED]:
            for suffix in ("-wal", "-shm", "-journal", ""):
                Path(f"{old}{suffix}").unlink(missing_ok=True)
        self.log.error(
            "the incident store is damaged; it is renamed and a new one begun",
            path=str(self.path),
            renamed=str(aside),
            problem=str(reason),
        )

    def _guard(self) -> None:
        """Raises MonitorError for a file or directory that is not safe to write to: it is done as root."""
        directory = self.path.parent
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        if problem := changed_by(directory):
            raise MonitorError(problem, f"{mend(problem)}; incidents are not stored")
        if os.statvfs(directory).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self.path))  # SQLite would not say why
        for path in (self.path, journal_of(self.path)):
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink > 1:
                    raise MonitorError(
                        f"{path} is not a regular file of ours, or has a second name (a link)",
                        "remove it; incidents are not stored",
                    )
