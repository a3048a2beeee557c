"""`--record FILE`: the passes of the hot process and every event of a race, written block by block, read up to the
first damage.

    OUTRACE-RECORDING 2\\n                     what it is and the version of its format
    block, block, ...

A block is a head (`_HEAD`: mark, bytes compressed, bytes plain, number of its first record, CRC-32 of the rest of the
head and the body) and a body: lines of JSON, compressed by zlib, each block for itself, so that what was written before
a crash or a damage can be read. The first block of every file holds one line, the header. All others hold records,
numbered without a gap over all files of a recording: where a number is missing, so is a record.

Files rotate by size: FILE is the newest, FILE.1 the one before it. A rotation overwrites only the oldest
file, and only if it is a recording or empty.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import stat
import struct
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import IO, Any, NamedTuple

from monitor import __version__
from monitor.errors import MonitorError
from monitor.link.messages import NAMES, Message, OfPasses, Snapshot
from monitor.race.codec import plain
from monitor.race.episode import State
from monitor.race.events import Event
from monitor.settings.config import RunConfig
from monitor.side.export.log import Log
from monitor.side.worker import Worker

#: 2 has an event more than 1 (what pods had before a crossing); both are read.
VERSION = 2
MAGIC = b"OUTRACE-RECORDING "
#: Size at which a file is rotated, and how many are kept: 256 MiB, days of a quiet node.
FILE_BYTES, FILES = 64 << 20, 4
#: A block is written when it holds so many records, some 100 KiB, or each second: JSON shrinks to a tenth.
BLOCK_RECORDS = 128
#: No block is larger: more is damage, and not to be unpacked. (The largest record is a state of the reducer.)
_MOST_BYTES = 64 << 20
_MARK = b"\xf5REC"
_HEAD = struct.Struct("<4sIIQI")
_FIRST_LINE = 32  # bytes, far more than it has
_SHAPE = {"n": int, "k": str, "v": dict}  # of a record


@dataclass(eq=False)
class Writer:
    """Writes blocks of records into FILE and its rotated forerunners; from one thread.

    ``header`` is made part of every file's header. ``on_new()`` is called when a file was begun after the first one.
    """

    path: Path
    header: Mapping[str, Any]
    on_new: Callable[[], None] = lambda: None
    file_bytes: int = FILE_BYTES
    files: int = FILES
    written: int = 0  # bytes, over all files
    lost: int = 0  # records that could not be written
    _fd: int = -1
    _size: int = 0  # of the present file, up to the end of its last good block
    _part: int = 0  # of the next file

    def write(self, first: int, lines: list[bytes]) -> None:
        """Write a block, of records from number ``first`` on. Raises OSError: these are lost, the next call tries."""
        try:
            block = _block(first, lines)
            if self._size + len(block) > self.file_bytes:
                self.close()
            if self._fd < 0:
                self._begin(first)
            self._append(block)
        except OSError:
            self.lost += len(lines)
            raise

    def close(self) -> None:
        """A network file system may refuse here what it had accepted; the number is free then too."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)

    def _begin(self, first: int) -> None:
        """Begin a new file; the old ones move up, the oldest is deleted."""
        self._make_room()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(self.path, flags, 0o640)
        self._size = 0
        header = json.dumps({**self.header, "part": self._part, "first": first}, separators=(",", ":")).encode()
        try:
            self._append(MAGIC + f"{VERSION}\n".encode() + _block(first, [header]))
        except OSError:
            self.close()
            self.path.unlink(missing_ok=True)  # an empty file is of no use, and costs an old one its place
            raise
        self._part += 1
        if self._part > 1:
            self.on_new()

    def _make_room(self) -> None:
        """Rename FILE.2 to FILE.3 and so on, so that FILE is free."""
        if not os.path.lexists(self.path):
            return
        names = [self.path, *(self.path.with_name(f"{self.path.name}.{i}") for i in range(1, self.files))]
        taken = next((i for i, name in enumerate(names) if not os.path.lexists(name)), len(names) - 1)
        for name in names[: taken + 1]:
            _check_replaceable(name)
        for i in range(taken, 0, -1):
            os.rename(names[i - 1], names[i])

    def _append(self, data: bytes) -> None:
        """All of it, or none."""
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            try:
                os.ftruncate(self._fd, self._size)  # half a block would be read as damage
                os.lseek(self._fd, self._size, os.SEEK_SET)
            except OSError:
                self.close()  # then the next block begins a new file
            raise
        self._size += len(data)
        self.written += len(data)


def _check_replaceable(path: Path) -> None:
    """Raises OSError if there is something else than a recording: it is not ours to move or to remove."""
    other = "no regular file: name another one with --record"
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise OSError(errno.EINVAL, other, str(path))
        # In /tmp it may be a FIFO by now, which would be waited for.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, other, str(path))
        if status.st_size and file.read(len(MAGIC)) != MAGIC:  # an empty one is of mktemp
            why = "holds something else than a recording: name another file with --record"
            raise OSError(errno.EEXIST, why, str(path))


