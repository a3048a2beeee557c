"""What the kernel can announce without BPF: descriptors for one raw epoll.

PSI triggers and memory.events on cgroup v2 (EPOLLPRI; `selectors` and asyncio cannot be asked for it), usage
thresholds through cgroup.event_control on v1, and a timer finer than epoll's milliseconds.
"""

from __future__ import annotations

import ctypes
import errno
import os
import queue
import select
import threading
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from monitor.errors import CannotError, remedy_of

_EFD = os.EFD_NONBLOCK | os.EFD_CLOEXEC
_CLOCK_MONOTONIC = 1
#: Added to the eventfd of a usage threshold by us; the kernel adds 1.
_REGISTERED = 1 << 32
#: Stall and window of a PSI trigger in microseconds, the quickest first. Reaction is a tenth of the window. Without
#: CAP_SYS_RESOURCE only multiples of 2 s are allowed (6.1.x, 6.5 and later; EINVAL otherwise); before 6.5 none below
#: 500 ms.
_PSI_TRIGGERS = ((1_000, 50_000), (5_000, 500_000), (20_000, 2_000_000))


class Epoll(Protocol):
    """A `select.epoll`, or the part of one that the hot loop gives to an owner of descriptors. Each raises OSError."""

    def register(self, fd: int, eventmask: int = ..., /) -> None: ...
    def modify(self, fd: int, eventmask: int, /) -> None: ...
    def unregister(self, fd: int, /) -> None: ...


class _Itimerspec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns")]


class _Descriptor:
    """The owner of one descriptor."""

    _fd: int

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)


class Timer(_Descriptor):
    """A timerfd (os.timerfd_create came with Python 3.13): readable once after the time set. ``fd``: inherited."""

    events = select.EPOLLIN

    def __init__(self, fd: int | None = None) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        if fd is None:
            fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        self._fd = fd
        if self._fd < 0:
            raise CannotError(f"no timerfd: {os.strerror(ctypes.get_errno())}", "raise RLIMIT_NOFILE")
        self._spec = _Itimerspec()

    def set(self, ns: int) -> None:
        """Readable in ``ns`` from now (at least 1)."""
        self._spec.first_s, self._spec.first_ns = divmod(max(1, ns), 1_000_000_000)
        self._libc.timerfd_settime(self._fd, 0, ctypes.byref(self._spec), None)

    def acknowledge(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._fd, 8)


class PsiTrigger(_Descriptor):
    """A PSI trigger: tasks of the cgroup (or the machine) stalled for want of memory. Raises CannotError."""

    events = select.EPOLLPRI

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise _no_trigger(path, error) from None
        problem = OSError()
        for stall_us, window_us in _PSI_TRIGGERS:
            try:
                os.write(self._fd, f"some {stall_us} {window_us}\0".encode())
            except OSError as error:
                problem = error
                continue
            self.window_us = window_us
            return
        os.close(self._fd)
        raise _no_trigger(path, problem)

    def acknowledge(self) -> None:
        """Nothing to do: epoll itself takes the event."""


def _no_trigger(path: Path, problem: OSError) -> CannotError:
    remedy = "boot with psi=1"
    if problem.errno in (errno.EACCES, errno.EPERM):
        remedy = "run as root; before Linux 6.1 with CAP_SYS_RESOURCE"
    elif problem.errno == errno.EROFS:
        remedy = "mount the file system it is in writable"
    return CannotError(f"no PSI trigger on {path}: {problem.strerror}", remedy)


class EventsFile(_Descriptor):
    """memory.events of a v2 cgroup: modified when it meets its limit or somebody in it is killed. Raises OSError."""

    events = select.EPOLLPRI

    def __init__(self, cgroup: Path) -> None:
        self.path = cgroup / "memory.events"
        self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        self.acknowledge()

    def acknowledge(self) -> None:
        """Reading it is what makes the next change an event."""
        with suppress(OSError):
            os.pread(self._fd, 4096, 0)


def alarm_remedy(error: OSError) -> str:
    """What to do where an alarm on a cgroup's files cannot be had."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "run as root, with the cgroup file system mounted writable"
    if error.errno in (errno.ENOENT, errno.ENODEV):
        return "nothing, if the cgroup was just removed; else name another with --node-cgroup"
    return remedy_of(error.errno, "restart outrace; `--hooks poll` does without alarms")


class UsageThreshold:
    """A usage threshold of a v1 cgroup, moved as often as needed. Raises OSError.

    Registering waits for a grace period of RCU, 8 ms (measured): a thread does it. Until then the old threshold is in
    force, and the caller has to look for itself.
    """

    events = select.EPOLLIN

    def __init__(self, cgroup: Path) -> None:
        self._usage_fd = os.open(cgroup / "memory.usage_in_bytes", os.O_RDONLY | os.O_CLOEXEC)
        self._control_fd = os.open(cgroup / "cgroup.event_control", os.O_WRONLY | os.O_CLOEXEC)
        # The caller's epoll keeps one descriptor for good: an epoll with the present eventfd in it.
        self._inner = select.epoll()
        self._current = -1
        self.wanted: int | None = None  # bytes
        self.armed: int | None = None  # bytes that the kernel compares with; None: nothing yet
        self.problem = self.remedy = ""
        self._orders: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="threshold", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        return self._inner.fileno()

    def aim(self, threshold: int) -> None:
        """Compare usage with ``threshold`` bytes from soon on; readable once when that is so."""
        if threshold != self.wanted:
            self.wanted = threshold
            self._orders.put(threshold)

    def acknowledge(self) -> bool:
        """Whether the kernel notified: usage has passed the threshold. Else one was registered: look at usage."""
        by_kernel = False
        for fd, _ in self._inner.poll(0):
            with suppress(OSError):  # taken by now, or replaced
                by_kernel = os.eventfd_read(fd) % _REGISTERED > 0 or by_kernel
        return by_kernel

    def close(self) -> None:
        """Take it away; returns at once."""
        self._orders.put(None)

    def _serve(self) -> None:
        while (order := self._orders.get()) is not None:
            if not self._orders.empty():  # only the last one counts
                continue
            fresh = -1
            try:
                fresh = os.eventfd(0, _EFD)
                os.write(self._control_fd, f"{fresh} {self._usage_fd} {order}".encode())
                self._inner.register(fresh, select.EPOLLIN)
            except OSError as error:  # RLIMIT_NOFILE, max_user_watches: the old threshold stays
                if fresh >= 0:
                    os.close(fresh)
                self.remedy = alarm_remedy(error)
                self.problem = error.strerror or str(error)
                continue
            if self._current >= 0:
                os.close(self._current)  # the kernel forgets the threshold with it
            self._current, self.armed, self.problem = fresh, order, ""
            with suppress(OSError):
                os.eventfd_write(fresh, _REGISTERED)  # crossed meanwhile, it would not be announced: have it looked at
        if self._current >= 0:
            os.close(self._current)
        os.close(self._usage_fd)
        os.close(self._control_fd)
        self._inner.close()
