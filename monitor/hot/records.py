"""What the readers of a rung's events have in common: crossings, and the last steps for the record of an incident."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from monitor.hot.decide import Decider
from monitor.hot.loop import Loop
from monitor.kernel.domains import Reading
from monitor.kernel.wire import PAGE
from monitor.link.messages import Crossing, Flight
from monitor.link.outbox import Outbox
from monitor.sources.gauge import Gauge
from monitor.sources.watch import Watch

#: Steps of 1 MiB kept: the last 4 GiB that anybody took or gave back. One append (60 ns) is all that each costs.
_MOST = 4096
#: Samples in one message (some 60 bytes each; a packet holds 128 KiB).
_CHUNK = 1000
#: (time ns, cgroup id, usage, inactive file, active file), in pages
Step = tuple[int, int, int, int, int]


class Records:
    """Reads the events of a rung, and hands them to the decider. ``watches``, by domain index, are the domains with
    thresholds; `watch` sets them. Methods that do nothing are for hooks that have something to do then.
    """

    def __init__(self, decider: Decider, outbox: Outbox) -> None:
        self.watches: Mapping[int, Watch] = {}
        self.pulled_ns = 0  # when the kernel pulled the trigger while no daemon ran to hear of it; 0: it did not
        self._decider = decider
        self._stats, self._send, self._log = outbox.stats, outbox.send, outbox.log
        self._steps_kept: deque[Step] = deque(maxlen=_MOST)
        self._keep_step = self._steps_kept.append

    def open(self, loop: Loop) -> None:
        """Have the descriptors in the epoll of the hot loop."""

    def read_events(self) -> int:
        """Read crossings and steps now; how many there were."""
        return 0

    def watch(self, watches: Mapping[int, Watch]) -> None:
        self.watches = watches

    def due_ns(self) -> int | None:
        """When `go_on` is due."""
        return None

    def go_on(self, now_ns: int) -> None:
        """Go on where the budget of a turn ended."""

    def look_after(self) -> None:
        """Once a second."""

    def pods_came(self) -> None:
        """A sweep has been over new pods."""

    def pod_went(self) -> None:
        """An eviction is over."""

    def send_flight(self) -> None:
        """Send the helper the steps around what happened, if anything did, that it was not sent yet."""
        if not self._decider.eventful:
            return
        self._decider.eventful = self._decider.pressed
        steps = list(self._steps_kept)
        self._steps_kept.clear()
        for at in range(0, len(steps), _CHUNK):
            part = steps[at : at + _CHUNK]
            self._send(Flight([(ts, cgroup, *(pages * PAGE for pages in sizes)) for ts, cgroup, *sizes in part]))

    def _send_crossing(self, watch: Watch, which: int, reading: Reading, ts_ns: int, seen_ns: int) -> None:
        """A threshold was crossed; sent after what was decided about it."""
        if which >= len(watch.thresholds):
            return  # the line of holds above a threshold (`monitor.sources.watch.arm_thresholds`)
        threshold = watch.thresholds[which]
        self._send(
            Crossing(
                ts_ns=ts_ns,
                seen_ns=seen_ns,
                domain=watch.name,
                signal=threshold.signal,
                hard=threshold.hard,
                quantity=watch.lines[which],
                capacity=watch.capacity,
                usage=reading.usage,
                working_set=reading.working_set,
                available=watch.capacity - reading.used,
            )
        )


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
    """Reads the ring without going to sleep, while pods move and a threshold is near, on a budget. A CPU of a virtual
    machine that has gone idle may need milliseconds to come back (0.7 to 5 ms in one of a hundred crossings with a CPU
    to spare, measured), in which a process at full speed takes 1 MiB. ``look`` is called when the arming is due.
    """

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