def _block(first: int, lines: list[bytes]) -> bytes:
    plain = b"\n".join(lines) + b"\n"
    body = zlib.compress(plain, 6)
    head = _HEAD.pack(_MARK, len(body), len(plain), first, 0)[:-4]
    return head + struct.pack("<I", zlib.crc32(body, zlib.crc32(head))) + body


class Damage(NamedTuple):
    """Where a recording cannot be read any more: the byte in the file, and the number of the first record lost."""

    file: str
    offset: int
    record: int
    problem: str

    def __str__(self) -> str:
        return f"{self.file}: damaged at byte {self.offset}, record {self.record}: {self.problem}"


class Reader:
    """One file of a recording: its ``header`` (None if that much is damaged), then its records in order.

    `damage` is after the last record why there are no more; None at an undamaged end. Raises MonitorError if the file
    is no recording, or one of a newer format.
    """

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file = file
        self._name = name
        self._offset = 0  # of the block being read
        self._next = 0  # number of the next record
        self.damage: Damage | None = None
        self.header: dict[str, Any] | None = None
        self._check_first_line()
        self._lines = self._read_lines()
        line = next(self._lines, None)
        if isinstance(line, dict):
            self.header = line
            self._next = int(line["first"]) if isinstance(line.get("first"), int) else 0
        else:
            self.spoilt("it ends before its header")

    def records(self) -> Iterator[dict[str, Any]]:
        """The records: each an object with its number `n`, its kind `k` and its content, `v`. Ends at the first
        damage.
        """
        for line in self._lines if self.damage is None else ():
            if not isinstance(line, dict) or any(type(line.get(key)) is not kind for key, kind in _SHAPE.items()):
                self.spoilt("a record has not the form of one")
                return
            yield line
            if self.damage is not None:  # the user of the record found it
                return
            self._next = line["n"] + 1

    def spoilt(self, problem: str) -> None:
        """The record being read cannot be used, and so nothing after it is. What was found first stays."""
        self.damage = self.damage or Damage(self._name, self._offset, self._next, problem)

    def _check_first_line(self) -> None:
        try:
            line = self._file.readline(_FIRST_LINE)
        except OSError:
            line = b""
        version = line[len(MAGIC) : -1]
        if not line.startswith(MAGIC) or not line.endswith(b"\n") or not version.isdigit():
            raise MonitorError(f"{self._name}: no recording", "name a file that `outrace run --record FILE` wrote")
        if int(version) > VERSION:
            raise MonitorError(
                f"{self._name}: recorded in format {int(version)}, and this outrace reads up to {VERSION}",
                "replay it with the version that recorded it",
            )
        self._offset = len(line)

    def _read_lines(self) -> Iterator[Any]:
        """The lines of JSON of all blocks, the header first; up to the first damage."""
        try:
            while head := self._file.read(_HEAD.size):
                plain, length = self._block(head)
                yield from map(json.loads, plain.splitlines())
                self._offset += length
        except (ValueError, RecursionError, OSError) as error:
            self.spoilt(str(error))

    def _block(self, head: bytes) -> tuple[bytes, int]:
        """What a block holds, unpacked, and its length in the file. Raises ValueError that says how it is damaged."""
        if len(head) < _HEAD.size:
            raise ValueError("it ends within the head of a block")
        mark, size, plain_size, _, crc = _HEAD.unpack(head)
        if mark != _MARK or max(size, plain_size) > _MOST_BYTES:
            raise ValueError("no block begins here")
        body = self._file.read(size)
        if len(body) < size:
            raise ValueError(f"it ends within a block, after {len(body)} of its {size} bytes")
        if zlib.crc32(body, zlib.crc32(head[:-4])) != crc:
            raise ValueError("a block does not have the checksum it was written with")
        try:
            plain = zlib.decompressobj().decompress(body, plain_size + 1)
        except zlib.error as error:
            raise ValueError(f"a block cannot be unpacked: {error}") from None
        if len(plain) != plain_size:
            raise ValueError("a block has another size than it says")
        return plain, _HEAD.size + size


# the recorder of the daemon

#: Blocks waiting to be written: some seconds of everything at once, a few MiB.
_QUEUE = 64
#: What is lost at most when the machine loses its power or the helper is killed.
FLUSH_NS = 1_000_000_000
#: The fields of a RunConfig that decide anything. (Not those that may hold a secret, such as URLs of Alertmanagers.)
CONFIG_FIELDS = (
    "node_cgroup", "pods", "enforce", "evict_by", "hold", "hold_limit_ns", "two_steps", "hard_grace_ns",
    "trigger", "policy", "compat", "eviction_hard", "eviction_soft",
    "eviction_soft_grace_period", "eviction_minimum_reclaim", "eviction_max_pod_grace_period_s",
    "eviction_pressure_transition_period_ns", "enforce_node_allocatable", "system_reserved", "kube_reserved",
    "local_storage", "layout_image_fs",
)  # fmt: skip


