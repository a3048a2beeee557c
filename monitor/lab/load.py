"""Everyday load in a container of the lab, until stdin is closed (a worker).

It works in a directory of its own (`dir`), and at the end prints `did {JSON}`: what it did, how often. Nothing of it is
a shortage: what it holds at once is bounded by `mib`, whatever passes through.

Kinds: copy (files of `mib`, copied and removed: page cache far beyond any limit), build (a compiler's habit: four
processes at a time that take up to `mib` together, write a file and exit), tree (cp -r, tar, find and rm of many small
files), breathe (memory up to `mib` and back), tmpfs (the same with tmpfs pages) or stops (processes that come and are
stopped by SIGTERM).
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable

from monitor.lab.worker import Options, die_with_parent, join, stdin_is_ready, write_line

MIB = 1 << 20
_JOBS = 4
_FILES = 400
_WRITE_BACK = 4

done: Counter[str] = Counter()


def copy(mib: int) -> None:
    """One file written, copied, and both removed.

    Written back every few MiB: where nobody holds back a writer whose cgroup is full of dirty pages (cgroup v1),
    reclaim makes them active, and by the kubelet's formula that is a shortage indeed.
    """
    block = bytes(MIB)
    with open("one", "wb", buffering=0) as one, open("two", "wb", buffering=0) as two:
        for n in range(mib):
            one.write(block)
            if n % _WRITE_BACK == 0:
                os.fdatasync(one.fileno())
        with open("one", "rb", buffering=0) as source:
            for n in range(mib):
                two.write(source.read(MIB))
                if n % _WRITE_BACK == 0:
                    os.fdatasync(two.fileno())
    os.unlink("one")
    os.unlink("two")
    done["files_copied"] += 1
    done["bytes_through_cache"] += 2 * mib * MIB


def _fork(work: Callable[[], None]) -> int:
    owner, pid = os.getpid(), os.fork()
    if pid:
        return pid
    die_with_parent(owner)
    try:
        work()
    finally:
        os._exit(0)


def _compile(mib: int, name: str) -> None:
    memory = mmap.mmap(-1, mib * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for start in range(0, mib * MIB, MIB):
        memory[start : start + MIB] = b"x" * MIB
    with open(name, "wb") as file:
        file.write(memory[:MIB])


def build(mib: int) -> None:
    """Four compilers and a linker."""
    names = [f"{n}.o" for n in range(_JOBS)]
    jobs = [_fork(lambda name=name: _compile(max(1, mib // _JOBS), name)) for name in names]  # type: ignore[misc]
    for pid in jobs:
        os.waitpid(pid, 0)
    os.waitpid(_fork(lambda: _compile(max(1, mib // 2), "program")), 0)
    for name in (*names, "program"):
        os.unlink(name)
    done["processes"] += _JOBS + 1


def tree(mib: int) -> None:
    """A tree of small files, and what one does with it."""
    os.makedirs("tree/sub", exist_ok=True)
    size = max(1, mib * MIB // _FILES)
    for n in range(_FILES):
        with open(f"tree/{'sub/' if n % 2 else ''}{n}", "wb") as file:
            file.write(bytes(size))
    path = {"PATH": "/usr/bin:/bin"}
    for command in (
        ("cp", "-r", "tree", "other"),
        ("tar", "-cf", "tree.tar", "other"),
        ("find", "tree", "-type", "f", "-size", "+1M"),
        ("rm", "-rf", "tree", "other", "tree.tar"),
    ):
        subprocess.run(command, env=path, check=True, stdout=subprocess.DEVNULL)
        done["processes"] += 1
    done["files_made"] += 2 * _FILES


def breathe(mib: int) -> None:
    """Up slowly, and back at once."""
    memory = mmap.mmap(-1, mib * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for start in range(0, mib * MIB, MIB):
        memory[start : start + MIB] = b"x" * MIB
        if start % (8 * MIB) == 0 and stdin_is_ready(0.05):
            break
    memory.close()
    done["breaths"] += 1


def tmpfs(mib: int) -> None:
    """As `breathe`, in a file that is memory."""
    fd = os.memfd_create("outrace-load")
    for _ in range(mib):
        os.write(fd, bytes(MIB))
    os.close(fd)
    done["tmpfs_files"] += 1


def stops(mib: int) -> None:
    """Services that start, take a little, and are stopped."""

    def serve() -> None:
        memory = mmap.mmap(-1, MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory[:] = b"x" * MIB
        while True:
            signal.pause()

    jobs = [_fork(serve) for _ in range(min(mib, 8))]
    stdin_is_ready(0.1)
    for pid in jobs:
        os.kill(pid, signal.SIGTERM)
    for pid in jobs:
        os.waitpid(pid, 0)
    done["stopped_by_sigterm"] += len(jobs)


KINDS: dict[str, Callable[[int], None]] = {work.__name__: work for work in (copy, build, tree, breathe, tmpfs, stops)}


def load(options: Options) -> None:
    work, mib = KINDS[options["kind"]], int(options["mib"])
    os.makedirs(options["dir"], exist_ok=True)
    os.chdir(options["dir"])
    join(options["cgroup"])
    write_line("ready")
    # Twice as long a pause after each turn: several of these share a machine with other work.
    while True:
        began = time.monotonic()
        work(mib)
        if stdin_is_ready(max(0.05, 2 * (time.monotonic() - began))):
            break
    write_line("did", json.dumps(done))
