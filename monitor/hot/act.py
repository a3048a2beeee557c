"""Carries out a decision: signals the pod (enforce), then reports the decision; or only reports it (observe).

And SIGKILL at a crossing, before the pass of the policy that is sure to decide the same.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from monitor.hot.evictor import Evictor, SentKill
from monitor.hot.suspension import UNASKED, Asked, Suspension
from monitor.hot.trigger import Trigger
from monitor.kernel.domains import Reading
from monitor.link.messages import Decision
from monitor.link.outbox import Outbox
from monitor.policy import pending_release
from monitor.policy.decisions import EVICT, NO_VICTIM, Decisions, gate
from monitor.policy.eviction_pass import takes_first_at_once
from monitor.policy.pending_release import NOTHING, Coming
from monitor.policy.signals import Observation
from monitor.sources.gauge import Gauge
from monitor.sources.registry import PodEntry, Registry
from monitor.sources.watch import Watch


class Acted(NamedTuple):
    """What was done about a pass: when, the pod that the kernel's trigger had signalled already (uid, name), and the
    decision (`Decisions.make`); None where an observed one was reported too short a time ago.
    """

    decided_ns: int
    fired: tuple[str, str] | None
    decision: Mapping[str, Any] | None


@dataclass(slots=True)
class OnePass:
    """One pass of the policy: what it saw, then its result.

    `crossed_ns`: the kernel's time of the crossing that led to it, 0: none did. `coming`: pending releases, by signal.
    `sent`: a pod that got SIGKILL before the pass. `asked`: whether evictions are suspended. `readings` and
    `observations`: by signal. `busy`: a pod is being evicted. `forced`: a signal had been sent. `waits`: for a pending
    release. `answer`: of the gate (`monitor.policy.decisions`). `hurried`: the grace under way was ended. `acted`: None
    where nothing was done.
    """

    crossed_ns: int
    coming: Mapping[str, Coming]
    sent: SentKill | None = None
    asked: Asked = UNASKED
    now_ns: int = 0
    readings: dict[str, Reading] = field(default_factory=dict)
    observations: dict[str, Observation] = field(default_factory=dict)
    busy: bool = False
    forced: bool = False
    waits: bool = False
    answer: str = NO_VICTIM
    hurried: bool = False
    acted: Acted | None = None


@dataclass(eq=False)
class Actor:
    """Acts on one pod at a time; the `Decider` chooses it. ``enforces``: whether it signals pods."""

    gauge: Gauge
    registry: Registry
    trigger: Trigger
    evictor: Evictor
    suspension: Suspension
    outbox: Outbox
    enforces: bool = field(kw_only=True)

    def __post_init__(self) -> None:
        self.decisions = Decisions(self.enforces)

    def kill_early(self, watch: Watch, moved: Mapping[int, int], coming: Mapping[str, Coming]) -> SentKill | None:
        """SIGKILL to the victim that is ready, if a hard threshold of ``watch`` is met now; the pass follows.

        The answer of the pass is known before it: the policy acts on a hard threshold for memory before every other, at
        once, and chooses the first of the order (`takes_first_at_once`; a test compares it with `run_pass`).
        A signal after the pass and its report cost 90 us of 270 with 110 pods. The questions of the gate stand here by
        hand, in its order: the call, and what it is given, cost 15 us of 136 where the caches are cold.
        """
        entry = self.registry.first()
        if entry is None or self.evictor.current is not None or not self.gauge.known(watch):
            return None  # during an eviction the pass hurries it: the reading, 1 to 5 us, is left to that
        reading = self.gauge.reading(watch)
        available = watch.capacity - reading.used
        if not takes_first_at_once(available, watch.hard_line):
            return None
        if pending_release.waits(coming.get(watch.signal, NOTHING), available, watch.hard_line):
            return None
        asked = self.suspension.crossing(watch, reading, moved, coming)
        if not asked.answer.go or (self.registry.grown and not asked.is_of_first):
            return None  # the pod that grows may be one that was evicted and runs again: run the pass first
        victim = self.trigger.ready(entry.uid)
        if victim is None:
            return None
        decided_ns = time.monotonic_ns()
        self.evictor.note.begin(entry.cgroup_id, entry.usage or 0, decided_ns)
        victim.kill()
        return SentKill(entry, victim, reading, decided_ns, time.monotonic_ns(), asked)

    def may_evict(self, *, may_act: bool, pressed: bool = False, waits: bool = False, holds: bool = False) -> bool:
        """Whether the gate lets a pod through that is evicted for what it does itself."""
        busy, signalled = self.evictor.current is not None, self.trigger.is_pulled
        answer = gate(
            may_act=may_act, busy=busy, signalled=signalled, pressed=pressed, waits=waits, holds=lambda: holds
        )
        return answer == EVICT

    def act(
        self,
        entry: PodEntry,
        about: Mapping[str, Any],
        figures: Mapping[str, Any],
        crossed_ns: int = 0,
        sent: SentKill | None = None,
    ) -> Acted:
        """Signal the pod, then report it; or only report it, and that of one subject not too often (`Decisions`)."""
        pod = entry.uid, entry.title
        decided_ns = time.monotonic_ns() if sent is None else sent.decided_ns
        if crossed_ns:
            self.outbox.stats.observe_us("detection_us", (decided_ns - crossed_ns) // 1000)
        signalled_ns, fired = None, None
        if self.enforces:
            fired = self.trigger.disarm()
            if fired is not None:
                entry = fired
            eviction = self.evictor.begin(entry, about["given_s"], sent)
            self.suspension.figures.began(entry)
            # The kernel's trigger signals at the crossing.
            signalled_ns = crossed_ns if fired is not None and crossed_ns else eviction.signalled_ns
            if crossed_ns and eviction.killed_ns is not None:
                self.outbox.stats.observe_us("kill_us", (signalled_ns - crossed_ns) // 1000)
        taken = None if fired is None else (fired.uid, fired.title)
        made = self.decisions.make(about, pod, decided_ns=decided_ns, crossed_ns=crossed_ns, fired=taken)
        if made is None:
            return Acted(decided_ns, None, None)
        self.outbox.stats.add("decisions")
        table = self.gauge.table
        message = Decision(
            **made,
            **figures,
            rank=1,
            signalled_ns=signalled_ns,
            working_set=table.working_set(entry.index),
            request=entry.request,
            containers={name: table.working_set(at) for name, (_, at) in entry.containers.items()},
            order=self.registry.leaders(),
            realtime=time.time(),
        )
        if self.enforces:
            eviction.decision_id, eviction.name = message.id, message.name
        self.outbox.send(message)
        if self.enforces:
            self.evictor.note.reported()
        return Acted(decided_ns, taken, made)
