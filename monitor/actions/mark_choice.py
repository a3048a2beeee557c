"""Which processes of a pod may be raised for the OOM killer without another one dying at a container's own limit.

There the kernel compares the same values. Where a container ranks its processes (a database's server -100, its workers
0), all of them at 1000 would cost the largest, which may be the one that it protects. Such a container is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path


def may_raise(
    pod: Path, before: Iterable[tuple[str, int]], found: Iterable[tuple[str, int]]
) -> Callable[[str, int], bool]:
    """Whether a process in this cgroup with this oom_score_adj may be raised. ``before``: what those had that are
    raised; ``found``: what others have. In a container that is raised already a new one may be that has as much:
    left alone it would die behind those before which it should.
    """
    raised = {container: max(values) for container, values in _by_container(pod, before).items()}
    apart = {container for container, values in _by_container(pod, found).items() if len(values) > 1}

    def may(cgroup: str, value: int) -> bool:
        container = _container_of(pod, cgroup)
        return value >= raised[container] if container in raised else container not in apart

    return may


def _by_container(pod: Path, values: Iterable[tuple[str, int]]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for cgroup, value in values:
        found.setdefault(_container_of(pod, cgroup), set()).add(value)
    return found


def _container_of(pod: Path, cgroup: str) -> str:
    """The first directory below the pod's, "" for the pod itself: limits of a container count all that is below."""
    return cgroup.removeprefix(str(pod)).lstrip("/").partition("/")[0]


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
