"""The journal of one receiver: operations of its `Outbox`, one line each, in a file of the state dir.

A line is the CRC-32 of its JSON (8 hex digits), a space, the JSON. A line that is damaged, as the last one is after a
power cut, is left out and counted; the others still say what they said. When the file has grown it is replaced, by
rename, by one with a single snapshot.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from monitor.side.alerts.queue import Operation, Outbox

#: A journal longer than this is compacted. A busy one holds some tens of KiB; a full outbox is about 2 MiB.
COMPACT_BYTES = 256 << 10
#: A journal longer than this was not written by us, and is not read.
MAX_BYTES = 64 << 20

_SUFFIX = ".journal"
_PREFIX = "alerts-"


def journal_path(state_dir: Path, key: str) -> Path:
    """Where the journal of the receiver ``key`` (its kind and URL) is: not told by the name, as a URL may be secret."""
    return state_dir / f"{_PREFIX}{hashlib.sha256(key.encode()).hexdigest()[:12]}{_SUFFIX}"


def leftovers(state_dir: Path, keep: Sequence[Path]) -> list[Path]:
    """Journals in the state dir of receivers that are not among those to ``keep``. Raises OSError."""
    return sorted(path for path in state_dir.glob(f"{_PREFIX}*{_SUFFIX}") if path not in keep)


def encode(operation: Operation) -> bytes:
    """One line, with its newline."""
    data = json.dumps(operation, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(data), data)


def decode(line: bytes) -> Operation:
    """The operation of a line without its newline. Raises ValueError when it is damaged."""
    checksum, space, data = line.partition(b" ")
    if not space or len(checksum) != 8 or int(checksum, 16) != zlib.crc32(data):
        raise ValueError("checksum does not match")
    operation = json.loads(data)
    if not isinstance(operation, dict):
        raise ValueError("not an operation")
    return operation


class Journal:
    """Appends to ``path``. Every method but `close` raises OSError. After a failure it is `broken` until `compact`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._size = 0
        self._unsynced = False

    @property
    def broken(self) -> bool:
        """Whether only `compact` can make it useful: it was never begun, or the last write failed."""
        return self._fd < 0

    @property
    def long(self) -> bool:
        """Whether `compact` is worth its fsync."""
        return self._size > COMPACT_BYTES

    def load(self, outbox: Outbox) -> int:
        """Replay the file into ``outbox``; returns how many damaged lines were left out. No file: nothing."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return 0
        with os.fdopen(fd, "rb") as file:
            data = file.read(MAX_BYTES)
        damaged = 0
        for line in data.split(b"\n"):
            if not line:
                continue
            try:
                outbox.replay(decode(line))
            except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
                damaged += 1
        return damaged

    def append(self, operations: Sequence[Operation]) -> None:
        """Write operations down: they survive this process from here on, and a power cut after `sync`."""
        if self.broken or not operations:
            return
        data = b"".join(map(encode, operations))
        try:
            _write_all(self._fd, data)
        except OSError:
            self.close()  # half a line may be in it: begin again
            raise
        self._size += len(data)
        self._unsynced = True

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        if self._unsynced:
            self._unsynced = False
            try:
                os.fdatasync(self._fd)
            except OSError:
                self.close()  # the kernel has thrown the pages away: a second fsync would say that all is well
                raise

    def compact(self, snapshot: Operation) -> None:
        """Replace the file by one that holds this snapshot only."""
        temporary = self.path.with_name(self.path.name + ".new")
        temporary.unlink(missing_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            data = encode(snapshot)
            _write_all(fd, data)
            # Before the rename, or after a power cut there could be an empty file where a good one was.
            os.fdatasync(fd)
            os.rename(temporary, self.path)
        except OSError:
            os.close(fd)
            temporary.unlink(missing_ok=True)
            raise
        self.close()
        self._fd, self._size = fd, len(data)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._unsynced = False


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
