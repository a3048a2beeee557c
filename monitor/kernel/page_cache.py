"""The lists of page cache in memory.stat. The keys have the newline before them."""

from __future__ import annotations

STAT_KEYS = {1: (b"\ntotal_inactive_file ", b"\ntotal_active_file "), 2: (b"\ninactive_file ", b"\nactive_file ")}


def number(data: bytes, key: bytes) -> int:
    """The number behind ``key``; 0 where there is none, as cAdvisor has it."""
    at = data.find(key)
    if at < 0:
        return 0
    at += len(key)
    end = data.find(b"\n", at)
    return int(data[at : end if end >= 0 else None])
