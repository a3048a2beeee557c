"""/proc/meminfo in bytes."""

from __future__ import annotations

import os
from pathlib import Path

from monitor.errors import CannotError

MEMINFO = "/proc/meminfo"
MIN_FREE = "/proc/sys/vm/min_free_kbytes"
ZONEINFO = "/proc/zoneinfo"


def parse(text: str) -> dict[str, int]:
    """Every ``Name: number [kB]`` line as bytes, or as the plain count where there is no unit (HugePages_Total). A line
    that does not look like that is left out: the kernel adds fields in most releases.
    """
    values: dict[str, int] = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        if not colon or not words or not words[0].isascii() or not words[0].isdigit():
            continue
        if len(words) == 1:
            values[name.strip()] = int(words[0])
        elif words[1].lower() == "kb":
            values[name.strip()] = int(words[0]) * 1024  # the kernel prints "kB" and means KiB
    return values


def read(path: str | Path = MEMINFO) -> dict[str, int]:
    """The file as a dictionary; raises CannotError if it cannot be read or has no MemTotal."""
    try:
        values = parse(Path(path).read_text(errors="replace"))
    except OSError as e:
        raise CannotError(f"{path}: {e.strerror}", "mount procfs at /proc") from e
    if not values.get("MemTotal"):
        raise CannotError(f"{path} has no MemTotal", "mount procfs at /proc")
    return values


def swap_in_use(path: str | Path = MEMINFO) -> tuple[float, int] | None:
    """The part of swap that is in use, or of memory if that is less (as systemd-oomd counts for SwapUsedLimit=: a full
    swap harms nothing while memory is free); and the bytes of swap. None: there is none, or it is not known.
    """
    try:
        values = read(path)
        total, memory = values["SwapTotal"], values["MemTotal"]
        used = min((total - values["SwapFree"]) / total, (memory - values["MemAvailable"]) / memory)
    except (CannotError, KeyError, ZeroDivisionError):
        return None
    return used, total


def mem_total(path: str | Path = MEMINFO) -> int:
    """The machine's memory in bytes, which is what the kubelet calls its capacity."""
    return read(path)["MemTotal"]


def huge_pages(path: str | Path = MEMINFO) -> int:
    """Bytes of the machine's memory that are set aside as huge pages of any size (hugetlb), used or not. Raises
    CannotError as `mem_total` does.
    """
    return read(path).get("Hugetlb", 0)


def kernels_share(
    path: str | Path = MEMINFO,
    min_free: str | Path = MIN_FREE,
    zones: str | Path = ZONEINFO,
    *,
    huge_pages_apart: bool = False,
) -> int:
    """Bytes that no process can get although they are neither a process's nor page cache: huge pages set aside, what
    the kernel holds and cannot shrink (slab, page tables, stacks, BPF maps, pages of drivers and balloons), and what it
    keeps free for itself: it kills before it lets that be used (mm/page_alloc.c, ALLOC_WMARK_MIN). Raises CannotError
    as `mem_total` does.

    Free pages that wait on a CPU's list are free: there can be tens of MiB after a large process has gone.
    What it holds is what no line of the file accounts for, and so in part a guess: the ARC of ZFS and the buffers of
    XFS are in there, and shrink. So at most a sixteenth of the memory and 64 MiB are taken for it.

    Nothing in a container with a file of its own (lxcfs): huge pages and what is kept free are the machine's there, and
    may be more than the container has. ``huge_pages_apart``: without huge pages, which the capacity is without too.
    """
    before, found = _of_sysinfo(), read(path)
    if path == MEMINFO and found["MemTotal"] not in (before, _of_sysinfo()):  # it may change just now
        return 0
    total, huge = found["MemTotal"], found.get("Hugetlb", 0)
    lists = ("Active", "Inactive", "Unevictable")
    held = total - huge - sum(found.get(name, 0) for name in ("MemFree", "SReclaimable", *lists)) - _on_cpus(zones)
    try:
        kept = int(Path(min_free).read_text()) * 1024
    except (OSError, ValueError):
        kept = 0
    return (0 if huge_pages_apart else huge) + min(max(0, held), total // 16 + (64 << 20)) + kept


def _on_cpus(zones: str | Path) -> int:
    """Bytes on the CPUs' lists of free pages (mm/vmstat.c, zoneinfo_show_print()); 0 where that cannot be read."""
    try:
        lines = Path(zones).read_text().splitlines()
    except OSError:
        return 0
    counts = (line.split()[1:] for line in lines if line.lstrip().startswith("count:"))
    return sum(int(words[0]) for words in counts if words and words[0].isdigit()) * _PAGE_SIZE


class MemTotal:
    """The machine's memory as it is now: a balloon, memory that is plugged or a block taken offline change it.

    Asked by sysinfo(2), in 2 us (the file takes 20), where that says the same as ``path``: in a container the file may
    be another's (lxcfs). Raises CannotError as `mem_total` does.
    """

    def __init__(self, path: str | Path = MEMINFO) -> None:
        self._path = path
        self._by_call = _of_sysinfo() == mem_total(path)

    def now(self) -> int:
        """Bytes."""
        return _of_sysinfo() if self._by_call else mem_total(self._path)

    def huge_pages(self) -> int:
        """Bytes of it in huge pages, read from the file; 0 in a container with a file of its own, for which those are
        the machine's.
        """
        return huge_pages(self._path) if self._by_call else 0


_PHYS_PAGES = os.sysconf_names["SC_PHYS_PAGES"]
_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


def _of_sysinfo() -> int:
    """sysinfo.totalram, which MemTotal is printed from (fs/proc/meminfo.c, si_meminfo())."""
    return os.sysconf(_PHYS_PAGES) * _PAGE_SIZE


def multi_gen_lru(path: Path = Path("/sys/kernel/mm/lru_gen/enabled")) -> bool:
    """Whether the kernel keeps page cache in generations instead of an active and an inactive list. The sizes of those
    lists are 0 then (include/linux/mm_inline.h, lru_gen_update_size()); the programs read both.
    """
    try:
        return bool(int(path.read_text(), 16) & 1)
    except (OSError, ValueError):
        return False


def huge_page(directory: Path = Path("/sys/kernel/mm/transparent_hugepage")) -> int:
    """Bytes of a transparent huge page, 0 where they are switched off. (2 MiB on x86, up to 512 MiB with 64K pages.)"""
    try:
        if "[never]" in (directory / "enabled").read_text():
            return 0
        return int((directory / "hpage_pmd_size").read_text())
    except OSError:
        return 0
