"""When the next pass of the policy is due although the kernel reports nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping

from monitor.policy.signals import Observation
from monitor.sources.gauge import Gauge

#: While a threshold is met the policy is run this often on fresh numbers (a pass costs 30 us: 0.1 % of a CPU).
TICK_NS = 25_000_000
#: A crossing less than 5 ms after the one before is not reported by the kernel (struct domain rearm_ns); so when
#: pressure ends, one more pass is run after that time.
RECHECK_NS = 10_000_000
FIRST_RECHECK_NS = 250_000


class PassTimer:
    """Times are in nanoseconds of CLOCK_MONOTONIC. `passed_ns`: the last pass."""

    def __init__(self) -> None:
        self.passed_ns = 0
        self._recheck_ns: int | None = None
        self._recheck_after = 0

    def due_ns(self, planned_ns: int | None, pressed: bool) -> int | None:
        """When a pass is due: at ``planned_ns`` (a grace or a transition period ends), or before; None: never."""
        due, recheck = planned_ns, self._recheck_ns
        if recheck is not None and (due is None or recheck < due):
            due = recheck
        if pressed:
            tick = self.passed_ns + TICK_NS
            if due is None or tick < due:
                due = tick
        return due

    def begin(self, now_ns: int) -> None:
        """A pass begins: what it was planned for is done."""
        self.passed_ns, self._recheck_ns = now_ns, None

    @property
    def clears_crossings(self) -> bool:
        """Whether this is no pass that follows a crossing closely."""
        return self._recheck_after in (0, RECHECK_NS)

    def plan(self, crossed_ns: int, pressed: bool, was_pressed: bool) -> None:
        """When nothing is met, and that may change unreported.

        A crossing that was over when it was read (a process freed a batch) is followed closely: the kernel will not
        report the next one for 5 ms, in which a process at full speed charges 6 MiB.
        """
        if pressed:
            self._recheck_after = 0
        elif crossed_ns:
            self._recheck_after = FIRST_RECHECK_NS
        elif was_pressed:
            self._recheck_after = RECHECK_NS
        elif self._recheck_after:
            self._recheck_after = min(2 * self._recheck_after, RECHECK_NS) if self._recheck_after < RECHECK_NS else 0
        if self._recheck_after:
            self._recheck_ns = self.passed_ns + self._recheck_after

    def clear_crossings(self, gauge: Gauge, observations: Mapping[str, Observation]) -> None:
        """What is not met any more may be crossed again, and is to be reported then.

        The kernel sees a working set only when something is charged, so it may have missed that it was below. (Not
        after a crossing: one that trembles at the line would be reported at every charge.)
        """
        for watch in gauge.watches:
            crossed = gauge.table.crossed(watch.index) if watch.thresholds else 0
            if not crossed or watch.signal not in observations:
                continue
            available = observations[watch.signal].available
            over = sum(1 << i for i, line in enumerate(watch.lines) if line <= available)
            if crossed & over:
                gauge.table.clear_crossings(watch.index, crossed & over)
                self._recheck_ns = time.monotonic_ns() + RECHECK_NS
