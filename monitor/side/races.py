"""Everything the helper does about races: the event builder, the judge, stalls, the alerts, the kernel's log.

One object with a descriptor and a deadline for the helper's main loop; what can block lives in threads behind it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monitor.errors import MonitorError
from monitor.kernel.kmsg import Kmsg
from monitor.link.messages import (
    Decision,
    Gone,
    Message,
    RaceMessage,
    Record,
    SideMessage,
    Stored,
)
from monitor.pods.spec import SERVICES
from monitor.race.badness import Victim, evictable
from monitor.race.events import KubeletEvicted
from monitor.side.alerts.rules import alert_for_status, alerts_for
from monitor.side.alerts.send import AlertSender
from monitor.side.event_builder import EventBuilder
from monitor.side.export.log import Log
from monitor.side.holds import Holds
from monitor.side.judge import Judge
from monitor.side.managed_oom import Units
from monitor.side.node_state import Figures, Inbox, NodeState, OtherEviction
from monitor.side.stalls import Stalls
from monitor.side.victims import eviction_order, kernels_victim
from monitor.side.worker import Worker

if TYPE_CHECKING:
    from monitor.side.cluster.reports import Report
    from monitor.side.recording import Recorder

#: Between two looks at all processes, seconds: some 60 us each.
_LOOK_S = 5.0


@dataclass(eq=False)
class Races:
    node: NodeState
    figures: Figures
    holds: Holds
    inbox: Inbox
    log: Log
    send: Callable[[SideMessage], bool]

    def __post_init__(self) -> None:
        config, log = self.node.config, self.log
        self._node_name = config.node_name or os.uname().nodename  # as the chart's PodMonitor labels it
        self.alerts = AlertSender(config.alertmanagers, log)
        self.judge = Judge(config, log, self.on_incident)
        self._kmsg: Kmsg | None = None
        try:
            self._kmsg = Kmsg(self.node.hierarchy)
        except MonitorError as error:
            log.warning(str(error))
        self.recorder = self._open_recorder() if config.record else None
        about = self.node, self.figures, self.holds, log
        self.event_builder = EventBuilder(*about, self.judge.submit, self.recorder)
        units = Units(log) if config.pods == SERVICES else None
        self.stalls = Stalls(self.node, self.figures, log, self.inbox.report, self.send, self._order, units=units)
        self._victims, self._look_due_s = Worker("victims", 1), 0.0
        self._kernels: tuple[Victim | None, bool] = None, False
        self._looked_s = -math.inf
        self._received = self._stored = 0  # of `RaceMessage`; those of them that are judged and stored

    def _open_recorder(self) -> Recorder:
        from monitor.side.recording import Recorder, header

        config = self.node.config
        head = header(config, self.node.hierarchy.version, self.judge.offset_ns)
        return Recorder(Path(config.record), head, self.log, lambda: self.send(Record()))

    def _order(self) -> list[str]:
        """Uids of the pods that may be evicted, by the figures of this moment."""
        return [one.uid for one in evictable(eviction_order(self.node, self.figures))]

    def kernels_victim(self, *, waits: bool = False) -> tuple[Victim | None, bool]:
        """The process that the kernel would kill, and whether the policy would evict another pod; (None, False) while
        no threshold is near, or not known. ``waits``: look in this call (it walks /proc), if that is due. Otherwise it
        is of a look that an earlier call asked for.
        """
        now_s = time.monotonic()
        if now_s >= self._look_due_s:
            self._look_due_s = now_s + _LOOK_S
            if waits:
                self._look_for_victim()
            else:
                self._victims.submit(self._look_for_victim)
        is_of_now = self.figures.stats.get("armed") and now_s - self._looked_s < 2 * _LOOK_S
        return self._kernels if is_of_now else (None, False)

    def _look_for_victim(self) -> None:
        found: tuple[Victim | None, bool] = None, False
        with suppress(MonitorError, OSError, LookupError, ValueError):  # of processes that go
            if self.figures.stats.get("armed"):
                found = kernels_victim(self.node, self.figures)
        self._kernels, self._looked_s = found, time.monotonic()

    def fileno(self) -> int | None:
        """The kernel's log; None where it cannot be read."""
        return self._kmsg.fileno() if self._kmsg is not None else None

    def read_log(self) -> None:
        """Read the kernel's log. After an error it is not read any more."""
        assert self._kmsg is not None
        try:
            for kill in filter(None, self._kmsg.kills()):
                self.event_builder.logged(kill)
        except MonitorError as error:
            self.log.error(str(error))
            self._kmsg = None

    def handle(self, message: Message) -> None:
        if self.recorder is not None:
            self.recorder.handle(message)
        self._received += isinstance(message, RaceMessage)
        self._take(message)

    def _take(self, about: Message | OtherEviction) -> None:
        """What the event builder will feed to the reducer, from the hot process or from a thread of this one."""
        if isinstance(about, Gone | KubeletEvicted):
            self.stalls.acted(time.monotonic_ns())
        elif isinstance(about, Decision) and not about.observed:
            self.stalls.acted(time.monotonic_ns(), about.pod)
        self.event_builder.handle(about)

    def due_s(self) -> float:
        due_s = 0.0 if self.inbox.qsize() else self.event_builder.due_s()
        return due_s if self.recorder is None else min(due_s, self.recorder.due_s())

    def turn(self) -> None:
        if self.recorder is not None:
            self.recorder.turn()
        while self.inbox.qsize():
            self._take(self.inbox.get_nowait())
        self.event_builder.turn()
        if self._received != self._stored and not self.event_builder.open and self.judge.idle:
            received = self._received
            if self.send(Stored(received)):
                self._stored = received

    def close(self, timeout_s: float, incidents_s: float) -> None:
        """Judge what is open, store and send what waits: ``timeout_s`` seconds each, ``incidents_s`` for incidents."""
        self.stalls.relaxing.close(timeout_s)
        self.event_builder.end()
        if self.recorder is not None:
            self.recorder.close(timeout_s)
        self.judge.close(incidents_s)
        self.alerts.close(timeout_s)

    def on_incident(self, incident: dict[str, Any]) -> None:
        for alert in alerts_for(incident, self._node_name):
            self.alerts.fire(alert)

    def status_not_taken(self, of: Report, outcome: str, text: str) -> None:
        """The API server, or the kubelet, did not take the status of an evicted pod. From any thread."""
        killed = time.time() - (time.monotonic() - of.killed)
        self.alerts.fire(alert_for_status(self._node_name, of.namespace, of.name, outcome, text, killed))
