"""Time that tasks of a cgroup waited for memory and for io (PSI), and the pages that reclaim took and refaults read.

v1's memory hierarchy has no pressure files. A v2 hierarchy beside it has them, for a cgroup of the same path that has
processes there (systemd's hybrid layout).
"""

from __future__ import annotations

from pathlib import Path

from monitor.errors import MonitorError
from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import MOUNTS, Hierarchy, mount_table

PROC, VMSTAT = Path("/proc/pressure"), Path("/proc/vmstat")
#: Waiting of `memory` and `io`, microseconds.
Waited = tuple[int, int]
#: Pages: refaults, those that reclaim took, and the refaults from swap.
Pages = tuple[int, int, int]


def unified(hierarchy: Hierarchy, mounts: str | Path = MOUNTS) -> Path | None:
    """The root of the v2 hierarchy, which has the pressure files; None where it is not mounted."""
    if hierarchy.version == 2:
        return hierarchy.root
    try:
        return next((point for point, kind, _ in mount_table(mounts) if kind == "cgroup2"), None)
    except OSError:
        return None


def directory_of(hierarchy: Hierarchy, v2: Path | None, cgroup: Path) -> Path | None:
    """Where the pressure files of a memory cgroup are; None where none count its processes."""
    if v2 is None:
        return None
    if hierarchy.version == 2:
        return cgroup
    beside = v2 / cgroup.relative_to(hierarchy.root)
    try:
        return beside if b"populated 1" in (beside / "cgroup.events").read_bytes() else None
    except OSError:
        return None


def waited(directory: Path | None) -> Waited | None:
    """Of a cgroup's directory, or of the machine (`PROC`). None: not known (no PSI, or no such cgroup any more)."""
    if directory is None:
        return None
    names = ("memory", "io") if directory == PROC else ("memory.pressure", "io.pressure")
    try:
        memory, io = (_some(f"{directory}/{name}") for name in names)
    except (OSError, ValueError, IndexError):
        return None
    return memory, io


def _some(path: str) -> int:
    """``some``, the first line: some avg10=0.00 avg60=0.00 avg300=0.00 total=53519. Raises OSError, ValueError,
    IndexError.
    """
    with open(path, "rb", buffering=0) as file:
        return int(file.read(256).split(b"\n", 1)[0].rpartition(b"total=")[2])


def full(directory: Path | None) -> float | None:
    """The share of the last 10 s in which all tasks that had work waited for memory at once: the avg10 of ``full``, 0
    to 1. None: not known.
    """
    if directory is None:
        return None
    try:
        text = (directory / ("memory" if directory == PROC else "memory.pressure")).read_text()
        return float(text.partition("full avg10=")[2].split(" ", 1)[0]) / 100
    except (OSError, ValueError):
        return None


def pages(hierarchy: Hierarchy, cgroup: Path) -> Pages | None:
    """Of a memory cgroup with all below; None: not known. The root is the machine. (v1 does not count what reclaim
    took: all pages that were freed stand for it, so refaults among pages that a pod frees itself weigh less.)
    """
    try:
        stat = _vmstat() if cgroup == hierarchy.root else cgroupfs.memory_stat(cgroup)
    except (MonitorError, OSError):
        return None
    v1 = hierarchy.version == 1 and cgroup != hierarchy.root
    refaults = "total_workingset_refault" if v1 else "workingset_refault"
    taken = ("total_pgpgout",) if v1 else ("pgsteal_anon", "pgsteal_file") if cgroup == hierarchy.root else ("pgsteal",)
    if f"{refaults}_file" not in stat or taken[-1] not in stat:
        return None  # before Linux 5.9
    swap = stat.get(f"{refaults}_anon", 0)
    return swap + stat[f"{refaults}_file"], sum(stat.get(name, 0) for name in taken), swap


def passed() -> int | None:
    """Pages of files that the machine has read or written for the first time, but for a constant: those that it has
    and those that reclaim took, without those read again. It falls where files are removed. None: not known.
    """
    try:
        stat = _vmstat()
    except OSError:
        return None
    if not stat.keys() >= {"pgsteal_file", "workingset_refault_file", "nr_inactive_file", "nr_active_file"}:
        return None  # before Linux 5.9
    has, taken = stat["nr_inactive_file"] + stat["nr_active_file"], stat["pgsteal_file"]
    # MADV_FREE puts anonymous pages into the list of inactive files; those that were taken from there are no files.
    return has + taken - stat["workingset_refault_file"] - stat.get("pglazyfreed", 0)


def _vmstat() -> dict[str, int]:
    lines = VMSTAT.read_text().splitlines()
    return {key: int(value) for key, _, value in (line.partition(" ") for line in lines)}
