"""A timer finer than the milliseconds of an epoll."""

from __future__ import annotations

import ctypes
import os
import select
import struct
from contextlib import suppress

from monitor.errors import CannotError

#: Timeouts of epoll are whole milliseconds, rounded up: 0.25 ms were 1.1, and 1.6 were 2.1 (measured). What is due
#: sooner than this is waited for with a timer, which costs a system call.
SHORT_NS = 20_000_000
_CLOCK_MONOTONIC = 1

#: struct itimerspec: seconds and nanoseconds of the interval, and until the first time.
_SPEC = struct.Struct("4l")


class Timer:
    """A timerfd (os.timerfd_create came with Python 3.13): readable once after the time set. ``fd``: inherited."""

    events = select.EPOLLIN

    def __init__(self, fd: int | None = None) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        if fd is None:
            fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        self._fd = fd
        if self._fd < 0:
            raise CannotError(f"no timerfd: {os.strerror(ctypes.get_errno())}", "raise RLIMIT_NOFILE")

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)

    def set(self, ns: int) -> None:
        """Readable in ``ns`` from now (at least 1)."""
        self._libc.timerfd_settime(self._fd, 0, _SPEC.pack(0, 0, *divmod(max(1, ns), 1_000_000_000)), None)

    def acknowledge(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._fd, 8)
