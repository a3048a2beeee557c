"""What waits until a pod that cgroup v1's freezer holds is thawed: SIGKILL, and a process that runc is starting in it.

containerd does not kill a container while an exec in it (a probe, say) has neither begun nor failed: 3 of 16 that were
frozen while execs started in them (containerd 1.6, runc 1.1) outlived StopContainer by 12 s, and ended 0.2 s after they
were thawed for 5 ms.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path

from monitor.kernel.cgroup_procs import CGROUPS, walk
from monitor.kernel.procfs import kill_pends

#: Processes in one check, by the hot thread, 30 us each. A pod may have thousands.
PROCESSES = 64
#: ... and the time after which a check ends, however long one of them took.
_MOST_NS = 1_000_000
#: The name of a process between runc's fork and its execve: runc:[2:INIT] (runc, libcontainer/nsenter/nsexec.c).
_STARTING = b"runc:["
#: What waits. Of several the first here.
KILL, START = "kill", "start"


class ThawReasons:
    """Checks the processes of one pod in rounds, a part in each call."""

    def __init__(self, cgroup: Path) -> None:
        self._cgroup = cgroup
        self._walk: Generator[tuple[str, set[int]]] | None = None
        self._pids: list[int] = []

    def look(self) -> str:
        """`KILL` if one of the next processes has a SIGKILL pending, `START` if runc starts one. Raises OSError."""
        found = ""
        self._walk = self._walk or walk(self._cgroup)
        processes, cgroups, end_ns = PROCESSES, CGROUPS, time.monotonic_ns() + _MOST_NS
        is_first = True  # each check makes progress, however slow the CPU
        while processes and (self._pids or cgroups) and (is_first or time.monotonic_ns() < end_ns):
            is_first = False
            if self._pids:
                processes -= 1
                waits = _waits_for(self._pids.pop())
                if waits == KILL:
                    self._pids, self._walk = [], None
                    return KILL
                found = found or waits
                continue
            cgroups -= 1
            following = next(self._walk, None)
            if following is None:
                self._walk = None
                break
            self._pids = list(following[1])
        return found


def _waits_for(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            name, _, fields = file.read().partition(b"(")[2].rpartition(b")")
        if kill_pends(fields.split()):
            return KILL
    except (OSError, IndexError, ValueError):
        return ""  # it has ended
    return START if name.startswith(_STARTING) else ""
