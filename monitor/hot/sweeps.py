"""Sweeps of the hot process: what waits for one, and how much of a turn of the loop it gets.

A sweep visits every counted memory cgroup: 17,000 take 45 ms. So it gets `FIRST_TURN_NS` in the turn of its
request, which is all that the usual node needs, and `TURN_NS` of the turns that follow.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from monitor.errors import MonitorError
from monitor.kernel import cgroupfs
from monitor.kernel.domains import MAX_LEVEL, MAX_NESTED
from monitor.link.outbox import Outbox
from monitor.sources.gauge import FIRST_TURN_NS, TURN_NS, Gauge
from monitor.sources.registry import PodEntry, Registry

_REMEDY = "name a cgroup further up, or run with --hooks poll, which reads files"


def _is_there(entry: PodEntry) -> bool:
    try:
        return cgroupfs.cgroup_id(entry.cgroup) == entry.cgroup_id
    except MonitorError:
        return False


@dataclass(eq=False)
class Sweeps:
    """One sweep at a time; ``between`` is called during it, so that crossings do not wait."""

    gauge: Gauge
    registry: Registry
    outbox: Outbox
    between: Callable[[], object]

    def __post_init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []  # for the one that runs
        self._later: list[Callable[[], None]] = []  # for the one after it
        self._again = False
        self._pods: list[PodEntry] = []  # it goes over these
        self._reported: set[str] = set()  # uids of pods that are not counted
        self._next_ns = 0  # when to go on, while one runs

    @property
    def runs(self) -> bool:
        return self.gauge.sweeping

    def due_ns(self) -> int | None:
        """When to go on; None while none runs."""
        return self._next_ns if self.gauge.sweeping else None

    def ask(self, then: Callable[[], None] | None = None) -> bool:
        """Make every counter exact, rank by them, and do ``then``; whether that is done, or follows in later turns.

        What came since the one that runs has begun is counted by the next one.
        """
        waiting = self._later if self.runs else self._waiting
        if then is not None and then not in waiting:
            waiting.append(then)
        if self.runs:
            self._again = True
            return False
        self._begin()
        return self.go_on(FIRST_TURN_NS)

    def _begin(self) -> None:
        self._pods = list(self.registry)
        self.gauge.begin_sweep()

    def go_on(self, budget_ns: int = TURN_NS) -> bool:
        """Give it so much time; whether it is complete, and what waited for it was done."""
        if not self.gauge.go_on_sweeping(budget_ns, self.between):
            # While all sums are known, it takes a fifth of the time.
            self._next_ns = time.monotonic_ns() + (0 if self.gauge.unknown else 4 * budget_ns)
            return False
        self.registry.refresh()
        self._report_uncounted()
        done, self._waiting, self._later = self._waiting, self._later, []
        if self._again:
            self._again, self._next_ns = False, 0
            self._begin()
        for then in done:
            then()
        return True

    def _report_uncounted(self) -> None:
        """What lies deeper than the programs in the kernel look is not watched, and that is logged.

        Raises MonitorError where it is what the thresholds are about: another rung reads files, at any depth.
        """
        watch = self.gauge.uncounted()
        if watch is not None:
            raise MonitorError(
                f"{watch.path} is not counted by the BPF programs, which look at {MAX_LEVEL} levels of cgroups and at "
                f"{MAX_NESTED} watched ones inside each other",
                _REMEDY,
            )
        lost = [e for e in self._pods if self.registry.by_uid.get(e.uid) is e and not e.counted]
        self.outbox.stats.set("pods_uncounted", len(lost))
        for entry in lost:
            if entry.uid not in self._reported and _is_there(entry):
                self._reported.add(entry.uid)
                fields: dict[str, Any] = {"cgroup": str(entry.cgroup), "levels": MAX_LEVEL, "remedy": _REMEDY}
                self.outbox.log(
                    "error", "a pod is not watched: the BPF programs do not look that deep", pod=entry.title, **fields
                )
        self._reported &= self.registry.by_uid.keys()
