"""A process that takes memory on request (a worker: `monitor.lab.worker`).

Orders: `go` takes the memory (answer `grown`), `free` gives it back (answer `freed`); each answer, and `ready`, carries
CLOCK_MONOTONIC nanoseconds.

Keys (defaults in `DEFAULTS`): cgroup=DIR; kind=anon, file (page cache of an unlinked file in dir=DIR, written, then
read once, which makes it active; reread=N: N times; sync=1: written back at once, because dirty pages that reclaim
comes upon become active; pin=1: kept in pipes that no process reads, as by a server whose clients do not read: it
stays inactive and cannot be reclaimed), shmem (tmpfs pages; of the file path=FILE, if given, which outlives the
process), tables (page tables and nothing in them: a page of each 2 MiB of addresses is read, which maps the zero page)
or dentries (of names in dir=DIR that do not exist; they outlive the process); mib=N; pages=4k|thp; rate=MiB per second
(0: full speed); cycles=N times grow and free per `go` (the last one holds); ignore_term=1; nice=N.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import select
import signal
import time
from contextlib import suppress

from monitor.lab.worker import (
    MAP_NORESERVE,
    MIB,
    Options,
    disable_huge_pages,
    join,
    read_order,
    write_line,
)

DEFAULTS = {
    "cgroup": "",
    "kind": "anon",
    "mib": "64",
    "pages": "4k",
    "rate": "0",
    "cycles": "1",
    "reread": "1",
    "pin": "0",
    "sync": "0",
    "path": "",
    "ignore_term": "0",
    "nice": "0",
    "dir": "/var/tmp",  # not /tmp, which may be a tmpfs
}
#: Address space that one page table of 4 KiB maps.
_MAPPED = 2 * MIB
#: Between two looks whether stdin is closed: 16 MiB of 4K faults take some 8 ms, and the look 2 us.
_FULL_SPEED_CHUNK = 16 * MIB
#: With a rate, a delay of so many seconds is made up for; after a longer one, of a CPU that stood still, memory would
#: be taken at once that is to come slowly.
_MADE_UP_S = 0.02


class Memory:
    """``size`` bytes that become resident when `take` is called on them, a chunk at a time."""

    def __init__(self, options: dict[str, str]) -> None:
        kind, size, pages, directory = options["kind"], int(options["mib"]) * MIB, options["pages"], options["dir"]
        self.kind, self.size = kind, size
        self._reread, self._pin, self._sync = int(options["reread"]), options["pin"] == "1", options["sync"] == "1"
        self._fd = -1
        self._pipes: list[int] = []
        if kind == "anon":
            # It may be more than the machine has (the demo on a VM of 1 GiB): the limit comes first.
            self._map = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
            self._map.madvise(mmap.MADV_HUGEPAGE if pages == "thp" else mmap.MADV_NOHUGEPAGE)
            self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        elif kind == "tables":
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
            self._map = mmap.mmap(-1, size // 4096 * _MAPPED, flags, mmap.PROT_READ)
            self._map.madvise(mmap.MADV_NOHUGEPAGE)
        elif kind == "dentries":
            self._directory = directory
        elif kind == "shmem":
            path = options["path"]
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT) if path else os.memfd_create("outrace-hog")
        else:  # file: unlinked at once, so that nothing is left on the disk however this process ends
            path = os.path.join(directory, f"outrace-hog-{os.getpid()}")
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.unlink(path)

    def take(self, start: int, length: int) -> None:
        if self.kind == "anon":
            ctypes.memset(self._address + start, 1, length)  # faults in C: as fast as the kernel hands out pages
        elif self.kind == "tables":
            first, last = start // 4096 * _MAPPED, (start + length) // 4096 * _MAPPED
            memoryview(self._map)[first:last:_MAPPED].tobytes()  # reads in C
        elif self.kind == "dentries":
            self._miss(start, length)
        else:
            self._write(start, length)

    def _write(self, start: int, length: int) -> None:
        block = bytes(min(length, MIB))
        while length > 0:
            done = os.pwrite(self._fd, block[:length], start)
            if self._pin:
                self._keep(start, done)
            start, length = start + done, length - done
        if self._sync:
            os.fdatasync(self._fd)

    def _miss(self, start: int, length: int) -> None:
        """Names of 240 bytes, which the kernel keeps in 192 bytes and 256. (On overlayfs in twice as much.)"""
        for number in range(start // 448, (start + length) // 448):
            with suppress(FileNotFoundError):
                os.stat(f"{self._directory}/{os.getpid():0120}{number:0120}")

    def _keep(self, start: int, length: int) -> None:
        """Put a piece of the file into a pipe, by reference."""
        reader, writer = os.pipe()
        self._pipes += (reader, writer)
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, MIB)
        while length > 0:
            moved = os.splice(self._fd, writer, length, offset_src=start)
            start, length = start + moved, length - moved

    def finish(self) -> None:
        """A file is read once more, or oftener, which is what makes its pages active."""
        for _ in range(self._reread if self.kind == "file" else 0):
            for start in range(0, self.size, MIB):
                os.pread(self._fd, MIB, start)

    def give_back(self) -> None:
        if self.kind in ("anon", "tables"):  # (which keeps the tables: they go with the process)
            self._map.madvise(mmap.MADV_DONTNEED)
        elif self.kind != "dentries":
            while self._pipes:
                os.close(self._pipes.pop())
            os.ftruncate(self._fd, 0)


def _grow(memory: Memory, rate: int) -> None:
    chunk = MIB if rate else _FULL_SPEED_CHUNK
    closed = select.poll()
    closed.register(0, 0)  # an order waits
    began = time.monotonic()
    for start in range(0, memory.size, chunk):
        memory.take(start, min(chunk, memory.size - start))
        due = began + (start + chunk) / MIB / rate if rate else 0.0
        if closed.poll(0):  # by the owner
            raise SystemExit
        ahead = due - time.monotonic()
        time.sleep(max(0.0, ahead))
        if ahead < -_MADE_UP_S:
            began -= ahead
    memory.finish()


def _go(memory: Memory, options: Options) -> None:
    for cycle in range(int(options["cycles"])):
        if cycle:
            memory.give_back()
        _grow(memory, int(options["rate"]))


def _answer(word: str) -> None:
    write_line(word, time.clock_gettime_ns(time.CLOCK_MONOTONIC))


def hog(given: Options) -> None:
    for key, value in given.items():
        if key not in DEFAULTS:
            raise SystemExit(f"hog: '{key}={value}' is not one of {', '.join(f'{k}=' for k in DEFAULTS)}")
    options = DEFAULTS | dict(given)
    if options["ignore_term"] == "1":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setpriority(os.PRIO_PROCESS, 0, int(options["nice"]))
    if options["pages"] == "4k":
        disable_huge_pages()
    memory = Memory(options)
    if options["cgroup"]:
        join(options["cgroup"])
    _answer("ready")
    with suppress(BrokenPipeError):
        for command in iter(read_order, ""):
            if command == "go":
                _go(memory, options)
                _answer("grown")
            else:
                memory.give_back()
                _answer("freed")
