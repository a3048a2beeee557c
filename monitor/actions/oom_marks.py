"""oom_score_adj 1000 for every process of a pod, so that the kernel's OOM killer takes it first; and back, exactly.

What the processes had is noted at the pod's cgroup before the first one is raised (`monitor.actions.ledger`): there is
nothing at a process that could hold it. A note has at most 64 KiB, some 1,500 processes: of a pod with more that have
1000 already none is raised.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from monitor.actions.changes import identity_of
from monitor.actions.ledger import MARKS, SCORES, Ledger
from monitor.actions.oom_values import (
    CAP_SYS_RESOURCE,
    RAISED,
    SANDBOX,
    Mark,
    Restored,
    Seen,
    noted_in,
    pids_of,
    restore,
    running,
    store,
    without,
)
from monitor.errors import MonitorError
from monitor.kernel.procfs import Process, directories

#: Processes of a pod that are raised (28 us each): the largest, where it has more. The kernel kills one at a time.
MOST = 1024


class MarkJournal:
    """The marks of the daemon on ``state_dir``. One thread uses it at a time."""

    def __init__(self, state_dir: Path, most: int = MOST) -> None:
        self._ledger = Ledger(state_dir, MARKS)
        self._most = most

    def mark(self, cgroup: Path, uid: str) -> Mark:
        """Raise every process of this pod. Raises OSError where nothing can be noted or the pod is gone, and then
        nothing is raised; MonitorError where its processes cannot be listed.
        """
        mark = Mark(cgroup, identity_of(cgroup), uid)
        # Of a mark of this very cgroup that could not be set back: what its processes had before counts.
        mark.processes = noted_in(cgroup, lambda one: one.attribute == self._ledger.attribute)
        self.look_again(mark)
        return mark

    def look_again(self, mark: Mark) -> int:
        """Raise what is new and not raised, and keep its value; how many that was. A process that inherited the value
        is left to `restore`. Raises as `mark` does.
        """
        found: dict[int, Seen] = {}
        inside = dict(pids_of(mark.cgroup))
        for pid, container in inside.items():
            seen, known = _seen(pid, container), mark.processes.get(pid)
            if seen is not None and (known is None or known.started != seen.started):
                found[pid] = seen
        before = [(s.container, s.old) for s in mark.processes.values() if s.old != RAISED]
        may = may_raise(before, [(s.container, s.old) for s in found.values() if s.old > SANDBOX])
        lower = [pid for pid, s in found.items() if SANDBOX < s.old < RAISED and may(s.container, s.old)]
        if mark.raised + len(lower) > self._most:
            mark.processes = running(mark.processes)
        qos = noted_in(mark.cgroup, lambda one: one.role == SCORES) if lower else {}
        new = {pid: _own(found[pid], qos.get(pid)) for pid in largest(lower, self._most - mark.raised)}
        if not mark.raised:  # later it may be inherited, which `restore` finds out
            now = mark.processes | {pid: seen for pid, seen in found.items() if seen.old == RAISED}
            mark.processes = {pid: seen for pid, seen in now.items() if pid in inside}
        if not new:
            return 0
        mark.processes |= new
        store(self._ledger, mark)
        raised = 0
        with without(CAP_SYS_RESOURCE):
            for pid, seen in new.items():
                try:
                    with Process(pid) as process:
                        raised += process.started() == seen.started and process.set_oom_score_adj(RAISED)
                except (PermissionError, MonitorError):
                    mark.denied += 1
        return raised

    def restore(self, mark: Mark) -> Restored:
        """`oom_values.restore`. Raises OSError, MonitorError."""
        return restore(self._ledger, mark)


def _seen(pid: int, container: int) -> Seen | None:
    with Process(pid) as process:
        started, now = process.started(), process.oom_score_adj()
    return None if started is None or now is None else Seen(started, now, container)


def _own(seen: Seen, given: Seen | None) -> Seen:
    """With the process's own value, where the one that it has is outrace's (`monitor.actions.oomadj`)."""
    if given is None or (given.started, given.written) != (seen.started, seen.old):
        return seen
    return replace(seen, old=given.old)


def may_raise(before: Iterable[tuple[int, int]], found: Iterable[tuple[int, int]]) -> Callable[[int, int], bool]:
    """Whether a process in this container with this oom_score_adj may be raised, without another one dying at the
    container's own limit. There the kernel compares the same values: where a container ranks its processes (a
    database's server -100, its workers 0), all of them at 1000 would cost the largest, which may be the one that it
    protects. Such a container is left alone. ``before``: what those had that are raised; ``found``: what others have.
    In a container with raised processes a new one is raised if its value is no lower than theirs were: else it
    would die after them.
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


def largest(pids: list[int], most: int) -> list[int]:
    """The largest ``most`` of these processes."""
    if len(pids) <= most:
        return pids
    return sorted(pids, key=_resident, reverse=True)[: max(0, most)]


def _resident(pid: int) -> int:
    for directory in directories(pid):
        with contextlib.suppress(OSError), open(f"{directory}/statm", "rb") as file:
            if pages := int(file.read().split()[1]):
                return pages
    return 0
