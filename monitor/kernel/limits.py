"""What a memory cgroup is allowed, what it is protected by, and how much of it is swapped out.

| v2 | v1 | here |
|---|---|---|
| memory.min, memory.low | - | `min`, `low`: memory up to there is not reclaimed (never; while there is other) |
| memory.high | - | `high`: above it the cgroup is reclaimed and throttled; nothing is killed |
| memory.max | memory.limit_in_bytes | `max`: what the OOM killer keeps |
| memory.swap.max | memory.memsw.limit_in_bytes - limit | `swap_max` |
| - | memory.soft_limit_in_bytes | `soft` |
| memory.swap.current | memory.memsw.usage_in_bytes - usage | `swap`: in use |

The soft limit protects nothing: the kernel first reclaims the cgroup that is furthest above its own (memory.rst of
cgroup-v1, 7); below `low` it reclaims nothing as long as anything else can be reclaimed (cgroup-v2.rst).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from monitor.kernel import meminfo
from monitor.kernel.cgroupfs import MAX_LIMIT, Hierarchy

#: What `memory.min` and `memory.low` of "max" stand for, everything: the kernel's PAGE_COUNTER_MAX as v1 prints it.
EVERYTHING = (1 << 63) - 4096
#: A number and a line feed; the longest is 2^63-4096.
_LONGEST = 32


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes. None: not set, or not known to this kernel and hierarchy (swap accounting is off, cgroup v1).

    ``min`` and ``low`` of 0 protect nothing and are None; "max" there is `EVERYTHING`. ``high``, ``max`` and
    ``swap_max`` may be 0.
    """

    min: int | None = None
    low: int | None = None
    high: int | None = None
    max: int | None = None
    swap_max: int | None = None
    soft: int | None = None
    swap: int | None = None

    def named(self) -> dict[str, int | None]:
        """The limits alone, by their names, without ``swap``."""
        return {name: getattr(self, name) for name in ("min", "low", "high", "max", "swap_max", "soft")}


def read(hierarchy: Hierarchy, path: Path, swap: bool = True) -> Limits | None:
    """The limits of the cgroup ``path``; None if there is no such cgroup (any more). Nothing that is missing raises.
    ``swap`` False leaves out how much is swapped out. The root is the machine: without limits, with the machine's swap.
    """
    if path == hierarchy.root:
        return machine() if swap else Limits()
    try:
        # 6 us for each file from here, 9 by its whole path, 13 by open() (measured).
        directory = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = _v1(directory, swap) if hierarchy.version == 1 else _v2(directory, swap)
    finally:
        os.close(directory)
    # The descriptor outlives a cgroup that is removed meanwhile; what is missing is missing for that reason then.
    return found if os.path.isdir(path) else None


def machine() -> Limits:
    """The machine's swap in use; None where it has no swap. CannotError without /proc."""
    values = meminfo.read()
    total = values.get("SwapTotal", 0)
    return Limits(swap=total - values.get("SwapFree", 0) if total else None)


def _v2(directory: int, swap: bool) -> Limits:
    return Limits(
        min=number(directory, "memory.min", EVERYTHING) or None,
        low=number(directory, "memory.low", EVERYTHING) or None,
        high=number(directory, "memory.high"),
        max=number(directory, "memory.max"),
        swap_max=number(directory, "memory.swap.max"),
        swap=number(directory, "memory.swap.current") if swap else None,
    )


def _v1(directory: int, swap: bool) -> Limits:
    limit = number(directory, "memory.limit_in_bytes")
    together = number(directory, "memory.memsw.limit_in_bytes")
    return Limits(
        max=limit,
        # As mem_cgroup_get_max() in mm/memcontrol.c has it. The kernel keeps the sum from being below the limit.
        swap_max=None if limit is None or together is None else together - limit,
        soft=number(directory, "memory.soft_limit_in_bytes"),
        swap=_v1_swap(directory) if swap else None,
    )


def _v1_swap(directory: int) -> int | None:
    together, memory = (number(directory, f"memory.{name}usage_in_bytes") for name in ("memsw.", ""))
    # What is charged between the two looks could make it negative.
    return None if together is None or memory is None else max(0, together - memory)


def number(directory: int | None, name: str, unlimited: int | None = None) -> int | None:
    """A file of a cgroup, by its name in an open directory or by its path; None if there is none, ``unlimited`` for
    "max" and for what v1 writes instead.
    """
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None
    try:
        text = os.read(fd, _LONGEST).strip()
    except OSError:
        return None  # ENODEV: removed since
    finally:
        os.close(fd)
    if text == b"max":
        return unlimited
    if not text.isdigit():
        return None
    value = int(text)
    return unlimited if value > MAX_LIMIT else value
