"""Reading the ring without going to sleep, while pods move and a threshold is near.

A CPU of a virtual machine that has gone idle may need milliseconds to come back: 0.7 to 5 ms in one of a hundred
crossings with a CPU to spare, mostly below 1 ms with all of them busy (measured). A process at full speed takes 1 MiB
in that time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from monitor.hot.decide import Decider
from monitor.sources.gauge import Gauge

#: How near a threshold is near: 50 ms for one process that takes 4K pages as fast as it can.
NEAR_BYTES = 64 << 20
#: A pod that has not moved by a step for this long rests.
REST_NS = 3_000_000
#: At most this part of the time (1/20), saved up for 50 ms at most: a node that lives at its threshold must not cost a
#: CPU of its own.
SHARE = 20
SAVED_NS = 50_000_000


@dataclass(eq=False)
class BusyPoll:
    """Reads the ring in a loop now and then, on a budget. ``look`` is called when the arming is due."""

    gauge: Gauge
    decider: Decider
    consume: Callable[[], object]
    look: Callable[[int], object]
    now: Callable[[], int] = time.monotonic_ns

    def __post_init__(self) -> None:
        self._steps = self._credit_ns = self._ended_ns = 0

    def due_ns(self) -> int | None:
        """At once if a pod has moved since the last time."""
        return None if self.decider.steps == self._steps else 0

    def spin(self, _: int) -> None:
        """Read the ring while a threshold is near, until the pods rest or the budget is spent.

        Ends at once when something was decided: from then on there is more to do than reading the ring.
        """
        now = start = self.now()
        self._credit_ns = min(SAVED_NS, self._credit_ns + (now - self._ended_ns) // SHARE)
        end = now + REST_NS
        while now < min(end, start + self._credit_ns) and self.decider.is_calm and self._is_near():
            self._steps = self.decider.steps
            self.consume()
            arming = self.gauge.arming
            if arming.looks and now >= arming.next_look_ns:  # what no record reports does not wait
                self.look(now)
            now = self.now()
            if self.decider.steps != self._steps:
                end = now + REST_NS
        self._steps = self.decider.steps
        self._ended_ns = now
        self._credit_ns -= now - start

    def _is_near(self) -> bool:
        room = self.gauge.table.room
        return any(room(w.index) < NEAR_BYTES for w in self.gauge.watches if w.thresholds and not w.compared)
