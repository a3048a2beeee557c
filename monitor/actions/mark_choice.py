"""Which processes of a pod may be raised for the OOM killer without another one dying at a container's own limit.

There the kernel compares the same values. Where a container ranks its processes (a database's server -100, its workers
0), all of them at 1000 would cost the largest, which may be the one that it protects. Such a container is left alone.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path


def may_raise(before: Iterable[tuple[int, int]], found: Iterable[tuple[int, int]]) -> Callable[[int, int], bool]:
    """Whether a process in this container with this oom_score_adj may be raised. ``before``: what those had that are
    raised; ``found``: what others have. In a container that is raised already a new one may be that has as much:
    left alone it would die behind those before which it should.
    """
    raised = {container: max(values) for container, values in _by_container(before).items()}
    apart = {container for container, values in _by_container(found).items() if len(values) > 1}

    def may(container: int, value: int) -> bool:
        return value >= raised[container] if container in raised else container not in apart

    return may


def _by_container(values: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for container, value in values:
        found.setdefault(container, set()).add(value)
    return found


def container_of(pod: Path, cgroup: str) -> int:
    """A number for the first directory below the pod's: limits of a container count all that is below. The pod itself
    has 0. (The pod's author chooses the names, and a note has room for numbers.)
    """
    return zlib.crc32(os.fsencode(cgroup.removeprefix(str(pod)).lstrip("/").partition("/")[0]))


def largest(pids: list[int], most: int) -> list[int]:
    """The largest ``most`` of these processes."""
    if len(pids) <= most:
        return pids
    return sorted(pids, key=_resident, reverse=True)[: max(0, most)]


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1])
    except OSError:
        return 0
