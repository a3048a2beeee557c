"""What the helper is sent of the state of the hot process."""

from __future__ import annotations

from monitor.hot.decide import Decider
from monitor.hot.loop import Guard
from monitor.hot.records import Records
from monitor.hot.sd_notify import Service
from monitor.hot.side_restarts import SideRestarts
from monitor.kernel.sched import Protection
from monitor.kernel.troubles import TROUBLES
from monitor.link import messages
from monitor.link.outbox import Outbox
from monitor.settings.config import RunConfig
from monitor.sources.gauge import Gauge
from monitor.sources.registry import Registry
from monitor.sources.watch import Watch

#: From one `state` message to the next at least.
PUBLISH_NS = 250_000_000


class Report:
    """Sends that it is ready, what failed, and at most four times a second how things are."""

    def __init__(
        self,
        config: RunConfig,
        gauge: Gauge,
        registry: Registry,
        decider: Decider,
        records: Records,
        guard: Guard,
        service: Service,
        restarts: SideRestarts,
        outbox: Outbox,
    ) -> None:
        self._config = config
        self._gauge = gauge
        self._registry = registry
        self._decider = decider
        self._records = records
        self._guard = guard
        self._service = service
        self._restarts = restarts
        self._outbox = outbox
        self.is_ready = False  # all pods are counted, and decisions can be made: True from some moment on
        self._published_ns = 0
        self.protection = Protection("default", False, 0)

    def due_ns(self) -> int | None:
        if TROUBLES.any or (self._decider.may_act and not self.is_ready):
            return 0
        if self._decider.changed or self._records.eventful:
            return self._published_ns + PUBLISH_NS
        return None

    def run(self, now_ns: int) -> None:
        """What the helper should know, when it is time."""
        if self._decider.may_act and not self.is_ready:
            self._ready(now_ns)
        by_uid, log = self._registry.by_uid, self._outbox.log
        for trouble in self._guard.to_report(now_ns):
            entry = by_uid.get(trouble.whose)
            pod = {"pod": entry.title if entry is not None else trouble.whose} if trouble.whose else {}
            log("error", "a system call failed: going on without it", **pod, **trouble.fields)
        if (self._decider.changed or self._records.eventful) and now_ns >= self._published_ns + PUBLISH_NS:
            self._records.send_flight()
            self._restarts.complain()
            self._publish(now_ns)

    def _ready(self, now_ns: int) -> None:
        protection = self.protection
        self.is_ready = True
        self._decider.changed = True
        self._published_ns = 0  # published at once: others wait for it
        self._outbox.stats.set("ready_ns", now_ns)
        self._service.ready(f"{len(self._registry)} pods, hooks {self._config.rung}")
        self._outbox.log(
            "info",
            "ready",
            ready_ns=now_ns,
            pods=len(self._registry),
            armed=self._gauge.arming.armed,
            scheduler=protection.scheduler,
            mlocked=protection.mlocked,
            oom_score_adj=protection.oom_score_adj,
        )

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
