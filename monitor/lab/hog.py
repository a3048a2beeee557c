"""A process that takes memory on request and has what it wrote checked (a worker: `monitor.lab.worker`).

Orders: `go` takes the memory (answer `grown FAILED`: how often a system call failed or came back short for want of
memory), `free` gives it back (`freed`), `check` reads all of it again (`right`, or
`wrong BYTES`: bytes that are not what was written).

Options of `hog`: ``freezer``, a cgroup of v1's; ``seed``, each has contents of its own; ``rate``, MiB per second (0:
full speed); ``cycles``, so often it grows and frees per `go` (the last time it holds); ``kind``, of `KINDS`: 4k, thp or
populate (page faults of 4 KiB, of huge pages, or all in one mmap), tmpfs or one-write (a file in memory, in small
pieces or by one system call; of ``path``, if given, which outlives the process), file (page cache of an unlinked file
in /var/tmp, written, then read ``reread`` times, which makes it active; ``sync``: written back at once, because dirty
pages that reclaim comes upon become active; ``pin``: kept in pipes that no process reads, as by a server whose clients
do not read: it stays inactive and cannot be reclaimed), fork (children of 2 MiB).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import random
import select
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from monitor.lab.worker import MIB, die_with_parent, disable_huge_pages, libc, read_order, ready, write_line

#: Where files on a disk are made: not in /tmp, which may be a tmpfs.
_DISK = "/var/tmp"
#: Between two looks whether stdin is closed: 16 MiB of 4K faults take some 8 ms, and the look 2 us.
_FULL_SPEED_CHUNK = 16 * MIB
#: With a rate, a delay of so many seconds is made up for; after a longer one, of a CPU that stood still, memory would
#: be taken at once that is to come slowly.
_MADE_UP_S = 0.02
#: What a program writes at once: cp and Go's io.Copy take 32 to 256 KiB.
_SMALL = 64 << 10
#: IOV_MAX: so many pieces may one system call have.
_PIECES = 1024
#: MiB that each forked child takes, and what it costs with its interpreter's pages, stack and page tables.
_CHILD_MIB, _CHILD_COSTS_MIB = 2, 2.7
_MAP_NORESERVE = 0x4000  # <asm-generic/mman.h>: mmap of Python 3.11 does not have it
#: What short memory looks like to a program.
_SHORT = (errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC)
_AGAIN_S = 0.01
#: Between two looks whether a child has died instead of growing.
_LOOK_S = 0.1
_FAILED = 1
P = ParamSpec("P")
T = TypeVar("T")


class Patience:
    """Does a system call again until it succeeds, as a careful program does. ``failed``: how often it did not."""

    failed = 0

    def __call__(self, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        while True:
            try:
                return call(*arguments, **named)
            except OSError as error:
                if error.errno not in _SHORT:
                    raise
            except MemoryError:
                pass
            self.came_short()

    def came_short(self) -> None:
        self.failed += 1
        time.sleep(_AGAIN_S)


patience = Patience()


class Load:
    """``size`` bytes that become resident when `take` is called on them, ``chunk`` bytes (whole MiB) at a time."""

    chunk = _FULL_SPEED_CHUNK

    def __init__(self, kind: str, mib: int, seed: int) -> None:
        self.kind, self.size, self.seed = kind, mib * MIB, seed

    def take(self, start: int, length: int) -> None:
        raise NotImplementedError

    def give_back(self) -> None:
        """What can be given back before the process ends."""

    def wrong(self) -> int:
        """Bytes that are not what was written."""
        return 0


class Anonymous(Load):
    """Each MiB is filled with a byte of its own: as fast as the kernel hands out pages."""

    def __init__(self, kind: str, mib: int, seed: int) -> None:
        super().__init__(kind, mib, seed)
        self._map: mmap.mmap | None = None
        self._address = 0
        if self.kind == "populate":
            self.chunk = self.size

    def _byte(self, number: int) -> int:
        return 1 + (31 * self.seed + number) % 255

    def take(self, start: int, length: int) -> None:
        if self._map is None:
            # It may be more than the machine has (the demo on a VM of 1 GiB): the limit comes first.
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
            populated = self.kind == "populate"
            self._map = mmap.mmap(-1, self.size, flags | (mmap.MAP_POPULATE if populated else 0))
            if not populated:
                self._map.madvise(mmap.MADV_HUGEPAGE if self.kind == "thp" else mmap.MADV_NOHUGEPAGE)
            self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        for at in range(start, start + length, MIB):
            ctypes.memset(self._address + at, self._byte(at // MIB), MIB)  # faults in C

    def give_back(self) -> None:
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)

    def wrong(self) -> int:
        # In place and in small pieces: a copy might be the page too much.
        bad: int = sum(
            libc.memcmp(ctypes.c_void_p(self._address + at), bytes((self._byte(at // MIB),)) * _SMALL, _SMALL) != 0
            for at in range(0, self.size, _SMALL)
        )
        return bad * _SMALL


class File(Load):
    """A file in memory (tmpfs, one-write) or on a disk (file)."""

    def __init__(
        self, kind: str, mib: int, seed: int, *, path: str = "", reread: int = 1, sync: int = 0, pin: int = 0
    ) -> None:
        super().__init__(kind, mib, seed)
        # What is written: never zero, different in each place and each process.
        random_bytes = random.Random(seed).randbytes(2 * MIB)
        self._contents = memoryview(random_bytes.translate(bytes((1, *range(1, 256)))))
        self._reread, self._pin, self._sync = reread, pin, sync
        self._piece = {"file": MIB, "one-write": -(-self.size // _PIECES)}.get(self.kind, _SMALL)
        if self.kind == "one-write":
            self.chunk = self.size
        self._pipes: list[int] = []
        if self.kind != "file":
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT) if path else os.memfd_create("outrace-hog")
        else:  # unlinked at once, so that nothing is left on the disk however this process ends
            path = f"{_DISK}/outrace-hog-{os.getpid()}"
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.unlink(path)

    def _pieces(self, start: int, length: int) -> Iterable[memoryview]:
        for at in range(start, start + length, self._piece):
            first = at // self._piece * 4099 % MIB
            yield self._contents[first : first + min(self._piece, start + length - at)]

    def take(self, start: int, length: int) -> None:
        at = start
        pieces = self._pieces(start, length)
        for batch in [list(pieces)] if self.kind == "one-write" else ([piece] for piece in pieces):
            at = self._write(batch, at)
        if self._sync:
            os.fdatasync(self._fd)
        for _ in range(self._reread if self.kind == "file" and at == self.size else 0):
            for again in range(0, self.size, MIB):
                os.pread(self._fd, MIB, again)

    def _write(self, left: list[memoryview], at: int) -> int:
        """One system call; another for the rest where it came back short. Returns where it ended."""
        while left:
            done = patience(os.pwritev, self._fd, left, at)
            if self._pin:
                self._keep(at, done)
            at += done
            while left and done >= len(left[0]):
                done -= len(left.pop(0))
            if left:
                left[0] = left[0][done:]
                patience.came_short()
        return at

    def _keep(self, start: int, length: int) -> None:
        """Put a piece of the file into a pipe, by reference."""
        reader, writer = os.pipe()
        self._pipes += (reader, writer)
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, MIB)
        while length > 0:
            moved = os.splice(self._fd, writer, length, offset_src=start)
            start, length = start + moved, length - moved

    def give_back(self) -> None:
        while self._pipes:
            os.close(self._pipes.pop())
        os.ftruncate(self._fd, 0)

    def wrong(self) -> int:
        # As bytes: a memoryview is compared one element at a time (107 us for 64 KiB instead of 3).
        return sum(
            len(piece)
            for number, piece in enumerate(self._pieces(0, self.size))
            if os.pread(self._fd, len(piece), number * self._piece) != bytes(piece)
        )


class Fork(Load):
    """Children, one after the other, that take 2 MiB each and stay."""

    def __init__(self, kind: str, mib: int, seed: int) -> None:
        super().__init__(kind, mib, seed)
        self.chunk = self.size
        self._count = max(1, int(self.size / MIB / _CHILD_COSTS_MIB))
        self._grown, self._say_grown = os.pipe()
        self._checks, self._check = os.pipe()
        self._dead = 0  # before they were asked to end

    def take(self, start: int, length: int) -> None:
        owner = os.getpid()
        for number in range(self._count):
            if patience(os.fork):
                continue
            try:
                self._child(owner, number)
            finally:
                os._exit(_FAILED)
        grown = 0
        while grown + self._dead < self._count:
            if select.select([self._grown], [], [], _LOOK_S)[0]:
                grown += len(os.read(self._grown, self._count))
            elif os.waitpid(-1, os.WNOHANG)[0]:
                self._dead += 1

    def _child(self, owner: int, number: int) -> None:
        die_with_parent(owner)
        memory = Anonymous("4k", _CHILD_MIB, self.seed + number)
        memory.take(0, memory.size)
        patience(os.write, self._say_grown, b"x")  # a pipe's page is charged too
        os.read(self._checks, 1)
        os._exit(_FAILED if memory.wrong() else 0)

    def wrong(self) -> int:
        bad = self._dead
        for _ in range(self._count - self._dead):  # one after the other: looking takes memory too
            patience(os.write, self._check, b"x")
            bad += os.wait()[1] != 0
        return bad * _CHILD_MIB * MIB


#: Loads whose memory is checked when they were held, in the order in which a bench runs them.
CHECKED: dict[str, type[Load]] = {
    "4k": Anonymous,
    "thp": Anonymous,
    "tmpfs": File,
    "fork": Fork,
    "populate": Anonymous,
    "one-write": File,
}
KINDS = {**CHECKED, "file": File}


def _grow(load: Load, rate: int) -> None:
    chunk = MIB if rate else load.chunk
    closed = select.poll()
    closed.register(0, 0)  # an order waits
    began = time.monotonic()
    for start in range(0, load.size, chunk):
        load.take(start, min(chunk, load.size - start))
        due = began + (start + chunk) / MIB / rate if rate else 0.0
        if closed.poll(0):  # by the owner
            raise SystemExit
        ahead = due - time.monotonic()
        time.sleep(max(0.0, ahead))
        if ahead < -_MADE_UP_S:
            began -= ahead


def hog(
    cgroup: str,
    *,
    freezer: str = "",
    kind: str = "4k",
    mib: int = 64,
    seed: int = 0,
    rate: int = 0,
    cycles: int = 1,
    ignore_term: int = 0,
    nice: int = 0,
    **of_file: Any,
) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN if ignore_term else signal.SIG_DFL)
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    if kind != "thp":
        disable_huge_pages()
    load = KINDS[kind](kind, mib, seed, **of_file)
    ready(*filter(None, (freezer, cgroup)))
    with suppress(BrokenPipeError):
        for order in iter(read_order, ""):
            if order == "go":
                for cycle in range(cycles):
                    if cycle:
                        load.give_back()
                    _grow(load, rate)
                patience(write_line, "grown", patience.failed)
            elif order == "free":
                load.give_back()
                write_line("freed")
            else:
                wrong = load.wrong()
                patience(write_line, *(("wrong", wrong) if wrong else ("right",)))
