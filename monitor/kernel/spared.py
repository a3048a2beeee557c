"""Processes that are never signalled, whatever a manifest says: outrace, its ancestors, and process 1."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path

from monitor.kernel.procfs import ancestors


class Spared:
    """Processes held by pidfd: a number alone may be another process's as soon as its own has ended, and a pod that
    forked until it got that number would be spared.
    """

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}
        self._poll = select.poll()

    def add(self, pid: int) -> None:
        """Spare a process until it ends."""
        self._drop_ended()
        if pid in self._fds:
            return
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        self._fds[pid] = fd
        self._poll.register(fd, select.POLLIN)

    def pids(self) -> set[int]:
        """Process 1, this process, and those added that have not ended."""
        self._drop_ended()
        return {1, os.getpid(), *self._fds}

    def within(self, cgroup: Path) -> bool:
        """Whether one of them is in a cgroup of v2, or below it. A read of 20 us for each, however many there are."""
        return any(cgroup.as_posix().endswith(above) for pid in self.pids() for above in _unified(pid))

    def _drop_ended(self) -> None:
        for fd, _ in self._poll.poll(0):
            self._poll.unregister(fd)
            os.close(fd)
            self._fds = {pid: kept for pid, kept in self._fds.items() if kept != fd}


def _unified(pid: int) -> Iterator[str]:
    """A process's path in the hierarchy of cgroup v2 and those above it, without the root."""
    try:
        with open(f"/proc/{pid}/cgroup", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return  # ended
    path = next((os.fsdecode(line[3:]) for line in lines if line.startswith(b"0::")), "")
    while path.strip("/"):
        yield path
        path = path.rpartition("/")[0]


def with_ancestors() -> Spared:
    """This process and all that it comes from."""
    spared = Spared()
    for pid in ancestors(os.getpid()):
        spared.add(pid)
    return spared
