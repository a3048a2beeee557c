"""From numbers to a dead pod: one pass of the policy, the decision, and the eviction until no process is left.

`monitor.policy` decides; this file gives it the numbers and carries out the answer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from monitor.hot.act import Acted, Actor, OnePass
from monitor.hot.disk_signals import DiskSignals
from monitor.hot.evictor import Evictor, SentKill
from monitor.hot.moved_pods import MovedPods
from monitor.hot.no_holds import NoHolds
from monitor.hot.pass_timer import PassTimer
from monitor.hot.suspension import Suspension
from monitor.hot.trigger import Trigger
from monitor.kernel.domains import Reading
from monitor.link.messages import Clear, DiskFigures, StallCause
from monitor.link.outbox import Outbox
from monitor.policy import decisions
from monitor.policy.compat import SANE
from monitor.policy.decisions import BUSY, EVICT, SIGNALLED, gate
from monitor.policy.eviction_pass import Outcome, PassResult, State, hurries, is_of_memory, run_pass
from monitor.policy.pending_release import Coming
from monitor.policy.ranking import Candidate
from monitor.policy.releases import era
from monitor.policy.signals import MEMORY_SIGNALS
from monitor.policy.suspension import Answer
from monitor.policy.thresholds import Threshold
from monitor.settings.config import RunConfig
from monitor.sources.gauge import Gauge
from monitor.sources.registry import PodEntry, Registry
from monitor.sources.suspension_figures import SuspensionFigures
from monitor.sources.watch import Compared, Watch

if TYPE_CHECKING:
    from monitor.hold.control import HoldControl
    from monitor.hot.pass_record import PassRecorder


class Decider:
    """State of the policy and the eviction under way. It constructs the `Actor`, the `Suspension`, the `HoldControl`
    and, with `--record`, the `PassRecorder`.
    """

    def __init__(
        self,
        config: RunConfig,
        gauge: Gauge,
        registry: Registry,
        trigger: Trigger,
        evictor: Evictor,
        outbox: Outbox,
    ) -> None:
        self.config = config.pass_config(kill_at_once=True)
        self._gauge = gauge
        self._registry = registry
        self._trigger = trigger
        self._evictor = evictor
        self._pending = evictor.pending
        self._recorder: PassRecorder | None = None
        if config.record:
            from monitor.hot.pass_record import PassRecorder  # of no use without

            self._recorder = PassRecorder(registry.order, outbox.offer)
        self._stats, self._send, self._log = outbox.stats, outbox.send, outbox.log
        self._enforce, sane = config.kills, config.compat == SANE
        self._disks = DiskSignals(config, era(config.policy), outbox.send)
        self.pods = MovedPods(gauge, registry, evictor, outbox)
        # Holds need figures, whatever the policy's release.
        self.figures = figures = SuspensionFigures(gauge, registry, active=sane or config.holds)
        self.suspension = suspension = Suspension(gauge, registry, trigger, figures, outbox, active=sane)
        self._actor = Actor(gauge, registry, trigger, evictor, suspension, outbox, enforces=config.kills)
        self.holds: HoldControl | NoHolds = NoHolds()
        if config.holds:
            from monitor.hold.control import HoldControl  # 1.3 MB, of no use in other modes

            record = None if self._recorder is None else self._recorder.held
            self.holds = HoldControl(config, gauge, registry, figures, evictor.grace_ends_ns, record, outbox)
        self._waiting = False  # a pod was chosen and not evicted yet, because a release is pending
        self.state = State()
        self.outcome: Outcome | None = None
        self.pressed = False  # a memory threshold is met, grace or not
        self.may_act = False  # all pods are known and counted; before that the first in order may be any pod
        self.changed = True  # something the helper should know about
        self.steps = 0  # step records so far
        self.stirred = False  # a domain with thresholds moved by a step
        self.eventful = False  # something happened that the last steps belong to (`Records.send_flight`)
        self._timer = PassTimer()
        self.compared = Compared()

    def pass_due_ns(self) -> int | None:
        """When a pass is due although nothing moved."""
        return self._timer.due_ns(self.outcome.next_deadline_ns if self.outcome is not None else None, self.pressed)

    @property
    def is_calm(self) -> bool:
        return self._evictor.current is None and not self.pressed

    def begin(self, pulled_ns: int = 0) -> None:
        """All pods are known and counted: go on with what an earlier daemon was at, then act. ``pulled_ns``: when the
        kernel pulled the trigger while no daemon ran; 0: it did not.
        """
        if self._enforce:
            from monitor.hot.succession import succeed  # once, before the first decision

            succeed(self._evictor, pulled_ns, pressed=self.pressed)
        self.holds.begin()  # before the first pass, which would kill a pod that is not known to be held
        self.may_act = True
        self.figures.begin(time.monotonic_ns())
        self.run_pass()

    def step(self, index: int, working_set: int) -> None:
        """A pod's working set moved by a re-rank step; the pod is ranked later, together with others."""
        self.steps += 1
        self.pods.note(index, working_set)

    def rank_moved(self) -> None:
        self.holds.moved(self.pods.moved)
        self.pods.rank()

    def reread(self) -> None:
        """Count anew, and rank by that, the pods that freed memory."""
        self.pods.reread()
        self.prepare()

    def prepare(self) -> None:
        """Prepare the next victim, where something may be killed at all; note what grew."""
        self.stirred = False
        self.figures.note(time.monotonic_ns())
        if not (self.may_act and self._gauge.arming.armed):
            return
        self.holds.prepare()
        if self._enforce and self._evictor.current is None:
            self.pods.take_back(at_leisure=True)
            # Where a crossing must first decide whether the first may be evicted, the kernel must not signal it there.
            answer = gate(may_act=True, busy=False, waits=self._pending.active, suspends=self.suspension.arming)
            self._trigger.prepare(may_arm=answer == EVICT)

    def run_pass(self, crossed_ns: int = 0, watch: Watch | None = None, reading: Reading | None = None) -> None:
        """One pass of the policy on numbers of this moment; acts on what it decides.

        ``crossed_ns`` is the kernel's time of the crossing that led here (0: none did), with the domain that crossed
        and, where they are to be used, its numbers then.
        """
        was_waiting = self._pending.active
        coming, sent = self._bring_up_to_date(), None
        if crossed_ns and watch is not None and reading is None and self.may_act:
            sent = self._act_at_crossing(crossed_ns, watch, coming)
        one = OnePass(crossed_ns, coming, sent)
        self._look(one, watch, reading)
        result = run_pass(
            self.config,
            self.state,
            one.observations,
            one.now_ns,
            self._rank,
            clean=lambda signal: self._disks.clean(signal, one.now_ns),
        )
        before = self._take(result, one)
        self._carry_out(result, one)
        self._after(before, result.outcome, one)
        if was_waiting and not self._pending.active and not crossed_ns:
            self.prepare()
        if self._recorder is not None:
            self._recorder.passed(one, result.outcome, may_act=self.may_act, holding=self.holds.is_in_the_way)

    def _bring_up_to_date(self) -> Mapping[str, Coming]:
        """Capacities, the places of pods that moved, and the pending release, by signal."""
        self._gauge.take_capacities()
        if self.pods.moved and not self.pods.keeps_order():
            self.pods.rank()
        return self._pending.look(time.monotonic_ns())

    def _act_at_crossing(self, crossed_ns: int, watch: Watch, coming: Mapping[str, Coming]) -> SentKill | None:
        """Before the pass: hold the pods that grow, or else send SIGKILL to the victim that is certain."""
        if not isinstance(self.holds, NoHolds):
            self.holds.crossed(crossed_ns, watch)
            return None
        return self._actor.kill_early(watch, self.pods.moved, coming) if self._enforce else None

    def _look(self, one: OnePass, watch: Watch | None, reading: Reading | None) -> None:
        if one.sent is not None:
            reading, one.asked = one.sent.reading, one.sent.asked
        elif self._registry.grown:
            self.pods.take_back(at_leisure=self._enforce and reading is None)  # else a pod was signalled
        one.now_ns = time.monotonic_ns()
        self._timer.begin(one.now_ns)
        if self._recorder is not None:
            self._recorder.begin(one.now_ns, self.state, self._actor.decisions)
        for each in self._gauge.watches:
            if each.thresholds and self._gauge.known(each):  # unknown is not nothing
                self._observe(each, reading if each is watch else None, one)
        one.observations |= self._disks.view(one.now_ns)

    def _observe(self, watch: Watch, reading: Reading | None, one: OnePass) -> None:
        """``reading``: None, to read the domain now."""
        one.readings[watch.signal] = numbers = reading if reading is not None else self._gauge.reading(watch)
        one.observations[watch.signal] = seen = watch.observation(numbers, one.now_ns)
        if watch.compared:
            met = self.compared.met
            for over in self.compared.look(watch, seen):
                self._send_clear(over, one)
            self.changed |= met != self.compared.met

    def _rank(self, signal: str) -> Sequence[Candidate]:
        if signal in MEMORY_SIGNALS:
            return self._registry.order()
        found = self._registry.candidates(self._disks.order(signal))
        if self._recorder is not None:
            self._recorder.ranked(signal, found)
        return found

    def _take(self, result: PassResult, one: OnePass) -> Outcome | None:
        """Put the policy's answer in force: when the next pass is due, and whether this one's victim waits. Returns the
        answer before it.
        """
        self.state, outcome = result.state, result.outcome
        before, self.outcome = self.outcome, outcome
        was_pressed, self.pressed = self.pressed, any(t.signal in MEMORY_SIGNALS for t in outcome.observed)
        if not one.crossed_ns and self._timer.clears_crossings:
            self._timer.clear_crossings(self._gauge, one.observations)
        self._timer.plan(one.crossed_ns, self.pressed, was_pressed)
        one.busy = self._evictor.current is not None
        # A signal that was sent cannot wait.
        one.forced = one.sent is not None or self._trigger.is_pulled
        one.waits = decisions.waits(outcome, one.observations, one.coming, forced=one.forced)
        if one.waits and not self._waiting:
            self._stats.add("eviction_waits")
        self._waiting = one.waits
        return before

    def _carry_out(self, result: PassResult, one: OnePass) -> None:
        outcome, sent = result.outcome, one.sent
        if sent is not None and (outcome.victim is None or outcome.victim.uid != sent.entry.uid):
            one.answer = SIGNALLED
            self._evictor.begin(sent.entry, 0, sent)
            self._log("error", "a pod was signalled that the policy did not choose; report this", pod=sent.entry.title)
            return
        if outcome.victim is None:
            return
        entry = self._registry.by_uid[outcome.victim.uid]
        one.answer = gate(
            may_act=self.may_act,
            busy=one.busy,
            signalled=self._trigger.is_pulled and not is_of_memory(outcome),  # for memory: its record comes next
            waits=one.waits,
            forced=one.forced,
            suspends=lambda: self._suspends(entry, outcome, one),
            holds=lambda: self.holds.keeps(entry, outcome, one.crossed_ns),
        )
        if one.answer == EVICT:
            one.acted = self._for_threshold(entry, result, one)
            self.holds.acted(entry.uid, one.acted.decision)
        elif one.answer == BUSY and hurries(outcome) and self.holds.hurries:
            one.hurried = True
            self._evictor.hurry()

    def _for_threshold(self, entry: PodEntry, result: PassResult, one: OnePass) -> Acted:
        about = decisions.for_threshold(result, one.observations, one.asked.answer.reason)
        signal = about["signal"]
        if signal in MEMORY_SIGNALS:
            figures = {"usage": one.readings[signal].usage, "coming": self._pending.left_in(signal)}
            return self._actor.act(entry, about, figures, one.crossed_ns, one.sent)
        if self._enforce:
            self._disks.evicted(signal, time.monotonic_ns())
        usage = about["capacity"] - about["available"]
        # The crossing was of memory, and over by the time of the pass.
        return self._actor.act(entry, about, {"usage": usage, "cleanup": list(self._disks.cleanup(signal))})

    def _suspends(self, victim: PodEntry, outcome: Outcome, one: OnePass) -> Answer:
        if one.sent is None:
            settled = not self._pending.active
            one.asked = self.suspension.ask(outcome, one.observations, one.readings, one.coming, settled=settled)
        self.suspension.take(one.asked, outcome, one.observations, victim, one.now_ns)
        return one.asked.answer

    def _after(self, before: Outcome | None, outcome: Outcome, one: OnePass) -> None:
        """What the helper has to know of a pass."""
        self.suspension.look_after(outcome, one.now_ns)
        self.changed |= self.suspension.take_changed() or (one.acted is not None and one.acted.decision is not None)
        self._stats.add("passes")
        for threshold in before.observed if before is not None else ():
            if threshold not in outcome.observed and threshold.signal in MEMORY_SIGNALS:
                self._send_clear(threshold, one)
        if before is None or before.conditions != outcome.conditions or before.observed != outcome.observed:
            self.changed = True

    def died(self, entry: PodEntry, size: int) -> None:
        """Another program killed a process of a pod, or it is gone; the kernel frees ``size`` bytes (0: unknown)."""
        current, uid = self._evictor.current, entry.uid
        ours = entry.evicted or self._evictor.is_stuck(uid) or (current is not None and current.victim.uid == uid)
        if not ours:
            self._pending.killed(entry, size, time.monotonic_ns())

    def exited(self, entry: PodEntry, size: int) -> None:
        """A process of a pod exited by itself, and the kernel frees ``size`` bytes of it late."""
        if not self._evictor.is_stuck(entry.uid):
            self._pending.exited(entry, size, time.monotonic_ns())

    def forget(self, uid: str) -> None:
        """A pod is gone. If it has no process left, its memory is a pending release."""
        entry = self._registry.by_uid.get(uid)
        if entry is not None:
            self.holds.dropped(uid)
            if not self._evictor.is_stuck(uid):
                self._pending.dropped(entry, time.monotonic_ns())
        self._registry.drop(uid)
        self._trigger.forget(uid)
        self._gauge.sweep_soon()
        self.changed = True

    def follow_return(self) -> None:
        """Sample pending releases, with a pass while a memory threshold is met."""
        began_ns = time.thread_time_ns()
        if self.pressed:
            self.run_pass()
        else:
            self._pending.look(time.monotonic_ns())
        self._pending.looked(time.monotonic_ns(), time.thread_time_ns() - began_ns)
        if not self._pending.active:
            self.prepare()  # a pass that came of a crossing may have ended the wait

    def _send_clear(self, threshold: Threshold, one: OnePass) -> None:
        seen = one.observations.get(threshold.signal)
        self._send(
            Clear(
                ts_ns=one.now_ns,
                domain=next((w.name for w in self._gauge.watches if w.signal == threshold.signal), "node"),
                signal=threshold.signal,
                hard=threshold.hard,
                available=seen.available if seen is not None else 0,
            )
        )

    def helper_lost(self) -> None:
        self._disks.forget()
        self.holds.helper_lost()
        self.run_pass()

    def restart_recording(self) -> None:
        """A recording begins, or a part of it is missing."""
        if self._recorder is not None:
            self._recorder.restart()
            self.run_pass()  # a snapshot goes with a pass

    def take_disk_figures(self, message: DiskFigures) -> None:
        """New numbers of disks and process ids: first evict all pods over their own limits of local storage."""
        self._disks.take(message)
        self._actor.decisions.forget(time.monotonic_ns())
        if not self.evict_over_limit():
            self.run_pass()

    def evict_over_limit(self) -> bool:
        """Evict the next pod that is over a limit of its own; False if there is none."""
        while self._actor.may_evict(may_act=self.may_act):
            violation = self._disks.next_violation()
            if violation is None:
                break
            uid, text = violation
            entry = self._registry.by_uid.get(uid)
            if entry is not None and not entry.evicted:
                self._evict_for(entry, text)
                if self._enforce:
                    return True
        return False

    def _evict_for(self, entry: PodEntry, text: str) -> None:
        """Evict a pod for what it does itself: no threshold is met, and nothing is pending."""
        acted = self._actor.act(entry, decisions.for_limit(self.config, text), {})
        self.changed |= acted.decision is not None
        self.holds.acted(entry.uid, acted.decision)
        if self._recorder is not None:
            self._recorder.over_limit(entry.uid, entry.title, text, acted)

    def take_stall_cause(self, message: StallCause) -> None:
        """Evict the pod that makes another one stall. Not while memory is about to come back: that may end the stall,
        and if it does not, the helper asks again.
        """
        entry = self._registry.by_uid.get(message.pod)
        if entry is None or not entry.counted or entry.critical or entry.evicted:
            return
        known = {"pressed": self.pressed, "waits": self._pending.active, "holds": self.holds.is_in_the_way}
        if self._actor.may_evict(may_act=self.may_act, **known):
            self._evict_for(entry, message.message)

    def follow(self, now_ns: int, side: int) -> bool:
        """Continue the eviction (`Evictor.follow`); when it is over, run a pass at once. Whether it is over."""
        current = self._evictor.current
        if current is None or not self._evictor.follow(now_ns, side):
            return False
        self.holds.went(current.victim.uid, killed=current.killed_ns is not None)
        self.run_pass()
        self.evict_over_limit()
        self.prepare()
        return True

    def on_kernel_signal(self, ts_ns: int, watch: Watch | None, reading: Reading, refused: str) -> None:
        """The victim was signalled inside its own charge.

        Its crossing was usually read before, and the pod is being finished.
        """
        if refused:
            self._log("warning", "the kernel refused the signal", error=refused)
        if self._evictor.current is None:
            self.run_pass(ts_ns, watch, reading)
        if self._evictor.current is None and not refused:
            self._finish_pulled(ts_ns)

    def _finish_pulled(self, ts_ns: int) -> None:
        """The kernel sent a signal, and the policy, by the same numbers, chooses no pod.

        Thresholds or pods changed in between. The kill is irreversible; log it.
        """
        fired = self._trigger.disarm()
        self._log(
            "warning",
            "a process was killed in the kernel at a crossing that was over when it was read",
            pod=fired.title if fired else None,
            crossed_ns=ts_ns,
        )
