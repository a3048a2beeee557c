"""The hot loop's table of timers, in the order of work: what may kill first, what is only reported last."""

from __future__ import annotations

from monitor.hot.busy_poll import BusyPoll
from monitor.hot.housekeeping import Housekeeping
from monitor.hot.parts import Parts
from monitor.hot.pod_sync import PodSync
from monitor.hot.report import Report
from monitor.hot.sd_notify import Service
from monitor.hot.side_restarts import SideRestarts
from monitor.hot.timers import Timer, Timers


class Schedule:
    """Makes the table. What stands here is what one timer does with more than one object."""

    def __init__(
        self,
        parts: Parts,
        housekeeping: Housekeeping,
        pods: PodSync,
        report: Report,
        restarts: SideRestarts,
        service: Service,
    ) -> None:
        self._side = parts.side
        self._gauge = parts.gauge
        self._patience = parts.patience
        self._evictor = parts.evictor
        self._decider = parts.decider
        self._records = parts.records
        self._guard = parts.guard
        self._housekeeping = housekeeping
        decider = parts.decider
        busy_poll = BusyPoll(parts.gauge, decider, parts.records.read_events, housekeeping.look)
        self.timers = Timers(
            (
                Timer("watchdog", service.due_ns, service.alive),
                Timer("rings", parts.records.due_ns, parts.records.go_on),
                Timer("rank", self._rank_due_ns, self._rank),
                Timer("reread", decider.reread_due_ns, lambda _: decider.reread()),
                Timer("eviction", parts.evictor.due_ns, self._follow_eviction),
                Timer("return", parts.patience.due_ns, lambda _: decider.follow_return()),
                Timer("pass", decider.pass_due_ns, lambda _: decider.run_pass()),
                Timer("sweep", parts.sweeps.due_ns, lambda _: parts.sweeps.go_on()),
                Timer("look", housekeeping.look_due_ns, housekeeping.look),
                Timer("retry", pods.retry_due_ns, pods.retry),
                Timer("housekeeping", housekeeping.due_ns, housekeeping.run),
                Timer("report", report.due_ns, report.run),
                Timer("side", restarts.due_ns, restarts.go_on),
                Timer("busy-poll", busy_poll.due_ns, busy_poll.spin),
            )
        )

    def _rank_due_ns(self) -> int | None:
        return 0 if self._decider.moved or self._decider.stirred else None

    def _rank(self, _: int) -> None:
        """Records were read: rank the pods that moved, have the next victim ready."""
        decider, guarded = self._decider, self._guard
        if not decider.moved:
            decider.prepare()
            return
        guarded(decider.rank_moved)
        guarded(decider.prepare)
        self._patience.hasten()
        decider.changed = True
        if decider.braked is not None:
            guarded(decider.run_pass)  # what grows may be in a pod now

    def _follow_eviction(self, now_ns: int) -> None:
        if self._decider.follow(now_ns, self._side.pid):
            self._records.pod_went()
            if self._evictor.stuck:
                self._housekeeping.soon(now_ns)
            self._gauge.arming.next_look_ns = now_ns  # what was met may be met anew
