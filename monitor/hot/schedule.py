"""The hot loop's table of timers, in the order of work: what may kill first, what is only reported last."""

from __future__ import annotations

from monitor.hot.busy_poll import BusyPoll
from monitor.hot.housekeeping import Housekeeping
from monitor.hot.loop import Timer, Timers
from monitor.hot.parts import Parts
from monitor.hot.pod_sync import PodSync
from monitor.hot.report import Report
from monitor.hot.sd_notify import Service
from monitor.hot.side_restarts import SideRestarts


def timer_table(
    parts: Parts,
    housekeeping: Housekeeping,
    pods: PodSync,
    report: Report,
    restarts: SideRestarts,
    service: Service,
) -> Timers:
    """The table. What one timer does with more than one object stands here."""
    decider, evictor, patience, records = parts.decider, parts.evictor, parts.patience, parts.records
    guarded = parts.guard

    def rank_due_ns() -> int | None:
        return 0 if decider.pods.moved or decider.stirred else None

    def rank(now_ns: int) -> None:
        """Records were read: rank the pods that moved, have the next victim ready."""
        if not decider.pods.moved:
            decider.prepare()
            return
        guarded(decider.rank_moved)
        if decider.holds is not None and decider.may_act:
            guarded(decider.holds.look_uncrossed, now_ns)
        guarded(decider.prepare)
        patience.hasten()
        decider.changed = True
        if decider.braked is not None:
            guarded(decider.run_pass)  # what grows may be in a pod now

    def follow_eviction(now_ns: int) -> None:
        if decider.follow(now_ns, parts.side.pid):
            records.pod_went()
            if evictor.stuck:
                housekeeping.soon(now_ns)
            parts.gauge.arming.next_look_ns = now_ns  # what was met may be met anew

    busy_poll = BusyPoll(parts.gauge, decider, records.read_events, housekeeping.look)
    return Timers(
        (
            Timer("watchdog", service.due_ns, service.alive),
            Timer("rings", records.due_ns, records.go_on),
            *_of_holds(parts),
            Timer("rank", rank_due_ns, rank),
            Timer("sample", decider.note_due_ns, decider.note),
            Timer("reread", lambda: decider.pods.reread_ns, lambda _: decider.reread()),
            Timer("eviction", evictor.due_ns, follow_eviction),
            Timer("return", patience.due_ns, lambda _: decider.follow_return()),
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


def _of_holds(parts: Parts) -> tuple[Timer, ...]:
    """The timer of pods that are held, where any may be: before pods are ranked, so that who moves is looked at."""
    decider, holds = parts.decider, parts.decider.holds
    if holds is None:
        return ()

    def due_ns() -> int | None:
        due = holds.due_ns()
        return 0 if due is not None and (decider.pods.moved or decider.stirred) else due

    def follow(now_ns: int) -> None:
        if holds.follow(now_ns):
            parts.guard(decider.run_pass)  # who is held is in the way of its victim no more

    return (
        Timer("hold", due_ns, follow),
        Timer("released", holds.released_due_ns, holds.go_on_released),
        Timer("left-holds", holds.left.due_ns, holds.left.release),
    )
