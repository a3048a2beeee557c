"""Take back what an evicted pod left in its cgroup: memory.reclaim (cgroup v2, Linux 5.19), memory.force_empty (v1).

The pod has no process left, but the active page cache of its files still counts as working set until other files are
read or the cgroup is removed; even then it moves to the parent. The same holds for dentries and other reclaimable slab.
The next pod would be evicted for it. The kernel logs once that memory.force_empty is deprecated (Linux 6.12); v1 has
nothing else.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from monitor.kernel import cgroup_procs

#: Less than this is not worth a reclaim: a pod without processes holds some hundred KiB of kernel memory.
LEAST = 1 << 20
#: Asked for at a time: nobody can remove the cgroup meanwhile, and tmpfs goes to swap at a disk's speed.
PIECE = 32 << 20


def give_back(cgroup: Path) -> int:
    """Ask the kernel, piece by piece (on v1 at once), for all that a cgroup without processes still holds; bytes that
    it gave.

    0 where there is little, somebody runs in it, or the kernel has neither file; it ends when somebody runs in it
    again, or nothing more can be had (tmpfs without swap, kernel memory). May take as long as swap does: seconds.
    """
    given = 0
    try:
        if (cgroup / "memory.force_empty").exists():
            return _force_empty(cgroup)
        while (held := _usage(cgroup, "memory.current")) >= LEAST and cgroup_procs.populated(cgroup) is False:
            whole = _reclaim(cgroup, min(held, PIECE))
            freed = held - _usage(cgroup, "memory.current")
            given += max(0, freed)
            if not whole or freed <= 0:
                break
    except OSError:
        pass  # the cgroup went meanwhile, with all that was in it; Linux before 5.19
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
