"""What the kernel reports: the records of the rings.

The hot process runs ahead of all ordinary processes (SCHED_FIFO), and the processes that it watches fill its rings. So
it reads a few records of each ring in a turn, crossings before and in between. Over time it spends no more than its
share: then it leaves all rings but that of crossings unread for a while. Budgets in the programs bound what waits
(bpf/memcg.h: afford()).
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from contextlib import closing

from monitor.kernel.pins import OOM, Counters, Pins, Ring
from monitor.kernel.wire import EVENT, OomEvent
from monitor.link.outbox import Outbox
from monitor.sources.events import Consumer, Epoll, EventSource

#: Records read at once, by ring: a turn stays below 0.3 ms (a step takes 4 us, a message for the helper 40),
#: because a crossing may come during it. More crossings than one for each threshold are never waiting.
_CROSSINGS, _STEPS, _OOMS, _KILLS, _RECLAIMS = 16, 64, 8, 8, 4
#: Steps read before a crossing is acted on, so that the order of eviction is that of this moment.
_STEPS_FIRST = 256
#: Rounds of reading what was written while no daemon ran, until nothing comes in between: in a storm something always
#: does, and then the numbers are off by that.
_ROUNDS = 4
_KINDS = ("cross", "step", "signal", "oom", "kill", "exit", "reclaim")
#: So long a ring that is ready and has no record to read is left alone.
_HALF_WRITTEN_NS = 100_000
#: At most this part of the time (1/5), saved up for 20 ms at most: 2,000 steps and their ranking, for example.
SHARE = 5
SAVED_NS = 20_000_000


class Ration:
    """Time that may be spent, as a debt that is paid back by waiting."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._credit_ns = SAVED_NS
        self._seen_ns = clock()
        self.until_ns = 0  # nothing is to be read before this; 0: read on

    def spend(self, began_ns: int) -> bool:
        """Time since ``began_ns`` was spent. False if that was more than there was: `until_ns` is when to go on."""
        now = self._clock()
        saved = min(SAVED_NS, self._credit_ns + (now - self._seen_ns) // SHARE)
        # Time without a CPU counts too, but is no reason to rest: 2 s of it were 10 s in which nothing was read.
        self._credit_ns = max(-SAVED_NS, saved - (now - began_ns))
        self._seen_ns = now
        if self._credit_ns < 0:
            self.until_ns = now - SHARE * self._credit_ns
        return not self.until_ns

    def is_over(self, now_ns: int) -> bool:
        """Whether a rest ends now; it is over then."""
        if not self.until_ns or now_ns < self.until_ns:
            return False
        self.until_ns = 0
        return True


class Rings(EventSource):
    """``counts``: whether the programs have the domains of this daemon; else an index of theirs is of one before."""

    def __init__(self, pins: Pins, outbox: Outbox, *, counts: bool) -> None:
        self._pins = pins
        self._counts = counts
        self._stats = outbox.stats
        self._ration = Ration()

    def open(self, epoll: Epoll, consumer: Consumer) -> None:
        """Also read what was written while no daemon ran."""
        super().open(epoll, consumer)
        pins, event = self._pins, consumer.event
        oom = consumer.oom if self._counts else lambda record: consumer.oom(record._replace(domain=None))
        # Held open, as programs and maps are: without their pins nothing stops while this process lives.
        self._links = [pins.fd(f"link_{name}") for name in OOM]
        self._events, self._steps = (Ring(pins, name, event, EVENT.unpack_from) for name in ("events", "steps"))
        self._ooms, self._kills, self._reclaims = (
            Ring(pins, name, oom, OomEvent.decode) for name in ("ooms", "kills", "reclaims")
        )
        self._budgets = {self._steps: _STEPS, self._ooms: _OOMS, self._kills: _KILLS, self._reclaims: _RECLAIMS}
        self._by_fd = {ring.fileno(): ring for ring in (self._events, *self._budgets)}
        self._take_over(pins)
        for fd in self._by_fd:
            epoll.register(fd, self.consume)

    def consume(self, fd: int) -> None:
        """Read from the ring of this descriptor, after the crossings, as much as one turn may."""
        ring = self._by_fd[fd]
        self._events.consume(_CROSSINGS)
        if ring is not self._events and not self._ration.until_ns and not self._read(ring):
            # The first of its records is half written: on Linux 7.0 and later the writer may be preempted, on this CPU
            # by this process. Without a rest epoll would report the ring again and again, and keep it from sleeping.
            self._ration.until_ns = time.monotonic_ns() + _HALF_WRITTEN_NS
            self._heed(0)

    def _read(self, ring: Ring) -> int:
        """A few records of a ring that has to stand back; how many."""
        if self._ration.until_ns:
            return 0
        began_ns = time.monotonic_ns()
        found = ring.consume(self._budgets[ring])
        if not self._ration.spend(began_ns):
            self._heed(0)
            self._stats.add("rests")
        return found

    def _heed(self, events: int) -> None:
        """What the epoll reports of the rings that have to stand back."""
        for ring in self._budgets:
            self._epoll.modify(ring.fileno(), events)

    def due_ns(self) -> int | None:
        """When `go_on` is due: at once where a budget ended before the records did."""
        if self._ration.until_ns:
            return 0 if self._events.more else self._ration.until_ns
        return 0 if self._events.more or any(ring.more for ring in self._budgets) else None

    def go_on(self, now_ns: int) -> None:
        """Go on where a budget ended, once in a turn: an epoll need not report it of what it was not asked about."""
        if self._events.more:
            self._events.consume(_CROSSINGS)
        if self._ration.is_over(now_ns):
            self._heed(select.EPOLLIN)
            for ring in self._budgets:
                ring.more = True
        for ring in self._budgets:
            if ring.more:
                self._events.consume(_CROSSINGS)
                self._read(ring)

    def read_events(self) -> None:
        self._events.consume(_CROSSINGS)
        self._steps.consume(_STEPS)

    def catch_up(self) -> None:
        self._steps.consume(_STEPS_FIRST)

    def look_after(self) -> None:
        """Once a second: read the kills that caused no wake-up."""
        self._kills.more = True

    def _take_over(self, pins: Pins) -> None:
        """Read what was written while no daemon ran, and note how much of it an earlier one had read."""
        with closing(Counters(pins)) as counters:
            for _ in range(_ROUNDS):
                self._events.consume()  # of domains of an earlier daemon: none is watched yet
                self._steps.consume()
                self._reclaims.consume()
                self._kills.consume()  # but every kill since then is to be reported
                self._ooms.consume()
                written = counters.now()
                if not self._ooms.consume() + self._kills.consume():  # nothing came between: the numbers are of once
                    break
        for kind in _KINDS:
            self._stats.set(f"base_{kind}", max(0, written[f"emitted_{kind}"] - self._stats.get(f"records_{kind}")))
