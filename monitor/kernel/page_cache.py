"""Page cache in the kernel's files: its lists, what of it is dirty or under writeback, what protection keeps of it.

The keys of memory.stat, and of /proc/vmstat for the machine, have the newline before them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.wire import PAGE

STAT_KEYS = {1: (b"\ntotal_inactive_file ", b"\ntotal_active_file "), 2: (b"\ninactive_file ", b"\nactive_file ")}
DIRTY_KEYS = {1: (b"\ntotal_dirty ", b"\ntotal_writeback "), 2: (b"\nfile_dirty ", b"\nfile_writeback ")}
VMSTAT_DIRTY_KEYS = (b"\nnr_dirty ", b"\nnr_writeback ")


def dirty_bytes(data: bytes, version: int) -> int:
    """Of memory.stat (after a newline): bytes that are dirty or under writeback."""
    return sum([number(data, key) for key in DIRTY_KEYS[version]])


def lists_bytes(data: bytes, version: int) -> int:
    """Of memory.stat (after a newline): bytes on the two lists of page cache."""
    return sum([number(data, key) for key in STAT_KEYS[version]])


def number(data: bytes, key: bytes) -> int:
    """The number behind ``key``; 0 where there is none, as cAdvisor has it."""
    at = data.find(key)
    if at < 0:
        return 0
    at += len(key)
    end = data.find(b"\n", at)
    return int(data[at : end if end >= 0 else None])


def kept_by_protection(usage: int, cache: int, protection: int) -> int:
    """Bytes of a cgroup's page cache that its memory.min or memory.low keeps: reclaim of the cgroup above it ends
    where its usage is down to that.
    """
    return min(cache, max(0, cache - (usage - protection)))


def children(path: Path) -> list[Path]:
    """The cgroups right below. Raises OSError."""
    with os.scandir(path) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))


def protection(child: Path) -> int:
    """Bytes that memory.min or memory.low keep in a cgroup (v2); 0 where there are none."""
    with suppress(OSError):
        return max(_amount(child / "memory.min"), _amount(child / "memory.low"))
    return 0


def kept(child: Path, protected: int) -> int:
    """Bytes of the page cache of a cgroup (v2) that it keeps, protected by so many bytes; 0 once it is removed."""
    with suppress(OSError):
        cache = lists_bytes(b"\n" + (child / "memory.stat").read_bytes(), 2)
        return kept_by_protection(_amount(child / "memory.current"), cache, protected)
    return 0


def withheld(hierarchy: Hierarchy, path: Path) -> int:
    """Bytes of a domain's page cache that the kernel does not get at once, by its files alone. Raises OSError.

    The daemon has them exactly (`monitor.sources.withheld`); memory.stat may be 2 s old.
    """
    if path == hierarchy.root:
        data = b"\n" + Path("/proc/vmstat").read_bytes()
        found = sum([number(data, key) for key in VMSTAT_DIRTY_KEYS]) * PAGE
    else:
        found = dirty_bytes(b"\n" + (path / "memory.stat").read_bytes(), hierarchy.version)
    if hierarchy.version == 2:
        found += sum([kept(child, protected) for child in children(path) if (protected := protection(child))])
    return found


def _amount(path: Path) -> int:
    text = path.read_bytes().strip()
    return 1 << 62 if text == b"max" else int(text)
