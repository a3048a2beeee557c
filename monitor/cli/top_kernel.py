"""What `outrace top` reads in the kernel's files beside the kubelet's figures: what memory is made of, and whom the OOM
killer would take. None of it asks anything of the daemon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monitor.errors import MonitorError
from monitor.kernel import cgroupfs, meminfo
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.oom_candidates import PAGE, Owner, candidates, groups, total_pages
from monitor.race.badness import likely_victim

#: A look at all processes (some 60 us each) is repeated after this long, or after so many times what it took: at most
#: 2 % of a CPU on a node that is short of memory.
_LOOK_S, _SHARE = 5.0, 50
#: What the kernel has for itself on the machine; none of it is in the usage of the root cgroup.
_MACHINE = ("Slab", "KernelStack", "PageTables", "SecPageTables", "Percpu")
#: The same of a cgroup on kernels before 5.18, which have no line `kernel` (Documentation/admin-guide/cgroup-v2.rst).
_OF_CGROUP = ("slab", "kernel_stack", "pagetables", "percpu", "vmalloc")


def composition(hierarchy: Hierarchy, path: Path) -> dict[str, int | None]:
    """`anon`, `shmem` and `kernel` of a cgroup, or of the machine at the root, in bytes; None: not known here."""
    try:
        if path == hierarchy.root:
            found = meminfo.read()
            kernel = [found[name] for name in _MACHINE if name in found]
            return {"anon": found.get("AnonPages"), "shmem": found.get("Shmem"), "kernel": sum(kernel) or None}
        stat = cgroupfs.memory_stat(path)
        if hierarchy.version == 1:
            return {"anon": stat.get("total_rss"), "shmem": stat.get("total_shmem"), "kernel": _kernel_v1(path)}
        parts = [stat[name] for name in _OF_CGROUP if name in stat]
        return {"anon": stat.get("anon"), "shmem": stat.get("shmem"), "kernel": stat.get("kernel", sum(parts) or None)}
    except (MonitorError, OSError):
        return {"anon": None, "shmem": None, "kernel": None}  # removed, or not readable


def _kernel_v1(path: Path) -> int | None:
    """None where kernel memory is not accounted (cgroup.memory=nokmem)."""
    try:
        return cgroupfs.amount(path, "memory.kmem.usage_in_bytes")
    except MonitorError:
        return None


@dataclass(frozen=True)
class Looked:
    """A look at every process of the node: ``victim`` as it is shown, and by the uid of a pod its lowest and highest
    oom_score_adj.
    """

    victim: Mapping[str, Any] | None = None
    scores: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    problem: str = ""


class ProcessLooks:
    """Looks at the processes now and then. ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = 0.0
        self._last = Looked()

    def look(self, hierarchy: Hierarchy, node: Path, owner: Callable[[Path], Owner | None]) -> Looked:
        """The last look, or a new one where it is time."""
        began = self._clock()
        if began >= self._due:
            try:
                self._last = _looked(hierarchy, node, owner)
            except (MonitorError, OSError) as error:
                self._last = Looked(problem=f"the processes cannot be read: {error}")
            ended = self._clock()
            self._due = ended + max(_LOOK_S, _SHARE * (ended - began))
        return self._last


def _looked(hierarchy: Hierarchy, node: Path, owner: Callable[[Path], Owner | None]) -> Looked:
    total = total_pages(hierarchy, node)
    found = candidates(hierarchy, node, owner)
    taken = likely_victim(found, total, None if node == hierarchy.root else str(node), groups(node), PAGE)
    values: dict[str, list[int]] = {}
    for process in found:
        if process.pod is not None:
            values.setdefault(process.pod, []).append(process.oom_score_adj)
    victim = None
    if taken is not None:
        who = taken.process
        victim = {
            "pid": who.pid,
            "comm": who.comm,
            "pod": who.pod_name,
            "uid": who.pod,
            "points": taken.points,
            "rss": who.rss,
            "oom_score_adj": who.oom_score_adj,
            "waits": taken.waits,
        }
    return Looked(victim, {uid: (min(each), max(each)) for uid, each in values.items()})
