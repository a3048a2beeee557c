"""The undelivered alerts of all receivers, in one file of the state dir, so that they survive this process.

A thread of its own writes the whole of it to a new file, flushes that and renames it over the old one: a kill or a
power cut at any moment leaves the one or the other. Changes are gathered for `BATCH_S`, so a storm of alerts costs two
writes a second, and nobody who sends waits for a disk: under memory pressure a flush can take seconds.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from monitor.kernel.sched import hurry
from monitor.side.export.log import Log

FILE_NAME = "alerts.json"
#: Pause between two writes, in seconds. The first change after a pause is written at once.
BATCH_S = 0.5
#: A file longer than this was not written by us. A full outbox is about 2 MiB.
MAX_BYTES = 64 << 20
_VERSION = 1


class StateFile(threading.Thread):
    """``snapshot`` gives what is to be written: an object for each receiver. `changed` may be called by any thread."""

    def __init__(self, path: Path, snapshot: Callable[[], Mapping[str, Any]], log: Log) -> None:
        super().__init__(name="alerts state", daemon=True)
        self._path = path
        self._snapshot = snapshot
        self._log = log
        self._wake = threading.Condition()
        self._dirty = False
        self._ended = False
        self._problem: int | None = None  # errno of the last write, while it fails

    def load(self) -> dict[str, Any]:
        """What was written last; nothing, and a line in the log, if it cannot be read."""
        try:
            with open(os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
                found = json.loads(file.read(MAX_BYTES))
            if found["version"] != _VERSION:
                raise ValueError(f"version {found['version']!r}, this outrace knows {_VERSION}")
            return dict(found["receivers"])
        except FileNotFoundError:
            return {}
        except (OSError, LookupError, TypeError, ValueError, RecursionError) as error:
            problem = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            self._log.error("alerts from before the restart cannot be read", path=str(self._path), problem=problem)
            return {}

    def changed(self) -> None:
        """Have it written."""
        with self._wake:
            self._dirty = True
            self._wake.notify()

    def close(self) -> None:
        """Write what has changed, and end."""
        with self._wake:
            self._ended = True
            self._wake.notify()

    def run(self) -> None:
        """Write until `close`."""
        hurry()
        ended = False
        while not ended:
            with self._wake:
                self._wake.wait_for(lambda: self._dirty or self._ended)
                ended, dirty, self._dirty = self._ended, self._dirty, False
            written = not dirty or self._write()
            with self._wake:
                self._dirty |= not written
                self._wake.wait_for(lambda: self._ended, BATCH_S)

    def _write(self) -> bool:
        data = json.dumps({"version": _VERSION, "receivers": self._snapshot()}, separators=(",", ":")).encode()
        try:
            replace(self._path, data)
        except OSError as error:
            if error.errno != self._problem:
                self._log.error(
                    "alerts that wait would not survive a restart: their state cannot be written",
                    path=str(self._path),
                    problem=error.strerror,
                )
            self._problem = error.errno
            return False
        self._problem = None
        return True


def replace(path: Path, data: bytes) -> None:
    """Put a file with ``data`` in the place of ``path``, all of it or nothing. Raises OSError."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # before the rename, or a power cut could leave an empty file
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
