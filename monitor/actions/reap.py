"""Get memory of killed pods back: process_mrelease(2) (Linux 5.15), memory.reclaim (v2, 5.19), memory.force_empty (v1).

A killed process frees its memory in its own exit path, which needs CPU time it may not get on a loaded node: `reap`
frees its anonymous memory from here. That only works on a process that is already dying, so a recycled pid is safe.

A pod without processes still has the active page cache of its files, dentries and other reclaimable slab: working set
until other files are read or the cgroup is removed, and even then it moves to the parent. The next pod would be evicted
for it, so `give_back` takes it. The kernel logs once that memory.force_empty is deprecated (6.12); v1 has nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import time
from collections.abc import Iterable
from pathlib import Path

from monitor.kernel import cgroup_procs

#: The same number on every architecture, as for all system calls added since Linux 5.1.
_SYS_PROCESS_MRELEASE = 448
#: EAGAIN means the victim's mmap lock is held right now (mm/oom_kill.c tries once); it is soon free in an exiting
#: process.
_TRIES = 10
_PAUSE_S = 0.001

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


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


def reap(pids: Iterable[int]) -> list[int]:
    """Release the memory of every dying process in ``pids``; the errno of each failure. ESRCH (it is gone) and EINVAL
    (it is not dying, or its memory is freed) are no failures; EPERM and ENOSYS (before 5.15) are.
    """
    codes = list[int]()
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
            codes.append(mrelease(pidfd))
            os.close(pidfd)
        except OSError as error:
            codes.append(error.errno or errno.EINVAL)
    return [code for code in codes if code not in (0, errno.ESRCH, errno.EINVAL)]


#: Less than this is not worth a reclaim: a pod without processes holds some hundred KiB of kernel memory.
LEAST = 1 << 20
#: Asked for at a time: the cgroup cannot be removed meanwhile, and tmpfs goes to swap at a disk's speed.
PIECE = 32 << 20


def give_back(cgroup: Path) -> int:
    """Ask the kernel, piece by piece (on v1 at once), for all that a cgroup without processes still holds; bytes that
    it gave.

    0 where there is little, a process runs in it, or the kernel has neither file; it ends when a process runs in it
    again, or nothing more can be had (tmpfs without swap, kernel memory). May take as long as swap does: seconds.
    """
    given = 0
    try:
        if (cgroup / "memory.force_empty").exists():
            return _force_empty(cgroup)
        while (held := _usage(cgroup, "memory.current")) >= LEAST and cgroup_procs.populated(cgroup) is False:
            with open(cgroup / "memory.reclaim", "wb", buffering=0) as file:
                whole = file.write(b"%d" % min(held, PIECE)) is not None  # EAGAIN: not all of it could be had
            freed = held - _usage(cgroup, "memory.current")
            given += max(0, freed)
            if not whole or freed <= 0:
                break
    except OSError:
        pass  # the cgroup went meanwhile, with all that was in it; Linux before 5.19
    return given


def _force_empty(cgroup: Path) -> int:
    """The same on cgroup v1, below it too. Raises OSError."""
    held = _usage(cgroup, "memory.usage_in_bytes")
    if held < LEAST or not cgroup_procs.empty(cgroup):
        return 0
    with contextlib.suppress(OSError):  # EINTR: some of it was given
        (cgroup / "memory.force_empty").write_text("0")
    return max(0, held - _usage(cgroup, "memory.usage_in_bytes"))


def _usage(cgroup: Path, name: str) -> int:
    return int((cgroup / name).read_text())
