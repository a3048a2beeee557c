"""What becomes of the records that programs or looks yield: crossings, steps, and the steps of an OOM kill."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from monitor.hot.decide import Decider
from monitor.kernel.domains import Reading
from monitor.kernel.wire import CROSS, PAGE, SIGNAL, STEP, Event, OomEvent
from monitor.link.messages import Crossing, Flight
from monitor.link.outbox import Outbox
from monitor.sources.events import EventSource
from monitor.sources.gauge import Gauge
from monitor.sources.registry import Registry
from monitor.sources.watch import Watch

#: Steps of 1 MiB kept: the last 4 GiB that anybody took or gave back. One append (60 ns) is all that each costs.
_MOST = 4096
#: Samples in one message (some 60 bytes each; a packet holds 128 KiB).
_CHUNK = 1000
#: (time ns, cgroup id, usage, inactive file, active file), in pages
Step = tuple[int, int, int, int, int]
#: Kinds that are counted under another name.
_COUNTED = {"mark": "oom", "left": "exit"}


class Records:
    """Takes the records of every source, and hands them to the decider. ``source``: of crossings and steps.
    ``is_exact``: it reports them as they happen.
    """

    def __init__(
        self, source: EventSource, gauge: Gauge, registry: Registry, decider: Decider, outbox: Outbox, *, is_exact: bool
    ) -> None:
        self.source = source
        self.pulled_ns = 0  # when the kernel pulled the trigger while no daemon ran to hear of it; 0: it did not
        self._watches: Mapping[int, Watch] = {}  # those with thresholds, by domain index
        self._table = gauge.table
        self._registry = registry
        self._decider = decider
        self._is_exact = is_exact
        self._stats, self._send = outbox.stats, outbox.send
        self._away = True  # what is read before this is cleared happened while no daemon ran
        self._steps_kept: deque[Step] = deque(maxlen=_MOST)
        self._keep_step = self._steps_kept.append

    def opened(self) -> None:
        """The sources are open: what comes now happens now."""
        self._away = False
        self._decider.pods.moved.clear()

    def watch(self, watches: Mapping[int, Watch]) -> None:
        self._watches = watches
        self.source.watch(watches)

    def event(self, record: Event) -> None:
        ts, cgroup_id, usage, inactive, active, _, result, kind, index, threshold, _, _, _ = record
        if kind == STEP:
            if self._table.cgroup_id(index) == cgroup_id:  # else the slot has another owner by now
                self._keep_step((ts, cgroup_id, usage, inactive, active))
                if index in self._watches:
                    self._decider.stirred = True
                else:
                    self._decider.step(index, max(0, usage - inactive) * PAGE)
            self._stats.add("records_step")
        elif kind in (CROSS, SIGNAL):
            watch = self._watches.get(index)
            if kind == SIGNAL and self._away and not result:
                self.pulled_ns = ts
            if watch is not None and watch.cgroup_id == cgroup_id:
                cache = max(0, inactive) * PAGE, max(0, active) * PAGE
                reading = Reading(usage * PAGE, *cache, watch.formula != 0)
                if kind == CROSS:
                    seen_ns = time.monotonic_ns()
                    self.source.catch_up()
                    self._decider.run_pass(ts, watch if self._is_exact else None)
                    self._decider.eventful = True
                    self._send_crossing(watch, threshold, reading, ts, seen_ns)
                else:
                    self._decider.on_kernel_signal(ts, watch, reading, os.strerror(-result) if result else "")
            self._stats.add("records_cross" if kind == CROSS else "records_signal")
        else:
            self._stats.add("records_bad")

    def oom(self, event: OomEvent) -> None:
        self._stats.add(f"records_{_COUNTED.get(event.kind, event.kind)}")
        pod = self._registry.owner_of_cgroup(event.victim_cgroup)
        if pod is None and event.domain is not None:  # deeper in a pod than its containers
            pod = self._registry.owner_of_cgroup(self._table.cgroup_id(event.domain))
        if event.kind == "left":
            if pod is not None and not self._away:
                self._decider.exited(pod, event.pgtables)
            return
        uid, title = (pod.uid, pod.title) if pod is not None else (None, None)
        event = event._replace(pod=uid, pod_name=title, while_away=self._away)
        if event.kind == "mark":
            self._stats.add("oom_exiting" if event.exiting else "oom_kills")
            event = event._replace(order=self._registry.leaders())
            self._decider.eventful = True
        known = event.kind != "reclaim" and not event.exiting and not event.source  # a counter is a second late
        if known and pod is not None and not self._away:
            size = event.anon_rss + event.file_rss + event.shmem_rss + event.pgtables  # a mark has it
            self._decider.died(pod, size)
        self._send(event)

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
