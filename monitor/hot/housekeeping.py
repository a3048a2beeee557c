"""Work without an event: looks at headroom; once a second a check of all that changes without a report."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monitor.errors import MonitorError
from monitor.hot.decide import Decider
from monitor.hot.evictor import Evictor
from monitor.hot.records import Records
from monitor.kernel import cgroupfs
from monitor.kernel.domains import MAX_LEVEL, MAX_NESTED
from monitor.link.messages import PodSeen
from monitor.link.outbox import Outbox
from monitor.sources.events import EventSource
from monitor.sources.gauge import FIRST_TURN_NS, SWEEP_NS, TURN_NS, Gauge
from monitor.sources.registry import PodEntry, Registry

_REMEDY = "name a cgroup further up, or run with --hooks poll, which reads files"


def _is_there(entry: PodEntry) -> bool:
    try:
        return cgroupfs.cgroup_id(entry.cgroup) == entry.cgroup_id
    except MonitorError:
        return False


@dataclass(eq=False)
class Sweeps:
    """What waits for a sweep, and how much of a turn it gets. It visits every counted memory cgroup, and 17,000 take
    45 ms: so it gets `FIRST_TURN_NS` in the turn of its request, which is all that the usual node needs, and `TURN_NS`
    of the turns that follow. One at a time; ``between`` is called during it, so that crossings do not wait.
    """

    gauge: Gauge
    registry: Registry
    outbox: Outbox
    between: Callable[[], object]

    def __post_init__(self) -> None:
        self._waiting: list[Callable[[], object]] = []  # for the one that runs
        self._later: list[Callable[[], object]] = []  # for the one after it
        self._pods: list[PodEntry] = []  # it goes over these
        self._reported: set[str] = set()  # uids of pods that are not counted
        self._next_ns = 0  # when to go on, while one runs

    def due_ns(self) -> int | None:
        """When to go on; None while none runs."""
        return self._next_ns if self.gauge.sweeping else None

    def ask(self, then: Callable[[], object] = bool) -> bool:
        """Make every counter exact, rank by them, and do ``then``; whether that is done, or follows in later turns.

        What came since the one that runs has begun is counted by the next one.
        """
        if then not in self._later:
            self._later.append(then)
        if self.gauge.sweeping:
            return False
        self._begin()
        return self.go_on(FIRST_TURN_NS)

    def _begin(self) -> None:
        self._waiting, self._later, self._pods = self._later, [], list(self.registry)
        self.gauge.begin_sweep()

    def go_on(self, budget_ns: int = TURN_NS) -> bool:
        """Give it so much time; whether it is complete, and what waited for it was done."""
        if not self.gauge.go_on_sweeping(budget_ns, self.between):
            # While all sums are known, it takes a fifth of the time.
            self._next_ns = time.monotonic_ns() + (0 if self.gauge.unknown else 4 * budget_ns)
            return False
        self.registry.refresh()
        self._report_uncounted()
        done = self._waiting
        if self._later:
            self._next_ns = 0
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


HOUSEKEEPING_NS = 1_000_000_000


@dataclass(eq=False)
class Housekeeping:
    """Arms by headroom, keeps limits, thresholds and counters right, collects garbage. ``kills`` reads OOM kills."""

    gauge: Gauge
    registry: Registry
    evictor: Evictor
    decider: Decider
    records: Records
    kills: EventSource
    sweeps: Sweeps
    next_ns: int = 0

    def due_ns(self) -> int:
        return self.next_ns

    def soon(self, now_ns: int) -> None:
        """Run again in a second at the latest: a killed pod that does not go is looked after here."""
        self.next_ns = min(self.next_ns, now_ns + HOUSEKEEPING_NS)

    def run(self, now_ns: int) -> None:
        """Once a second; in `SWEEP_NS` if detached, no pod is stuck and no domain is a cgroup."""
        gauge = self.gauge
        waiting = gauge.arming.armed or self.evictor.stuck
        quiet = not waiting and all(w.machine for w in gauge.watches)
        self.next_ns = now_ns + (SWEEP_NS if quiet else HOUSEKEEPING_NS)
        self.kills.look_after()
        self.evictor.follow_stuck(now_ns)  # also where what was evicted since has made it quiet
        if gauge.limits_changed():
            self.watch_thresholds()
            self.look(now_ns)
            self.decider.run_pass()
        if not gauge.arming.armed:
            return
        if now_ns >= gauge.sweep_due_ns:
            self.sweeps.ask(self._on_exact_counters)
        else:
            gauge.reread()
            self.registry.refresh()
            self._on_exact_counters()

    def _on_exact_counters(self) -> None:
        """Once a second while attached."""
        if self.decider.pressed:
            gc.collect(0)
        else:
            self.look(time.monotonic_ns())
            self.decider.run_pass()  # whatever the kernel may have missed
            gc.collect(1)
        self.decider.prepare()

    # looks

    def look_due_ns(self) -> int | None:
        """At once where a capacity has changed: the ceilings in the kernel are those of the old one."""
        arming = self.gauge.arming
        if not arming.looks:
            return None
        return 0 if self.gauge.recapped else arming.next_look_ns

    def look(self, now_ns: int) -> None:
        """Attach or detach the fine-grained programs by headroom."""
        gauge, decider = self.gauge, self.decider
        changed = gauge.look(now_ns, self.sweeps.ask)
        if gauge.recapped:
            gauge.arm_thresholds()
            decider.run_pass()
            decider.changed = True
        if not changed:
            met = gauge.arming.rereads and gauge.headroom < 0
            if gauge.crossed or (met and not decider.pressed):
                decider.run_pass()  # what a hook on charges cannot see
            return
        decider.changed = True
        self.next_ns = now_ns
        if gauge.arming.armed:
            self.sweeps.ask(self._armed_counted)
        else:
            decider.figures.note(now_ns)  # what it has sampled is of the past from now on

    def _armed_counted(self) -> None:
        """A sweep has been over everything since the programs were attached."""
        self.decider.run_pass()
        self.decider.prepare()

    # pods

    def count_pods(self, *, again: bool = False) -> None:
        """Pods came or went: a new domain's sums are complete after a sweep. ``again``: pods that had been sent before,
        and could not be watched.
        """
        self.sweeps.ask(self.decider.prepare if again else self._pods_counted)

    def _pods_counted(self) -> None:
        """A sweep has been over all pods that were sent."""
        self.kills.pods_came()
        if not self.decider.may_act:
            self.decider.begin(self.records.pulled_ns)
            self.decider.evict_over_limit()
        self.decider.prepare()
        self.decider.changed = True

    # thresholds

    def find_kubepods(self, pod: PodSeen) -> None:
        """Watch kubepods from now on, if this pod shows where it is."""
        if "kubepods" in pod.cgroup and self.gauge.find_kubepods((Path(pod.cgroup), pod.uid)):
            self.watch_thresholds()

    def watch_thresholds(self) -> None:
        """Compare thresholds in the kernel, once the sums they are compared with are complete."""
        self.registry.protected = {w.cgroup_id for w in self.gauge.watches}
        self.sweeps.ask(self._thresholds_counted)

    def _thresholds_counted(self) -> None:
        self.gauge.arm_thresholds()
        self.records.watch({w.index: w for w in self.gauge.watches})
