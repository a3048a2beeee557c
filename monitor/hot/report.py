"""What the helper is sent of the state of the hot process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from monitor.hot.decide import Decider
from monitor.hot.loop import Guard
from monitor.hot.records import Records
from monitor.kernel.troubles import TROUBLES
from monitor.link import messages
from monitor.link.outbox import Outbox
from monitor.policy.thresholds import Threshold
from monitor.sources.gauge import Gauge
from monitor.sources.registry import Registry
from monitor.sources.watch import Watch

#: From one `state` message to the next at least.
PUBLISH_NS = 250_000_000


@dataclass(eq=False)
class Report:
    """Sends what failed, and at most four times a second how things are."""

    gauge: Gauge
    registry: Registry
    decider: Decider
    records: Records
    guard: Guard
    outbox: Outbox
    published_ns: int = 0

    def due_ns(self) -> int | None:
        if TROUBLES.any:
            return 0
        if self.decider.changed or self.decider.eventful:
            return self.published_ns + PUBLISH_NS
        return None

    def run(self, now_ns: int) -> None:
        by_uid, log = self.registry.by_uid, self.outbox.log
        for trouble in self.guard.to_report(now_ns):
            entry = by_uid.get(trouble.whose)
            pod = {"pod": entry.title if entry is not None else trouble.whose} if trouble.whose else {}
            log("error", "a system call failed: going on without it", **pod, **trouble.fields)
        if (self.decider.changed or self.decider.eventful) and now_ns >= self.published_ns + PUBLISH_NS:
            self.records.send_flight()
            self._publish(now_ns)

    def _publish(self, now_ns: int) -> None:
        decider = self.decider
        decider.changed = False
        self.published_ns = now_ns
        self.outbox.stats.set("published_ns", now_ns)
        outcome = decider.outcome
        first = self.registry.first()
        self.outbox.send(
            messages.State(
                conditions=sorted(outcome.conditions) if outcome else [],
                met=_named(outcome.observed if outcome else ()),
                compared=_named(decider.compared.met),
                armed=self.gauge.arming.armed,
                victim=first.uid if first else None,
                observation={w.name: described(self.gauge, w) for w in self.gauge.watches if not w.formula},
                braked=decider.suspension.state,
                ready=decider.may_act,
            )
        )


def _named(thresholds: Iterable[Threshold]) -> list[dict[str, str]]:
    return [{"signal": t.signal, "kind": "hard" if t.hard else "soft"} for t in thresholds]


def described(gauge: Gauge, watch: Watch) -> dict[str, int]:
    """A domain: bytes, with what is available by each signal that has thresholds."""
    others = [w for w in gauge.watches if w.name == watch.name and w.formula and gauge.known(w)]
    return {
        "available": watch.capacity - gauge.table.reading(watch.index).working_set,
        "capacity": watch.capacity,
        **{w.signal.partition(".")[2]: w.capacity - gauge.table.reading(w.index).used for w in others},
    }
