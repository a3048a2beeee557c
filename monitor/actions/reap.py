"""Free a dying process's memory now instead of when the kernel gets round to it: process_mrelease(2), Linux 5.15.

A killed process gives its memory back in its own exit path, which needs CPU time it may not get on a loaded node. The
call frees its anonymous memory from here. It only ever works on a process that is already dying, so a recycled pid is
safe.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

#: The same number on every architecture, as for all system calls added since Linux 5.1.
_SYS_PROCESS_MRELEASE = 448
#: EAGAIN means the victim's mmap lock is held right now (mm/oom_kill.c tries once); it is soon free in an exiting
#: process.
_TRIES = 10
_PAUSE_S = 0.001

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


@dataclass(slots=True)
class Reaped:
    """How many processes were ``released`` here, had ``nothing`` (left) to release, or ``failed`` (errno -> count)."""

    released: int
    nothing: int
    failed: dict[int, int]


def mrelease(pidfd: int) -> int:
    """process_mrelease on a pidfd: 0, or the errno of the last of a few tries."""
    for attempt in range(_TRIES):
        if _libc.syscall(_SYS_PROCESS_MRELEASE, pidfd, 0) == 0:
            return 0
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR):
            return code
        if attempt + 1 < _TRIES:
            time.sleep(_PAUSE_S)
    return code


def reap(pids: Iterable[int]) -> Reaped:
    """Release the memory of every dying process in ``pids``.

    Nothing to do is a success: ESRCH says it is gone, EINVAL that it is not dying or its memory is freed already.
    Anything else (EPERM, ENOSYS before 5.15) is counted in ``failed``.
    """
    result = Reaped(0, 0, {})
    for pid in pids:
        code = _reap_one(pid)
        if code == 0:
            result.released += 1
        elif code in (errno.ESRCH, errno.EINVAL):
            result.nothing += 1
        else:
            result.failed[code] = result.failed.get(code, 0) + 1
    return result


def _reap_one(pid: int) -> int:
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        return error.errno or errno.EINVAL
    try:
        return mrelease(pidfd)
    finally:
        os.close(pidfd)