def header(config: RunConfig, cgroup_version: int, realtime_ns: int) -> dict[str, Any]:
    """What a replay has to know besides the records. ``realtime_ns``: Unix time less CLOCK_MONOTONIC."""
    return {
        "outrace": __version__,
        "session": uuid.uuid4().hex,  # the files of one side process belong together
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cgroup_version": cgroup_version,
        "page_size": os.sysconf("SC_PAGE_SIZE"),
        "realtime_ns": realtime_ns,
        "began_ns": time.monotonic_ns(),
        "config": {name: getattr(config, name) for name in CONFIG_FIELDS},
    }


class Recorder:
    """The main loop numbers the records and queues them in blocks; a thread makes JSON of them, compresses and writes.
    What finds no room in the queue, or on the disk, is missing in the numbers, and the recording goes on with a new
    snapshot.

    ``ask()`` has the hot process send a snapshot; False if the request could not be sent, and then `turn` calls it
    again.
    """

    def __init__(self, path: Path, head: Mapping[str, Any], log: Log, ask: Callable[[], bool]) -> None:
        self._path = path
        self._log = log
        self._ask = ask
        self._number = 0  # of the next record
        self._waiting: list[tuple[str, Callable[[], dict[str, Any]]]] = []  # the last records: kind, and what it has
        self._waiting_ns = 0  # since when
        self._writer = Writer(path, head, self._renew)
        self._worker = Worker("recording", _QUEUE, on_error=self._failed, on_recovered=self._recovered)
        self._not_queued = self._hot_missed = 0  # records
        log.info("recording", path=str(path), file_bytes=FILE_BYTES, files=FILES)
        self._passes_wanted = True  # a snapshot of the hot process
        self.state_wanted = False  # one of the reducer; it begins empty, like that of a replay

    @property
    def dropped(self) -> int:
        return self._not_queued + self._writer.lost + self._hot_missed

    @property
    def written(self) -> int:
        return self._writer.written

    @property
    def failing(self) -> bool:
        return self._worker.failing is not None

    def handle(self, message: Message) -> None:
        if not isinstance(message, OfPasses):
            return
        if isinstance(message, Snapshot):
            self._hot_missed = message.missed
        self._add(NAMES[type(message)], message._asdict)

    def event(self, event: Event) -> None:
        self._add("event", partial(plain, event))

    def state(self, state: State) -> None:
        """The reducer's state after the last event; where `state_wanted`."""
        self.state_wanted = False
        self._add("state", state.to_json)

    def due_s(self) -> float:
        if self._passes_wanted:
            return 1.0
        return (self._waiting_ns + FLUSH_NS - time.monotonic_ns()) / 1e9 if self._waiting else inf

    def turn(self) -> None:
        if self._passes_wanted and self._ask():
            self._passes_wanted = False
        if self._waiting and time.monotonic_ns() >= self._waiting_ns + FLUSH_NS:
            self._queue()

    def close(self, timeout_s: float) -> None:
        self._queue()
        if self._worker.close(timeout_s):  # then its thread has ended
            self._writer.close()

    def _add(self, kind: str, make: Callable[[], dict[str, Any]]) -> None:
        if not self._waiting:
            self._waiting_ns = time.monotonic_ns()
        self._waiting.append((kind, make))
        self._number += 1
        if len(self._waiting) == BLOCK_RECORDS:
            self._queue()

    def _queue(self) -> None:
        block, self._waiting = self._waiting, []
        first = self._number - len(block)
        if block and not self._worker.submit(lambda: self._write(first, block)):
            self._not_queued += len(block)
            self._renew()

    def _write(self, first: int, block: list[tuple[str, Callable[[], dict[str, Any]]]]) -> None:
        records = ({"n": number, "k": kind, "v": make()} for number, (kind, make) in enumerate(block, first))
        self._writer.write(first, [json.dumps(record, separators=(",", ":")).encode() for record in records])

    def _renew(self) -> None:
        """Records from here on have to make sense without the earlier ones. From any thread."""
        self._passes_wanted = self.state_wanted = True

    def _failed(self, error: OSError) -> None:
        path = str(error.filename or self._path)
        self._log.failed("the recording cannot be written; trying again", error, path=path)

    def _recovered(self) -> None:
        self._renew()
        self._log.info("the recording is written again", path=str(self._path), lost=self._writer.lost)
