"""What the helper is sent of the state of the hot process."""

from __future__ import annotations

from collections.abc import Callable

from monitor.hot.decide import Decider
from monitor.hot.loop import Guard
from monitor.hot.records import Records
from monitor.kernel.troubles import TROUBLES
from monitor.link import messages
from monitor.link.outbox import Outbox
from monitor.sources.gauge import Gauge
from monitor.sources.registry import Registry
from monitor.sources.watch import Watch

#: From one `state` message to the next at least.
PUBLISH_NS = 250_000_000


class Report:
    """Sends what failed, and at most four times a second how things are. ``ready`` is called once, ``complain`` before
    each report of the state.
    """

    def __init__(
        self,
        gauge: Gauge,
        registry: Registry,
        decider: Decider,
        records: Records,
        guard: Guard,
        outbox: Outbox,
        ready: Callable[[int], None],
        complain: Callable[[], None],
    ) -> None:
        self._gauge = gauge
        self._registry = registry
        self._decider = decider
        self._records = records
        self._guard = guard
        self._outbox = outbox
        self._ready = ready
        self._complain = complain
        self.is_ready = False  # all pods are counted, and decisions can be made: True from some moment on
        self._published_ns = 0

    def due_ns(self) -> int | None:
        if TROUBLES.any or (self._decider.may_act and not self.is_ready):
            return 0
        if self._decider.changed or self._records.eventful:
            return self._published_ns + PUBLISH_NS
        return None

    def run(self, now_ns: int) -> None:
        """What the helper should know, when it is time."""
        if self._decider.may_act and not self.is_ready:
            self.is_ready = self._decider.changed = True
            self._published_ns = 0  # published at once: others wait for it
            self._ready(now_ns)
        by_uid, log = self._registry.by_uid, self._outbox.log
        for trouble in self._guard.to_report(now_ns):
            entry = by_uid.get(trouble.whose)
            pod = {"pod": entry.title if entry is not None else trouble.whose} if trouble.whose else {}
            log("error", "a system call failed: going on without it", **pod, **trouble.fields)
        if (self._decider.changed or self._records.eventful) and now_ns >= self._published_ns + PUBLISH_NS:
            self._records.send_flight()
            self._complain()
            self._publish(now_ns)

    def _publish(self, now_ns: int) -> None:
        """Send the helper the state."""
        decider = self._decider
        decider.changed = False
        self._published_ns = now_ns
        self._outbox.stats.set("published_ns", now_ns)
        outcome = decider.outcome
        first = self._registry.first()
        self._outbox.send(
            messages.State(
                conditions=sorted(outcome.conditions) if outcome else [],
                met=[
                    {"signal": t.signal, "kind": "hard" if t.hard else "soft"}
                    for t in (outcome.observed if outcome else ())
                ],
                compared=[{"signal": t.signal, "kind": "hard" if t.hard else "soft"} for t in decider.compared.met],
                armed=self._gauge.arming.armed,
                victim=first.uid if first else None,
                observation={w.name: described(self._gauge, w) for w in self._gauge.watches if not w.formula},
                braked=decider.braked,
                ready=self.is_ready,
            )
        )


def described(gauge: Gauge, watch: Watch) -> dict[str, int]:
    """A domain: bytes, with what is available by each signal that has thresholds."""
    others = [w for w in gauge.watches if w.name == watch.name and w.formula and gauge.known(w)]
    return {
        "available": watch.capacity - gauge.table.reading(watch.index).working_set,
        "capacity": watch.capacity,
        **{w.signal.partition(".")[2]: w.capacity - gauge.table.reading(w.index).used for w in others},
    }
