"""What the readers of a rung's events have in common: crossings, and the last steps for the record of an incident."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from monitor.hot.decide import Decider
from monitor.hot.loop import Loop
from monitor.kernel.domains import Reading
from monitor.kernel.wire import PAGE
from monitor.link.messages import Crossing, Flight
from monitor.link.outbox import Outbox
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
        self._stats, self._send = outbox.stats, outbox.send
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
