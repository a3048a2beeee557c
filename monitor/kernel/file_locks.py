"""Who waits for a file lock (flock, POSIX, open file description) that another process has: /proc/locks.

A lock that processes share in memory, a mutex, is not to be seen there, nor anywhere else in the kernel.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

_LOCKS = Path("/proc/locks")


class Wait(NamedTuple):
    """Process ``waiter`` waits for a lock of process ``holder``. ``file``: its device and inode number."""

    waiter: int
    holder: int
    file: str


def waits_for(holders: Collection[int], locks: Path = _LOCKS) -> list[Wait]:
    """Those who wait for a lock that one of ``holders`` has, and are none of them. Raises OSError.

    Each lock is a line, ``1: FLOCK ADVISORY WRITE 4711 fd:00:42 0 EOF``; who waits for it follows with ``1: -> FLOCK``.
    """
    found, holder = list[Wait](), 0
    for line in locks.read_text().splitlines():
        words = line.split()
        waits = len(words) > 1 and words[1] == "->"
        words = words[2:] if waits else words[1:]
        if len(words) < 5 or not words[3].lstrip("-").isdigit():
            continue
        if not waits:
            holder = int(words[3])
        elif holder in holders and int(words[3]) not in holders:
            found.append(Wait(int(words[3]), holder, words[4]))
    return found
