"""Whether somebody whom cgroup v1's freezer holds was sent SIGKILL, which waits until he is thawed."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

from monitor.kernel.cgroup_procs import walk

#: In one look, by the hot thread: processes, 30 us each, and cgroups, 15 us each. A pod may have thousands of both.
PROCESSES, CGROUPS = 64, 64
_SIGKILL = 1 << 8  # in the masks of /proc/PID/status


class PendingKills:
    """Goes round the processes of one pod, a part in each look."""

    def __init__(self, cgroup: Path) -> None:
        self._cgroup = cgroup
        self._walk: Generator[tuple[str, set[int]]] | None = None
        self._pids: list[int] = []

    def look(self) -> bool:
        """Whether one of the next processes has a SIGKILL pending. Raises OSError."""
        self._walk = self._walk or walk(self._cgroup)
        processes, cgroups = PROCESSES, CGROUPS
        while processes and (self._pids or cgroups):
            if self._pids:
                processes -= 1
                if _is_killed(self._pids.pop()):
                    return True
                continue
            cgroups -= 1
            found = next(self._walk, None)
            if found is None:
                self._walk = None
                break
            self._pids = list(found[1])
        return False


def _is_killed(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            masks = [int(line.split()[1], 16) for line in file if line.startswith((b"SigPnd:", b"ShdPnd:"))]
    except (OSError, IndexError, ValueError):
        return False  # it has ended
    return any(mask & _SIGKILL for mask in masks)
