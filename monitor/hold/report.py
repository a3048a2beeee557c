"""A held pod, and the reports of it to the helper."""

from __future__ import annotations

import time
from dataclasses import dataclass

from monitor.link.messages import PodHeld, PodReleased, Rows
from monitor.policy import hold
from monitor.policy.hold import Pod, Rules, State
from monitor.policy.synchronize import DEFAULT_POD_GRACE_S
from monitor.sources.registry import PodEntry
from monitor.sources.watch import Watch

#: Most reports of one hold in so long: its brake may change at every sample, 200 times a second, and the channel to the
#: helper, which carries kills of other pods too, holds some thousand messages.
REPORTS, REPORTS_NS = 8, 1_000_000_000


@dataclass(slots=True)
class Hold:
    """One hold, from its first brake to its end. ``watch``: the domain that it is for."""

    id: int
    entry: PodEntry
    pod: Pod
    crossed_ns: int
    watch: Watch
    braked_ns: int = 0  # when what is in force was put in force
    brake: str = ""
    cap: int = 0
    decision: int = 0
    soft: bool = False  # it may run, below a memory.high of the helper's
    most: int = 0  # the most bytes charged to it
    asked: bool = False  # the helper has the request to let it run through its grace
    reported_ns: int = 0  # since when reports are counted
    reports: int = 0  # since then
    is_unreported: bool = False  # it has changed since the last
    unslowed: bool = False  # it runs, and the memory.high that the last helper set for that is undone

    def may_report(self, now_ns: int) -> bool:
        """Whether to report its state now; else its state of then is reported later, once."""
        if now_ns - self.reported_ns >= REPORTS_NS:
            self.reported_ns, self.reports = now_ns, 0
        self.reports += 1
        self.is_unreported = self.reports > REPORTS
        return not self.is_unreported

    @property
    def grace_ns(self) -> int:
        """For how long it may run when another program evicts it."""
        grace_s = self.entry.grace_s
        return (DEFAULT_POD_GRACE_S if grace_s is None else grace_s) * 1_000_000_000

    def held(self, rules: Rules, state: State, available: int, order: Rows, *, resent: bool) -> PodHeld:
        """The report that it is held, and how. ``available``: bytes of its domain; ``order``: the first candidates."""
        watch, pod = self.watch, self.pod
        left = state.left.get(watch.signal, watch.hard_line)
        return PodHeld(
            hold=self.id,
            decision=self.decision,
            pod=pod.uid,
            pod_name=self.entry.title,
            ts_ns=self.braked_ns,
            crossed_ns=self.crossed_ns or None,
            brake=self.brake,
            cap=self.cap,
            usage=pod.usage,
            signal=watch.signal,
            domain=watch.name,
            hard=True,  # only hard thresholds hold
            quantity=watch.hard_line,
            available=available,
            second_line=hold.second_line(left) if rules.kills else 0,
            reason=pod.reason,
            until_ns=pod.since_ns + rules.limit_ns,
            step=state.step,
            resent=resent,
            order=order,
            since_ns=pod.since_ns,
        )

    def ended(self, why: str, usage: int, available: int, other: str) -> PodReleased:
        """The report of its end. ``usage``: bytes charged to it now; ``other``: the pod that the kubelet evicted."""
        now = time.monotonic_ns()
        return PodReleased(
            hold=self.id,
            pod=self.pod.uid,
            pod_name=self.entry.title,
            ts_ns=now,
            held_ns=now - self.pod.since_ns,
            why=why,
            grew=max(self.most, usage) - self.pod.usage,
            usage=usage,
            available=available,
            instead=other if why == hold.OTHER_POD else None,
        )
