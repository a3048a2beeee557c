"""One process of /proc, held by the descriptor of its directory; whether one wants a CPU; which are never signalled.

What is read and what is written through it is the same process, also when its pid is used again meanwhile: a pid that
was looked up twice may be two processes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Literal, Self

from monitor.errors import MonitorError
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.wire import printable

#: The process ended: its directory is gone, or it is there and answers nothing any more.
_GONE = (errno.ENOENT, errno.ESRCH)
#: More than any file read here holds: /proc/PID/cgroup has a path (4096 at most) for each of about 15 controllers.
_MOST = 65536
#: Above a process there are a shell, sudo, a supervisor; a longer chain is a loop of pids that were used again.
_MOST_ANCESTORS = 64
#: In the flags of /proc/PID/stat (include/linux/sched.h).
_PF_KTHREAD, _PF_EXITING = 0x00200000, 0x00000004
#: Where cgroup v2 is mounted does not matter: paths are compared from their end.
_UNIFIED = Hierarchy(2, Path("/"))


class Process:
    """Context manager. A process that ends answers None to everything from then on."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd: int | None = None

    def __enter__(self) -> Self:
        try:
            self._fd = os.open(f"/proc/{self.pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in _GONE:
                raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self, name: str, mode: Literal["rb", "wb"] = "rb") -> FileIO:
        """Raises OSError, also if it has ended."""
        if self._fd is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        flags = os.O_CLOEXEC | (os.O_RDONLY if mode == "rb" else os.O_WRONLY)
        return open(os.open(name, flags, dir_fd=self._fd), mode, buffering=0)

    def _read(self, name: str) -> str | None:
        try:
            with self._open(name) as file:
                return os.read(file.fileno(), _MOST).decode(errors="surrogateescape")
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise

    def comm(self) -> str | None:
        """Its name, at most 15 bytes; `printable`."""
        text = self._read("comm")
        return None if text is None else printable(text.removesuffix("\n").encode(errors="surrogateescape"))

    def exe(self) -> str | None:
        """The path of its program as its own mount namespace has it; None also for a kernel thread or without leave."""
        return self._link("exe")

    def namespace(self, kind: str) -> str | None:
        """A namespace of it (``pid``, ``mnt``), to compare; None if it is gone or may not be asked."""
        return self._link(f"ns/{kind}")

    def _link(self, name: str) -> str | None:
        if self._fd is None:
            return None
        for directory in _of_threads(self.pid):
            try:
                return os.readlink(f"{directory}/{name}", dir_fd=self._fd)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EPERM):
                    return None
                if error.errno not in _GONE:
                    raise
        return None

    def _stat(self, field: int) -> str | None:
        text = self._read("stat")
        return text.rpartition(")")[2].split()[field] if text else None

    def parent(self) -> int | None:
        """Its parent's pid; 0 if that is of another pid namespace."""
        return None if (text := self._stat(1)) is None else int(text)

    def state(self) -> str | None:
        """One letter, as in proc(5): ``Z`` has ended, and its parent has not waited for it."""
        return self._stat(0)

    def started(self) -> int | None:
        """When it was started, in ticks since boot: with its pid, no other process of this boot has the same."""
        return None if (text := self._stat(19)) is None else int(text)

    def arguments(self, most: int) -> bytes:
        """The first ``most`` bytes of its command line. Raises OSError, also if it has ended."""
        with self._open("cmdline") as file:
            return file.read(most)

    def users(self) -> set[int]:
        """Its real, effective, saved and file system user ids."""
        return set(map(int, self._status("Uid:")))

    def shares_pids(self) -> bool:
        """Whether it is in the pid namespace of this /proc, and in none below it."""
        return len(self._status("NSpid:")) == 1

    def _status(self, key: str) -> list[str]:
        lines = (self._read("status") or "").split("\n")  # a name may hold other ends of a line
        return next((line.split()[1:] for line in lines if line.startswith(key)), [])

    def memory_cgroup(self, hierarchy: Hierarchy) -> Path | None:
        """Its directory in the memory hierarchy, now; None where it has a path that the kernel does not write: a user
        nests cgroups deeper than that.
        """
        try:
            text = self._read("cgroup") or ""
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            return None
        # A newline is all that the kernel refuses in the name of a cgroup: splitlines() knows other ends of a line.
        for line in filter(None, text.split("\n")):
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(",") if hierarchy.version == 1 else not controllers:
                return hierarchy.root / path.lstrip("/")
        return None

    def oom_score_adj(self) -> int | None:
        """What it is now, -1000..1000."""
        text = self._read("oom_score_adj")
        return int(text) if text else None

    def set_oom_score_adj(self, value: int) -> bool:
        """Set it; False if the process is gone. Raises PermissionError where CAP_SYS_RESOURCE is missing, MonitorError
        for whatever else the kernel refuses.
        """
        try:
            with self._open("oom_score_adj", "wb") as file:
                os.write(file.fileno(), str(value).encode())
        except OSError as error:
            if error.errno in _GONE:
                return False
            if error.errno in (errno.EACCES, errno.EPERM):
                raise PermissionError(*error.args) from None
            raise MonitorError(f"cannot write {value} to /proc/{self.pid}/oom_score_adj: {error.strerror}") from error
        return True


