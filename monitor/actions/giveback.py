"""Take back the page cache that an evicted pod left in its cgroup: memory.reclaim (cgroup v2, Linux 5.19).

Nobody is left in the pod, but what its files have active in the page cache still counts as working set, until somebody
reads other files or the cgroup is removed; and even then it moves to the parent. The next pod would be evicted for it.
Cgroup v1 has only memory.force_empty, which the kernel calls deprecated and warns about in its log.
"""

from __future__ import annotations

from pathlib import Path

from monitor.kernel import cgroupfs

#: Less than this is not worth a reclaim: a pod without processes holds some hundred KiB of kernel memory.
LEAST = 1 << 20


def give_back(cgroup: Path) -> int:
    """Ask the kernel for all that a cgroup without processes still holds; bytes that it gave. May take milliseconds.

    0 where there is little, somebody runs in it again, or the kernel has no memory.reclaim.
    """
    try:
        before = _usage(cgroup)
        if before < LEAST or cgroupfs.populated(cgroup) is not False:
            return 0
        try:
            with open(cgroup / "memory.reclaim", "wb", buffering=0) as file:
                file.write(str(before).encode())
        except BlockingIOError:
            pass  # not all of it could be had: tmpfs without swap, kernel memory
        return max(0, before - _usage(cgroup))
    except OSError:
        return 0  # the cgroup went meanwhile, with all that was in it; cgroup v1; Linux before 5.19


def _usage(cgroup: Path) -> int:
    return int((cgroup / "memory.current").read_text())
