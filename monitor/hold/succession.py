"""Pods that a killed hot process holds: the next hot process continues the holds, once it watches memory itself.

Released earlier they would grow unwatched: of 4 such races at full speed 3 were lost (`outrace bench kills --mode
hold`, before this was so).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from monitor.actions.ledger import HOT, attribute_of, is_noted
from monitor.actions.undo import Undone, logged, problem_logged, undoing
from monitor.errors import MonitorError
from monitor.kernel.cgroup_procs import CGROUPS
from monitor.kernel.cgroupfs import Hierarchy
from monitor.sources.registry import PodEntry

_REST = 4  # the pause after a part is so many times its cost


class LeftHolds:
    """Releases what earlier daemons hold and this one does not, by parts, because it checks all cgroups, 15 us each. It
    begins when the pods are known. If no source of pods answers, it begins at the time limit of a hold, because no
    sample decides on these holds. ``keep``: whether a cgroup has a brake of this daemon.
    """

    def __init__(
        self,
        state_dir: Path,
        limit_ns: int,
        hierarchy: Hierarchy,
        log: Callable[..., None],
        keep: Callable[[Path], bool],
    ) -> None:
        self._mine, self._hierarchy = attribute_of(state_dir), hierarchy
        self._log, self._keep = log, keep
        self._due_ns: int | None = time.monotonic_ns() + limit_ns
        self._steps = self.steps()

    def take_over(self, pods: Iterable[PodEntry], go_on: Callable[[Iterable[PodEntry]], Iterable[PodEntry]]) -> None:
        """Once, when all pods are known and counted: ``go_on`` continues the holds that memory is short for, and the
        other known pods are released. What else is held (unknown pods, holds of other daemons that are dead) follows.
        """
        held = [entry for entry in pods if is_noted(entry.cgroup, self._mine)]
        for entry in go_on(held):
            self._log("warning", "a hold of an earlier daemon continues", pod=entry.title)
        for entry in held:  # what this daemon cannot continue
            for _ in islice(self.steps([entry.cgroup]), CGROUPS):
                pass
        self.begin()

    def steps(self, paths: Iterable[Path] | None = None) -> Iterator[Undone | None]:
        """Each step checks one cgroup, and releases it if it is held. ``paths``: only these cgroups."""
        ended, on_problem = {self._mine}, problem_logged(self._log)
        try:
            for one in undoing(self._hierarchy, on_problem, ended, roles=(HOT,), keep=self._keep, paths=paths):
                if one is not None:
                    logged(one, self._log)
                yield one
        except MonitorError as error:
            on_problem(str(error))

    def begin(self) -> None:
        """All pods are known, and the holds that continue."""
        if self._due_ns is not None:
            self._due_ns = 0

    def due_ns(self) -> int | None:
        return self._due_ns

    def release(self, _: int = 0) -> None:
        """Release a part of them."""
        began_ns = time.thread_time_ns()
        is_over = sum(1 for _ in islice(self._steps, CGROUPS)) < CGROUPS
        self._due_ns = None if is_over else time.monotonic_ns() + _REST * (time.thread_time_ns() - began_ns)

    def finish(self, until_ns: int) -> None:
        """This process ends: release all of them, or as many as possible until then."""
        while self._due_ns is not None and time.monotonic_ns() < until_ns:
            self.release()
