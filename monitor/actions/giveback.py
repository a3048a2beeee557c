"""Take back the page cache that an evicted pod left in its cgroup: memory.reclaim (cgroup v2, Linux 5.19).

Nobody is left in the pod, but what its files have active in the page cache still counts as working set, until somebody
reads other files or the cgroup is removed; and even then it moves to the parent. The next pod would be evicted for it.
Cgroup v1 has only memory.force_empty, which the kernel calls deprecated and warns about in its log.
"""

from __future__ import annotations

import os
from pathlib import Path

from monitor.kernel import cgroupfs

#: Less than this is not worth a reclaim: a pod without processes holds some hundred KiB of kernel memory.
LEAST = 1 << 20
#: Asked for at a time: nobody can remove the cgroup meanwhile, and tmpfs goes to swap at a disk's speed.
PIECE = 32 << 20


def give_back(cgroup: Path) -> int:
    """Ask the kernel, piece by piece, for all that a cgroup without processes still holds; bytes that it gave.

    0 where there is little, somebody runs in it, or the kernel has no memory.reclaim; it ends when somebody runs in it
    again, or nothing more can be had (tmpfs without swap, kernel memory). May take as long as swap does: seconds.
    """
    given = 0
    try:
        while (held := _usage(cgroup)) >= LEAST and cgroupfs.populated(cgroup) is False:
            whole = _reclaim(cgroup, min(held, PIECE))
            freed = held - _usage(cgroup)
            given += max(0, freed)
            if not whole or freed <= 0:
                break
    except OSError:
        pass  # the cgroup went meanwhile, with all that was in it; cgroup v1; Linux before 5.19
    return given


def _reclaim(cgroup: Path, size: int) -> bool:
    """Whether all of it could be had. Raises OSError."""
    fd = os.open(cgroup / "memory.reclaim", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, str(size).encode())
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def _usage(cgroup: Path) -> int:
    return int((cgroup / "memory.current").read_text())
