"""A process that makes as many events as it can, to keep the monitor from seeing anything else (a worker).

It works until stdin is closed, and then prints `did N`: how many of what it makes.
Kinds: zombie (SIGKILLs to a dead child), children (SIGKILLs to groups of 20 live ones, whose names a terminal, a log or
a parser could choke on), forks (fork and exit), execs (fork and exec), threads, line (takes 8 MiB and gives them back:
with others, up and down past a threshold), reclaim (page cache at a limit of its own: limit a cgroup of its own first),
cgroups (made and removed in DIR), spin (the CPU, no events).
"""

import ctypes
import mmap
import os
import signal
from collections.abc import Callable, Iterator

from monitor.lab.worker import die_with_parent, libc, ready, stdin_is_ready, write_line

MIB = 1 << 20
_PR_SET_NAME = 15
#: Between two looks at stdin.
_ROUND = 200
_GROUP = 20
#: Whatever happens, it ends.
_MOST_S = 900
_LINE = 8 * MIB
_CACHE, _READ = 64 * MIB, 1 << 16
#: 15 bytes at most.
NAMES = (
    b"a\nlevel=error\n",
    b"\x1b[2J\x1b[31mred",
    b"\xff\xfe\xc0\x80bad",
    b'") total-vm:1kB',
    b"x,pid=1,uid=0",
    b'"}{"msg":"x',
    b"\r\t\x07\x7f\xc2\x9b",
    b"\xe2\x80\xae\xe2\x80\x8b",
)


def forked() -> int:
    """fork(2). Where the machine has no more process ids this process ends: -1 is no child, and to signal that number
    would be to signal everybody.
    """
    pid: int = libc.fork()
    if pid < 0:
        os._exit(1)
    return pid


def kill(pid: int) -> None:
    """SIGKILL to a child of ours."""
    assert pid > 1
    os.kill(pid, signal.SIGKILL)


def fork(owner: int, name: bytes) -> int:
    """A child of this ``name`` that waits for its end."""
    pid = forked()
    if pid:
        return pid
    die_with_parent(owner)
    libc.prctl(_PR_SET_NAME, name, 0, 0, 0)
    while True:
        libc.pause()


def zombie() -> Iterator[int]:
    child = fork(os.getpid(), NAMES[0])
    kill(child)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    while True:
        for _ in range(_ROUND):
            kill(child)
        yield _ROUND


def children() -> Iterator[int]:
    owner = os.getpid()
    while True:
        group = [fork(owner, NAMES[number % len(NAMES)]) for number in range(_GROUP)]
        for pid in group:
            os.setpgid(pid, group[0])
        assert group[0] > 1
        os.killpg(group[0], signal.SIGKILL)
        for pid in group:
            os.waitpid(pid, 0)
        yield _GROUP


def forks() -> Iterator[int]:
    while True:
        for _ in range(_ROUND // 10):
            pid = forked()
            if not pid:
                os._exit(0)
            os.waitpid(pid, 0)
        yield _ROUND // 10


def execs() -> Iterator[int]:
    while True:
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
        yield 1


def threads() -> Iterator[int]:
    handle = ctypes.c_ulong()
    run = ctypes.cast(libc.getpid, ctypes.c_void_p)  # what a thread does before it ends
    while True:
        for _ in range(_ROUND):
            if libc.pthread_create(ctypes.byref(handle), None, run, None) == 0:
                libc.pthread_join(handle, None)
        yield _ROUND


def line() -> Iterator[int]:
    block = mmap.mmap(-1, _LINE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(mmap.MADV_NOHUGEPAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    while True:
        ctypes.memset(address, 1, _LINE)
        block.madvise(mmap.MADV_DONTNEED)
        yield 2


def reclaim() -> Iterator[int]:
    fd = os.open("/var/tmp", os.O_TMPFILE | os.O_RDWR, 0o600)
    os.ftruncate(fd, _CACHE)  # all holes: page cache without a disk
    # Without reading ahead: four readers with 2 MiB on their way each, which cannot be reclaimed, were OOM-killed at
    # their limit of 6 MiB (once in 600 races, all of it on inactive_file).
    os.posix_fadvise(fd, 0, _CACHE, os.POSIX_FADV_RANDOM)
    while True:
        for at in range(0, _CACHE, _READ):
            os.pread(fd, _READ, at)
        yield _CACHE // _READ


def cgroups() -> Iterator[int]:
    path = f"made-{os.getpid()}"
    while True:
        os.mkdir(path)
        os.rmdir(path)
        yield 2


def spin() -> Iterator[int]:
    while True:
        for _ in range(10 * _ROUND):
            pass
        yield 0


KINDS: dict[str, Callable[[], Iterator[int]]] = {
    made.__name__: made for made in (zombie, children, forks, execs, threads, line, reclaim, cgroups, spin)
}


def blinder(cgroup: str, kind: str) -> None:
    signal.alarm(_MOST_S)
    ready(cgroup)
    os.chdir(cgroup)
    did = 0
    for n in KINDS[kind]():
        did += n
        if stdin_is_ready():
            break
    write_line("did", did)
