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
from pathlib import Path

from monitor.kernel import meminfo
from monitor.kernel.cgroupfs import Hierarchy, limit_of

#: What `memory.min` and `memory.low` of "max" stand for, everything: the kernel's PAGE_COUNTER_MAX as v1 prints it.
EVERYTHING = (1 << 63) - 4096
_PROTECTIONS = ("min", "low")
_LIMITS = ("high", "max", "swap.max")
#: A number and a line feed; the longest is 2^63-4096.
_LONGEST = 32


def read(hierarchy: Hierarchy, path: Path, swap: bool = True) -> dict[str, int] | None:
    """Bytes of each limit of the cgroup ``path`` that is set, by its name above; None if there is no such cgroup (any
    more). Nothing that is missing raises (swap accounting is off, the other version of cgroups). ``swap`` False leaves
    out how much is swapped out. The root is the machine: without limits, with the machine's swap.
    """
    if path == hierarchy.root:
        return machine_swap() if swap else {}
    try:
        os.close(os.open(path, os.O_PATH | os.O_CLOEXEC))
    except OSError:
        return None  # gone; or no descriptor is left, and then no limit is known
    found = _v1(path, swap) if hierarchy.version == 1 else _v2(path, swap)
    return {name: n for name, n in found.items() if n is not None} if os.path.isdir(path) else None


def machine_swap() -> dict[str, int]:
    """The machine's swap in use, as `read` has it; CannotError without /proc."""
    values = meminfo.read()
    total = values.get("SwapTotal", 0)
    return {"swap": total - values.get("SwapFree", 0)} if total else {}


def _v2(path: Path, swap: bool) -> dict[str, int | None]:
    """Protections of 0 protect nothing; "max" is `EVERYTHING` there. A limit may be 0."""
    found = {name: number(f"{path}/memory.{name}", EVERYTHING) or None for name in _PROTECTIONS}
    found |= {name.replace(".", "_"): number(f"{path}/memory.{name}") for name in _LIMITS}
    return found | ({"swap": number(f"{path}/memory.swap.current")} if swap else {})


def _v1(path: Path, swap: bool) -> dict[str, int | None]:
    limit, soft, both = (number(f"{path}/memory.{name}limit_in_bytes") for name in ("", "soft_", "memsw."))
    found = {"max": limit}
    if limit is not None and both is not None:
        # As mem_cgroup_get_max() in mm/memcontrol.c has it. The kernel keeps the sum from being below the limit.
        found["swap_max"] = both - limit
    found["soft"] = soft
    together, memory = (number(f"{path}/memory.{name}usage_in_bytes") if swap else None for name in ("memsw.", ""))
    if together is not None and memory is not None:
        found["swap"] = max(0, together - memory)  # what is charged between the two looks could make it negative
    return found


def number(path: str, unlimited: int | None = None) -> int | None:
    """What a file of a cgroup says; None if there is none, ``unlimited`` for "max" and for what v1 writes instead."""
    try:
        with open(path, "rb", buffering=0) as file:
            value = limit_of(file.read(_LONGEST))
    except (OSError, ValueError):
        return None  # ENODEV: removed since
    return unlimited if value is None else value
