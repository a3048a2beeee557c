"""A process whose memory is checked: what was held must be right when it goes on (a worker: `monitor.lab.worker`).

Orders: `go` takes the memory (answer `grown NS FAILED`: CLOCK_MONOTONIC, and how often a system call failed or came
back short for want of memory, a row of failures counted once), `check` reads all of it again (answer `right BYTES` or
`wrong BYTES`: bytes that are not what was written). The memory goes with the process.

Keys: cgroup=DIR, freezer=DIR (of cgroup v1), kind=NAME of `KINDS`, mib=N, seed=N (each has contents of its own).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from monitor.kernel.procfs import readable
from monitor.lab.worker import (
    MAP_NORESERVE,
    MIB,
    Options,
    die_with_parent,
    disable_huge_pages,
    join,
    libc,
    read_order,
    write_line,
)

#: What a program writes at once: cp and Go's io.Copy take 32 to 256 KiB.
_SMALL = 64 << 10
#: IOV_MAX: so many pieces may one system call have.
_PIECES = 1024
#: MiB that each forked child takes.
_CHILD_MIB = 2
#: What such a child costs with its interpreter's pages, stack and page tables.
_CHILD_COSTS_MIB = 2.7
#: What short memory looks like to a program: pipes and sockets say EAGAIN only when they are full.
_SHORT = (errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC)
_AGAIN_S = 0.01
#: Between two looks whether a child has died instead of growing.
_LOOK_S = 0.1
_FAILED = 1
_SO_SNDBUFFORCE = 32
P = ParamSpec("P")
T = TypeVar("T")


class Patience:
    """Does a system call again until it succeeds, as a careful program does, and counts that it had to."""

    def __init__(self) -> None:
        self.failed = 0
        self._failing = False

    def __call__(self, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        while True:
            try:
                done = call(*arguments, **named)
            except OSError as error:
                if error.errno not in _SHORT:
                    raise
                self.came_short()
            except MemoryError:
                self.came_short()
            else:
                self._failing = False
                return done
            time.sleep(_AGAIN_S)

    def came_short(self) -> None:
        if not self._failing:
            self.failed += 1
        self._failing = True


patience = Patience()


class Contents:
    """What is written: never zero, different in each place and each process."""

    def __init__(self, seed: int) -> None:
        self._view = memoryview(random.Random(seed).randbytes(2 * MIB).translate(bytes((1, *range(1, 256)))))

    def piece(self, number: int, size: int) -> memoryview:
        """Piece ``number`` of ``size`` bytes (at most 1 MiB)."""
        at = number * 4099 % MIB
        return self._view[at : at + size]


class Anonymous:
    """Page faults: 4K (or huge pages with ``huge``), or with ``populate`` all of it in one mmap first. Each MiB is
    filled with a byte of its own: as fast as the kernel hands out pages.
    """

    def __init__(self, mib: int, seed: int, huge: bool = False, populate: bool = False) -> None:
        self._bytes = [1 + (31 * seed + number) % 255 for number in range(mib)]
        self._huge, self._populate = huge, populate
        self._memory: mmap.mmap | None = None
        self._address = 0

    def grow(self) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        if self._populate:
            flags |= mmap.MAP_POPULATE
        memory = mmap.mmap(-1, len(self._bytes) * MIB, flags)
        if not self._populate:
            memory.madvise(mmap.MADV_HUGEPAGE if self._huge else mmap.MADV_NOHUGEPAGE)
        self._memory = memory  # it is unmapped with its last reference
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for number, byte in enumerate(self._bytes):
            ctypes.memset(self._address + number * MIB, byte, MIB)

    def wrong(self) -> int:
        # In place and in small pieces: a copy might be the page too much.
        bad: int = sum(
            libc.memcmp(ctypes.c_void_p(self._address + number * MIB + at), bytes((byte,)) * _SMALL, _SMALL) != 0
            for number, byte in enumerate(self._bytes)
            for at in range(0, MIB, _SMALL)
        )
        return bad * _SMALL


class Tmpfs:
    """A file that is memory, written in small pieces or by one system call."""

    def __init__(self, mib: int, seed: int, at_once: bool = False) -> None:
        self._size, self._contents = mib * MIB, Contents(seed)
        self._piece = -(-self._size // _PIECES) if at_once else _SMALL
        self._at_once = at_once
        self._fd = os.memfd_create("outrace-checked")

    def _pieces(self) -> list[memoryview]:
        return [
            self._contents.piece(number, min(self._piece, self._size - at))
            for number, at in enumerate(range(0, self._size, self._piece))
        ]

    def grow(self) -> None:
        pieces = self._pieces()
        if self._at_once:
            self._write(pieces, 0)
            return
        for number, piece in enumerate(pieces):
            self._write([piece], number * self._piece)

    def _write(self, pieces: Sequence[memoryview], at: int) -> None:
        """One system call; another for the rest where it came back short."""
        left = list(pieces)
        while left:
            done = patience(os.pwritev, self._fd, left, at)
            at += done
            while left and done >= len(left[0]):
                done -= len(left.pop(0))
            if left:
                left[0] = left[0][done:]
                patience.came_short()
                time.sleep(_AGAIN_S)

    def wrong(self) -> int:
        bad = 0
        for number, piece in enumerate(self._pieces()):
            # As bytes: a memoryview is compared one element at a time (107 us for 64 KiB instead of 3).
            if os.pread(self._fd, len(piece), number * self._piece) != bytes(piece):
                bad += len(piece)
        return bad


class Fork:
    """Children, one after the other, that take 2 MiB each and stay."""

    def __init__(self, mib: int, seed: int) -> None:
        self._count, self._seed = max(1, int(mib / _CHILD_COSTS_MIB)), seed
        self._grown, self._say_grown = os.pipe()
        self._checks, self._check = os.pipe()
        self._dead = 0  # before they were asked to end

    def grow(self) -> None:
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
            if readable(self._grown, _LOOK_S):
                grown += len(os.read(self._grown, self._count))
            elif os.waitpid(-1, os.WNOHANG)[0]:
                self._dead += 1

    def _child(self, owner: int, number: int) -> None:
        die_with_parent(owner)
        memory = Anonymous(_CHILD_MIB, self._seed + number)
        memory.grow()
        patience(os.write, self._say_grown, b"x")  # a pipe's page is charged too
        os.read(self._checks, 1)
        os._exit(_FAILED if memory.wrong() else 0)

    def wrong(self) -> int:
        bad = self._dead
        for _ in range(self._count - self._dead):  # one after the other: looking takes memory too
            patience(os.write, self._check, b"x")
            bad += os.wait()[1] != 0
        return bad * _CHILD_MIB * MIB


class Queues:
    """Pipes or sockets full of unread data."""

    def __init__(self, mib: int, seed: int, sockets: bool) -> None:
        self._size, self._contents = mib * MIB, Contents(seed)
        self._sockets = sockets
        self._open: list[tuple[int, int, int]] = []  # reader, number of its first piece, bytes
        self._kept: list[socket.socket] = []

    def _pair(self) -> tuple[int, int]:
        if not self._sockets:
            reader, writer = os.pipe2(os.O_NONBLOCK)
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, MIB)
            return reader, writer
        ends = socket.socketpair()
        self._kept += ends
        for end in ends:
            end.setblocking(False)
        # Where that is not allowed, there are more of them.
        libc.setsockopt(ends[1].fileno(), socket.SOL_SOCKET, _SO_SNDBUFFORCE, ctypes.byref(ctypes.c_int(4 * MIB)), 4)
        return ends[0].fileno(), ends[1].fileno()

    def grow(self) -> None:
        taken = number = 0
        while taken < self._size:
            reader, writer = patience(self._pair)
            first, held = number, 0
            while taken < self._size:
                piece = self._contents.piece(number, _SMALL)
                try:
                    done = patience(os.write, writer, piece)
                except BlockingIOError:
                    break
                held, taken = held + done, taken + done
                if done < len(piece):
                    if not self._sockets:  # which do not divide evenly
                        patience.came_short()
                    break
                number += 1
            number += 1
            self._open.append((reader, first, held))

    def wrong(self) -> int:
        bad = 0
        for reader, first, held in self._open:
            data = b""
            while len(data) < held:
                data += os.read(reader, held - len(data))
            whole = b"".join(self._contents.piece(first + n, _SMALL) for n in range(-(-held // _SMALL)))
            if data != whole[:held]:
                bad += held
        return bad


#: The name of a load -> what makes it. `grow` takes memory as fast as the kernel gives it, `wrong` counts bytes that
#: are not what was written.
KINDS: dict[str, Callable[[int, int], Anonymous | Tmpfs | Fork | Queues]] = {
    "4k": Anonymous,
    "thp": lambda mib, seed: Anonymous(mib, seed, huge=True),
    "tmpfs": Tmpfs,
    "fork": Fork,
    "pipes": lambda mib, seed: Queues(mib, seed, sockets=False),
    "sockets": lambda mib, seed: Queues(mib, seed, sockets=True),
    "populate": lambda mib, seed: Anonymous(mib, seed, populate=True),
    "one-write": lambda mib, seed: Tmpfs(mib, seed, at_once=True),
}


def checked(options: Options) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if options["kind"] != "thp":
        disable_huge_pages()
    load = KINDS[options["kind"]](int(options["mib"]), int(options["seed"]))
    if "freezer" in options:
        join(options["freezer"])
    join(options["cgroup"])
    write_line("ready")
    for order in iter(read_order, ""):
        if order == "go":
            load.grow()
            patience(write_line, "grown", time.clock_gettime_ns(time.CLOCK_MONOTONIC), patience.failed)
        else:
            wrong = load.wrong()
            patience(write_line, *(("wrong", wrong) if wrong else ("right",)))
