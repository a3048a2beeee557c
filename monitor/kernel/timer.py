"""A timer finer than the milliseconds of an epoll."""

from __future__ import annotations

import ctypes
import os
import select
from contextlib import suppress

from monitor.errors import CannotError

_CLOCK_MONOTONIC = 1


class _Itimerspec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns")]


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
        self._spec = _Itimerspec()

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)

    def set(self, ns: int) -> None:
        """Readable in ``ns`` from now (at least 1)."""
        self._spec.first_s, self._spec.first_ns = divmod(max(1, ns), 1_000_000_000)
        self._libc.timerfd_settime(self._fd, 0, ctypes.byref(self._spec), None)

    def acknowledge(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._fd, 8)