def directories(pid: int) -> Iterator[str]:
    """The directory of a process, then those of its threads: once its main thread has exited (pthread_exit) while
    others live, /proc/PID shows neither memory nor program, and theirs do.
    """
    return (f"/proc/{pid}/{below}" for below in _of_threads(pid))


def _of_threads(pid: int) -> Iterator[str]:
    yield "."
    with contextlib.suppress(OSError):
        yield from (f"task/{tid}" for tid in os.listdir(f"/proc/{pid}/task") if int(tid) != pid)


def ancestors(pid: int) -> Iterator[int]:
    """Pids of a process's parent, its parent and so on, without process 1."""
    for _ in range(_MOST_ANCESTORS):
        with Process(pid) as process:
            pid = process.parent() or 1
        if pid == 1:
            return
        yield pid


def stat_fields(path: str) -> list[bytes]:
    """The fields of a stat after the name: state, parent, ... (proc(5) counts from 3). Raises OSError."""
    with open(f"{path}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def is_kernel_thread(pid: int) -> bool:
    """Whether it is a thread of the kernel's. All are of session 0, as few others are: those cost one system call."""
    try:
        return not os.getsid(pid) and bool(int(stat_fields(f"/proc/{pid}")[6]) & _PF_KTHREAD)
    except OSError:
        return False  # gone


def kill_pends(fields: Sequence[bytes]) -> bool:
    """Whether a process has a SIGKILL pending, by the fields of its stat after the name.

    The kernel sets it for each thread (complete_signal). /proc/PID/status has it too, and a line of 700 KB for 65,536
    groups, which container root gives itself: 30 ms a read.
    """
    return bool(int(fields[28]) & 1 << signal.SIGKILL - 1)


def lives(pid: int, most: int = 16) -> bool:
    """Whether it neither ended nor is about to: it is not exiting, and no SIGKILL waits for it. Where only its main
    thread has exited, one of ``most`` others says so: with its last thread all of them exit.
    """
    for directory in islice(directories(pid), most):
        try:
            state, *fields = found = stat_fields(directory)
        except OSError:
            continue
        if kill_pends(found):
            return False
        if state not in b"ZX" and not int(fields[5]) & _PF_EXITING:
            return True
    return False


def born_ns(pid: int) -> int | None:
    """When a process was started (CLOCK_MONOTONIC, to 10 ms, and never too late); None if it is gone."""
    try:
        ticks = int(stat_fields(f"/proc/{pid}")[19])
    except OSError:
        return None
    slept = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()  # the machine, since it was started
    return ticks * (1_000_000_000 // os.sysconf("SC_CLK_TCK")) - slept


def wants_cpu(pids: Iterable[int], most: int = 100) -> bool:
    """Whether a thread of these processes runs or waits for a CPU (state R), judged by the first ``most`` threads.

    A frozen thread and one that waits for a device or a lock are in state D, one whose ending is done in Z. A thread
    costs 23 us to look at.
    """
    return b"R" in islice((state for pid in pids for state in _states(pid)), most)


def _states(pid: int) -> Iterator[bytes]:
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/task") as threads:
        for thread in threads:
            with contextlib.suppress(OSError):
                yield stat_fields(thread.path)[0]


class Spared:
    """Processes that are never signalled, whatever a manifest says: process 1, outrace, its ancestors. Held by pidfd: a
    pod that forked until it got the number of one that has ended would be spared.
    """

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}

    def add(self, pid: int) -> None:
        """Spare a process until it ends."""
        if pid not in self.pids():
            with contextlib.suppress(ProcessLookupError):
                self._fds[pid] = os.pidfd_open(pid)

    def pids(self) -> set[int]:
        """Process 1, this process, and those added that have not ended."""
        for pid in [pid for pid, fd in self._fds.items() if readable(fd, 0)]:
            os.close(self._fds.pop(pid))
        return {1, os.getpid(), *self._fds}

    def within(self, cgroup: Path) -> bool:
        """Whether one of them is in a cgroup of v2, or below it. A read of 20 us for each, however many there are."""
        for pid in self.pids():
            with contextlib.suppress(OSError), Process(pid) as process:
                path = process.memory_cgroup(_UNIFIED) or Path()
                if any(f"{cgroup}".endswith(f"{above}") for above in (path, *path.parents) if above.name):
                    return True
        return False


def with_ancestors() -> Spared:
    """This process and all that it comes from."""
    spared = Spared()
    for pid in ancestors(os.getpid()):
        spared.add(pid)
    return spared


def readable(fd: int, seconds: float | None = None) -> bool:
    """Wait until ``fd`` can be read, is at its end, or (a pidfd) its process has ended; False after ``seconds``.
    select(2) refuses numbers of 1,024 and more, which a process with many pods has.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if seconds is None else max(0.0, seconds) * 1000))
