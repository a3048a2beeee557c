"""The process of a `tests.puppet.Puppet` (a worker of the lab, which has no site-packages)."""

import ctypes
import mmap
import os
import signal  # noqa: F401, also for the lines
import sys
import threading  # noqa: F401
import time  # noqa: F401

from monitor.lab.worker import libc, ready, write_line

MIB = 1 << 20
kept: list[mmap.mmap] = []


def anon(mib: int) -> None:
    block = mmap.mmap(-1, mib * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(mmap.MADV_NOHUGEPAGE)
    ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(block)), 1, mib * MIB)
    kept.append(block)


def write(path: str, mib: int) -> None:
    with open(path, "wb", buffering=0) as file:
        for _ in range(mib):
            file.write(bytes(MIB))
        os.fsync(file.fileno())


def read(path: str) -> None:
    with open(path, "rb", buffering=0) as file:
        while file.read(MIB):
            pass


def attend(path: str) -> None:
    """Map it."""
    with open(path, "rb") as file:
        kept.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))


def pinned(path: str) -> None:
    """Lock it in memory."""
    kept.append(mmap.mmap(os.open(path, os.O_RDWR), 0))  # writable, or ctypes does not say where it is
    assert libc.mlock(ctypes.byref(ctypes.c_char.from_buffer(kept[-1])), ctypes.c_size_t(len(kept[-1]))) == 0


def look() -> int:
    """At every page of what was mapped last."""
    return sum(kept[-1][::4096])


def drop(path: str) -> None:
    """Out of the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def puppet(cgroup: str) -> None:
    """Runs each line of Python, with what is here at hand; answers `done`."""
    ready(cgroup)
    for line in sys.stdin:
        exec(line, globals())
        write_line("done")
