"""A process that runs what a test sends it, and a memory cgroup to put it in: for tests of the live kernel."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from monitor.kernel import cgroupfs
from monitor.kernel.procfs import readable
from monitor.lab import janitor
from tests.own_cgroups import removed_with_session

#: Far longer than anything takes, also in an emulated guest, where compiling the programs takes half a minute; only a
#: hang reaches it.
TIMEOUT_S = 120.0


_PUPPET = """
import ctypes, mmap, os, signal, sys, threading, time
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG: never outlive the test
MIB = 1 << 20
kept = []
def anon(mib):
    block = mmap.mmap(-1, mib * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(mmap.MADV_NOHUGEPAGE)
    ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(block)), 1, mib * MIB)
    kept.append(block)
def write(path, mib):
    with open(path, "wb", buffering=0) as file:
        for _ in range(mib):
            file.write(bytes(MIB))
        os.fsync(file.fileno())
def read(path):
    with open(path, "rb", buffering=0) as file:
        while file.read(MIB):
            pass
def attend(path):
    with open(path, "rb") as file:
        kept.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
def pinned(path):
    kept.append(mmap.mmap(os.open(path, os.O_RDWR), 0))  # writable, or ctypes does not say where it is
    size = ctypes.c_size_t(len(kept[-1]))
    assert ctypes.CDLL(None).mlock(ctypes.byref(ctypes.c_char.from_buffer(kept[-1])), size) == 0
def look():
    return sum(kept[-1][::4096])
def drop(path):
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
with open(sys.argv[1] + "/cgroup.procs", "w") as procs:
    procs.write("0")
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Puppet:
    """A process in a cgroup that runs the lines of Python it is given, with `anon(MIB)`, `write(PATH, MIB)`,
    `read(PATH)`, `attend(PATH)` (map it), `pinned(PATH)` (mlock it), `look()` (at every page) and `drop(PATH)` (from
    the page cache) at hand.
    """

    def __init__(self, cgroup: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _PUPPET, str(cgroup)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._buffer = b""
        try:
            assert self.answer() == "ready", f"the puppet could not join {cgroup}"
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, line: str) -> None:
        """Begin; `answer` waits for the end."""
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def answer(self) -> str:
        """The next line it prints; "" when it ended instead."""
        out = self.process.stdout.fileno()
        while b"\n" not in self._buffer:
            assert readable(out, TIMEOUT_S), "no answer"
            data = os.read(out, 4096)
            if not data:
                return ""
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    def do(self, line: str) -> None:
        self.tell(line)
        assert self.answer() == "done"

    def wait(self) -> int:
        return self.process.wait(TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it, if it has not ended, and reap it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                pass  # a line it never read


@contextmanager
def cgroup(name: str, limit: int | None = None) -> Iterator[Path]:
    """A memory cgroup of the test's own; afterwards its processes are killed and it is removed with what is below."""
    path = cgroupfs.detect().root / f"outrace-test-{name}-{os.getpid()}"
    removed_with_session(path)
    cgroupfs.make(path)
    try:
        if limit is not None:
            cgroupfs.set_limit(path, limit)
            for file in ("memory.swap.max", "memory.swappiness"):
                if (path / file).exists():
                    (path / file).write_text("0")
        yield path
    finally:
        assert janitor.remove_tree(str(path))
