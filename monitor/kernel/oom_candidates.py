"""The processes the OOM killer would choose among, as facts for `monitor.race.badness`, which does its arithmetic."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from monitor.kernel import cgroup_procs, cgroupfs, limits, meminfo
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.limits import number
from monitor.kernel.procfs import Process as Open
from monitor.kernel.procfs import directories
from monitor.kernel.wire import printable
from monitor.race.badness import PAGE, Process

#: The pod of a cgroup: uid and namespace/name.
Owner = tuple[str, str]


def total_pages(hierarchy: Hierarchy, node: Path) -> int:
    """The pages of which oom_score_adj is thousandths: the machine's with its swap, or what ``node`` may have.

    As mem_cgroup_get_max() in mm/memcontrol.c has it: the limit and, if the cgroup may swap, what it may swap out of
    what the machine has.
    """
    machine = meminfo.read()
    swap = machine.get("SwapTotal", 0)
    limit = None if node == hierarchy.root else cgroupfs.limit(node)
    if limit is None:
        return (machine["MemTotal"] + swap) // PAGE
    swap = min(swap, max(0, (limits.read(hierarchy, node, swap=False) or {}).get("swap_max", swap)))
    if number(f"{node}/memory.swappiness") == 0:  # there is one for each cgroup on v1 alone
        swap = 0
    return (limit + swap) // PAGE


def candidates(hierarchy: Hierarchy, node: Path, owner: Callable[[Path], Owner | None]) -> list[Process]:
    """Every process in ``node`` and below, cgroup by cgroup. ``owner`` gives the pod of a cgroup. Raises OSError."""
    found = []
    for cgroup in (node, *cgroupfs.below(node)):
        whose = owner(cgroup)
        for pid in sorted(cgroup_procs.pids_in(os.fspath(cgroup))):
            process = _read(pid, str(cgroup), whose)
            if process is not None:
                found.append(process)
    return found


def _read(pid: int, cgroup: str, owner: Owner | None) -> Process | None:
    """None for one that is gone, a zombie, or a kernel thread: they have no memory of their own. As the kernel (see
    find_lock_task_mm) by any thread that has memory: the main one may have exited.
    """
    status: dict[bytes, bytes] = {}
    for directory in directories(pid):
        try:
            # In bytes: to text a carriage return ends a line too, and a name may hold one.
            with open(f"{directory}/status", "rb") as file:
                status = dict(line.rstrip(b"\n").split(b":\t", 1) for line in file if b":\t" in line)
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"VmRSS" in status:
            break
    with Open(pid) as process:
        adj = process.oom_score_adj()
    if adj is None or b"VmRSS" not in status:
        return None
    rss, swap, tables = (int(status[key].split()[0]) * 1024 for key in (b"VmRSS", b"VmSwap", b"VmPTE"))
    uid, name = owner or (None, None)
    comm = printable(status[b"Name"])
    return Process(pid, comm, rss, swap, tables, adj, cgroup, pod=uid, pod_name=name, skip=pid == 1)
