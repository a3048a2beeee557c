"""From numbers to a dead pod: one pass of the policy, the decision, and the eviction until nobody is left.

What is decided is decided in `monitor.policy`; this file brings it the numbers and carries out the answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from monitor.hot.brake import UNASKED, Asked, Brake
from monitor.hot.evictor import Evictor, SentKill
from monitor.hot.gauge import Gauge
from monitor.hot.patience import Patience
from monitor.hot.registry import PodEntry, Registry
from monitor.hot.slow_signals import SlowSignals
from monitor.hot.trigger import Trigger
from monitor.kernel import cgroup_procs
from monitor.kernel.domains import Reading
from monitor.kernel.troubles import TROUBLES
from monitor.link.counters import SharedStats
from monitor.policy import decisions, patience
from monitor.policy.compat import SANE
from monitor.policy.decisions import Decisions
from monitor.policy.eviction_pass import (
    KNOWN_LAYOUT,
    PassConfig,
    PassResult,
    hurries,
    is_of_memory,
    run_pass,
    takes_first_at_once,
)
from monitor.policy.patience import Coming
from monitor.policy.ranking import Candidate
from monitor.policy.signals import MEMORY_SIGNALS
from monitor.policy.synchronize import Observation, Outcome
from monitor.policy.thresholds import Threshold
from monitor.settings.config import RunConfig
from monitor.sources.watch import Watch

if TYPE_CHECKING:
    from monitor.hot.pass_record import Acted, Journal

#: While a threshold is met the policy is run this often on fresh numbers (a pass costs 30 us: 0.1 % of a CPU).
TICK_NS = 25_000_000
#: A crossing less than 5 ms after the one before is not reported by the kernel (struct domain rearm_ns); so when
#: pressure ends, one more pass is run after that time.
RECHECK_NS = 10_000_000
FIRST_RECHECK_NS = 250_000
#: A pod that gave memory back is counted again after this long: what is uncharged last is followed by no event.
REREAD_NS = 5_000_000
#: An evicted pod that grew though nobody ran in it is not asked again before this, or before it grew by so much more.
ASK_NS, ASK_BYTES = 100_000_000, 4 << 20

Tell = Callable[[dict[str, Any]], None]


class Decider:
    """State of the policy and the eviction under way. ``journal`` is told of every pass, where there is one."""

    def __init__(
        self,
        config: RunConfig,
        pass_config: PassConfig,
        gauge: Gauge,
        registry: Registry,
        trigger: Trigger,
        slow: SlowSignals,
        evictor: Evictor,
        patience: Patience,
        stats: SharedStats,
        tell: Tell,
        journal: Journal | None = None,
    ) -> None:
        self._journal = journal
        self._enforce = config.enforce
        self._config = pass_config
        self._gauge = gauge
        self._registry = registry
        self._trigger = trigger
        self._slow = slow
        self._evictor = evictor
        self._patience = patience
        self._waiting = False  # somebody was chosen and not evicted yet, because memory is coming back
        self._stats = stats
        self._tell = tell
        self._brake = Brake(gauge, registry, trigger, stats, tell, active=config.compat == SANE)
        self._state = KNOWN_LAYOUT
        self.outcome: Outcome | None = None
        self.pressed = False  # a memory threshold is met, grace or not
        self.may_act = False  # all pods are known and counted; before that the first in order may be anybody
        self.moved: dict[int, int] = {}  # domain index -> working set, from step records not yet ranked
        self.changed = True  # something the side should know about
        self.steps = 0  # step records so far
        self.stirred = False  # a domain with thresholds moved by a step
        self._passed_ns = 0  # the last pass
        self._recheck_ns: int | None = None
        self._recheck_after = 0
        self._reread_ns: int | None = None
        self._shrunk: set[int] = set()  # domain indexes of pods that gave memory back
        self._decisions = Decisions(config.enforce)

    def pass_due_ns(self) -> int | None:
        """When a pass is due although nothing moved."""
        due = self.outcome.next_deadline_ns if self.outcome is not None else None
        recheck = self._recheck_ns
        if recheck is not None and (due is None or recheck < due):
            due = recheck
        if self.pressed:
            tick = self._passed_ns + TICK_NS
            if due is None or tick < due:
                due = tick
        return due

    def reread_due_ns(self) -> int | None:
        """When pods that gave memory back are counted anew."""
        return self._reread_ns

    @property
    def braked(self) -> dict[str, Any] | None:
        """What is told of evictions that are held, because they would not help; None while they are not."""
        return self._brake.state

    @property
    def is_calm(self) -> bool:
        """Whether no memory threshold is met and nobody is being evicted."""
        return self._evictor.current is None and not self.pressed

    def begin(self) -> None:
        """All pods are known and counted: act from now on."""
        self.may_act = True
        self._brake.begin(time.monotonic_ns())
        self.run_pass()

    def step(self, index: int, working_set: int) -> None:
        """A pod's working set moved by a step; it is ranked later, together with others."""
        self.moved[index] = working_set
        self.steps += 1
        entry = self._registry.by_index.get(index)
        if entry is not None and entry.usage is not None and working_set < entry.usage:
            self._shrunk.add(index)
            if self._reread_ns is None:
                self._reread_ns = time.monotonic_ns() + REREAD_NS

    def reread(self) -> None:
        """Count anew, and rank by that, the pods that gave memory back."""
        self._reread_ns = None
        self.rank_moved()
        self._gauge.reread()
        for index in self._shrunk:
            entry = self._registry.by_index.get(index)
            if entry is not None and entry.counted:
                self._registry.move(entry, self._gauge.table.working_set(index))
        self._shrunk.clear()
        self.prepare()

    def rank_moved(self) -> None:
        """Give the pods that reported a step their new places."""
        for index, working_set in self.moved.items():
            entry = self._registry.by_index.get(index)
            if entry is None:
                continue
            self._registry.move(entry, working_set)
        self.moved.clear()
        self._take_back(at_leisure=False)

    def _take_back(self, at_leisure: bool) -> None:
        """Evicted pods that grew are candidates again if somebody runs in them: page cache that they left may turn
        active in use by others.

        On v1 that is asked at leisure only: reading its cgroup.procs takes a lock which another reader may hold while
        it waits for a CPU (17 ms, measured; it cost races). At a crossing only where another pod would go for it.
        """
        if not self._registry.grown or self._evictor.current is not None:
            return
        now = time.monotonic_ns()
        for uid in list(self._registry.grown):
            entry = self._registry.by_uid[uid]
            more = (entry.usage or 0) - entry.floor
            if self._evictor.holds(uid) or (now < entry.ask_ns and more < ASK_BYTES):
                continue
            runs = cgroup_procs.populated(entry.cgroup)
            if runs is None and at_leisure:
                try:
                    runs = cgroup_procs.anybody(entry.cgroup)
                except OSError as error:
                    TROUBLES.note("cgroup", error, uid)
            if runs:
                self._registry.set_evicted(entry, False)
                self._log("info", "an evicted pod runs again: it is a candidate again", pod=entry.title)
            elif runs is not None:
                entry.ask_ns = now + ASK_NS
                self._registry.settle(entry)
            elif at_leisure:
                entry.ask_ns = now + ASK_NS  # too many cgroups to tell: it stays what it is

    def prepare(self) -> None:
        """Have the next victim ready, where something may be killed at all; note what grew."""
        self.stirred = False
        self._brake.note(time.monotonic_ns())
        if self._enforce and self.may_act and self._evictor.current is None and self._gauge.arming.armed:
            self._take_back(at_leisure=True)
            # Where it has to be asked at a crossing whether the first may go, the kernel must not signal it there.
            self._trigger.prepare(may_arm=not (self._patience.active or self._brake.forbids_arming()))

    def run_pass(self, crossed_ns: int = 0, watch: Watch | None = None, reading: Reading | None = None) -> None:
        """One pass of the policy on numbers of this moment; acts on what it decides.

        ``crossed_ns`` is the kernel's time of the crossing that led here (0: none did), with the domain that crossed
        and, where they are to be used, its numbers then.
        """
        self._gauge.take_capacities()
        if self.moved and not self._order_stands():
            self.rank_moved()
        was_waiting, coming = self._patience.active, self._patience.look(time.monotonic_ns())
        sent, asked = None, UNASKED
        if crossed_ns and watch is not None and reading is None:
            sent, asked = self._kill_prepared(watch, coming)
        if sent is None and self._registry.grown:
            self._take_back(at_leisure=self._enforce)
        if sent is not None and watch is not None:
            reading = sent.reading
            asked = self._brake.figured(asked, watch, reading, coming)
        self._recheck_ns = None
        readings: dict[str, Reading] = {}
        observations: dict[str, Observation] = {}
        now = self._passed_ns = time.monotonic_ns()
        journal, acted, braked = self._journal, None, False
        if journal is not None:
            journal.begin(now, self._state.core, self._decisions)
        for w in self._gauge.watches:
            if w.thresholds and self._gauge.known(w):  # unknown is not nothing
                numbers = reading if w is watch and reading is not None else self._gauge.reading(w)
                readings[w.name] = numbers
                observations[w.signal] = w.observation(numbers, now)
        observations |= self._slow.view(now)

        def rank(signal: str) -> Sequence[Candidate]:
            if signal in MEMORY_SIGNALS:
                return self._registry.order()
            found = self._registry.candidates(self._slow.order(signal))
            if journal is not None:
                journal.ranked(signal, found)
            return found

        result = run_pass(
            self._config, self._state, observations, now, rank, clean=lambda signal: self._slow.clean(signal, now)
        )
        self._state, outcome = result.state, result.outcome
        before, self.outcome = self.outcome, outcome
        was_pressed, self.pressed = self.pressed, any(t.signal in MEMORY_SIGNALS for t in outcome.observed)
        if not crossed_ns and self._recheck_after in (0, RECHECK_NS):
            self._clear_crossings(observations)
        self._plan_recheck(now, crossed_ns, was_pressed)
        busy = self._evictor.current is not None
        # What was signalled already cannot be waited for.
        forced = sent is not None or self._trigger.is_pulled
        waits = decisions.waits(outcome, observations, coming, forced=forced)
        self._note_wait(waits, outcome, coming)
        if sent is not None and (outcome.victim is None or outcome.victim.uid != sent.entry.uid):
            self._evictor.begin(sent.entry, 0, sent)
            self._log("error", "a pod was signalled that the policy did not choose; report this", pod=sent.entry.title)
        elif outcome.victim is not None and self.may_act:
            if not busy and not waits:
                entry = self._registry.by_uid[outcome.victim.uid]
                if sent is None:
                    asked = self._brake.ask(outcome, observations, readings, coming, settled=not self._patience.active)
                braked = not self._brake.lets(asked, outcome, observations, entry, now) and not forced
                if not braked:
                    about = decisions.for_threshold(result, observations, asked.answer.reason)
                    acted = self._decide(result, entry, about, readings, crossed_ns, sent)
            elif hurries(outcome):
                self._evictor.hurry()
        self._brake.look_after(outcome, now)
        self.changed |= self._brake.take_news()
        self._stats.add("passes")
        for threshold in before.observed if before is not None else ():
            if threshold not in outcome.observed and threshold.signal in MEMORY_SIGNALS:
                self._tell_clear(threshold, observations, now)
        if before is None or before.conditions != outcome.conditions or before.observed != outcome.observed:
            self.changed = True
        if was_waiting and not self._patience.active and not crossed_ns:
            self.prepare()
        if journal is not None:
            journal.passed(
                now,
                observations,
                outcome,
                may_act=self.may_act,
                busy=busy,
                crossed_ns=crossed_ns,
                acted=acted,
                coming=coming,
                forced=forced,
                waits=waits,
                brake=asked.known,
                braked=braked,
            )

    def _note_wait(self, waits: bool, outcome: Outcome, coming: Mapping[str, Coming]) -> None:
        """Count how often the next victim had to wait, and how often that was not to the end."""
        if waits and not self._waiting:
            self._stats.add("eviction_waits")
        elif self._waiting and not waits and outcome.victim is not None and outcome.starved is not None:
            seen = coming.get(outcome.starved.signal, patience.NOTHING)
            if seen.coming and seen.back_ns > 0:
                self._stats.add("eviction_waits_cut")
        self._waiting = waits

    def died(self, entry: PodEntry, size: int) -> None:
        """A process of a pod was killed by others, or is gone; it had ``size`` bytes, 0: not known. They come back."""
        current = self._evictor.current
        ours = (
            entry.evicted or self._evictor.holds(entry.uid) or (current is not None and current.victim.uid == entry.uid)
        )
        if not ours and self._patience.killed(entry, size, time.monotonic_ns()):
            self._trigger.stand_down()

    def left(self, entry: PodEntry, size: int) -> None:
        """A process of a pod left by itself, and ``size`` bytes of it come back late."""
        if not self._evictor.holds(entry.uid) and self._patience.left_late(entry, size, time.monotonic_ns()):
            self._trigger.stand_down()

    def dropped(self, entry: PodEntry) -> None:
        """A pod is about to be forgotten. If nobody is left of it, what it had comes back."""
        if not self._evictor.holds(entry.uid) and self._patience.dropped(entry, time.monotonic_ns()):
            self._trigger.stand_down()

    def follow_return(self) -> None:
        """Look what came back, and decide if somebody waits for that."""
        began_ns = time.thread_time_ns()
        if self.pressed:
            self.run_pass()
        else:
            self._patience.look(time.monotonic_ns())
        self._patience.looked(time.monotonic_ns(), time.thread_time_ns() - began_ns)
        if not self._patience.active:
            self.prepare()  # a pass that came of a crossing may have ended the wait

    def _kill_prepared(self, watch: Watch, coming: Mapping[str, Coming]) -> tuple[SentKill | None, Asked]:
        """SIGKILL to the victim that is ready, if a hard threshold of ``watch`` is met now; the pass follows.

        All that the pass could answer is known before: a hard threshold for memory is acted on before every other, at
        once, and takes the first of the order (`takes_first_at_once`; a test holds it against `run_pass`).
        Sending after the pass and its report cost 90 us of 270 with 110 pods.
        """
        nothing = None, UNASKED
        if not (self._enforce and self.may_act) or self._evictor.current is not None:
            return nothing
        entry = self._registry.first()
        if entry is None or not self._gauge.known(watch):
            return nothing
        reading = self._gauge.reading(watch)
        available = watch.capacity - reading.working_set
        if not takes_first_at_once(available, watch.hard_line):
            return nothing
        if patience.waits(coming.get(watch.signal, patience.NOTHING), available, watch.hard_line):
            return nothing
        asked = self._brake.crossing(watch, reading, self.moved, coming)
        if not asked.answer.go or (self._registry.grown and not self._brake.is_of_first):
            return nothing  # who grows may be one that was evicted and runs again: ask first
        victim = self._trigger.ready(entry.uid)
        if victim is None:
            return nothing
        decided_ns = time.monotonic_ns()
        self._evictor.note.begin(entry.cgroup_id, entry.usage or 0, decided_ns)
        victim.kill()
        return SentKill(entry, victim, reading, decided_ns, time.monotonic_ns()), asked

    def _tell_clear(self, threshold: Threshold, observations: dict[str, Observation], now_ns: int) -> None:
        """A threshold that was met is not met any more."""
        seen = observations.get(threshold.signal)
        self._tell(
            {
                "t": "clear",
                "ts_ns": now_ns,
                "domain": next((w.name for w in self._gauge.watches if w.signal == threshold.signal), "node"),
                "signal": threshold.signal,
                "hard": threshold.hard,
                "available": seen.available if seen is not None else 0,
            }
        )

    def _plan_recheck(self, now_ns: int, crossed_ns: int, was_pressed: bool) -> None:
        """When nothing is met, and that may change unreported.

        A crossing that was over when it was read (somebody gave a batch back) is followed closely: the kernel will not
        report the next one for 5 ms, in which a process at full speed takes 6 MiB.
        """
        if self.pressed:
            self._recheck_after = 0
        elif crossed_ns:
            self._recheck_after = FIRST_RECHECK_NS
        elif was_pressed:
            self._recheck_after = RECHECK_NS
        elif self._recheck_after:
            self._recheck_after = min(2 * self._recheck_after, RECHECK_NS) if self._recheck_after < RECHECK_NS else 0
        if self._recheck_after:
            self._recheck_ns = now_ns + self._recheck_after

    def _clear_crossings(self, observations: dict[str, Observation]) -> None:
        """What is not met any more may be crossed again, and is to be reported then.

        The kernel sees a working set only when something is charged, so it may have missed that it was below. (Not
        after a crossing: one that trembles at the line would be reported at every charge.)
        """
        for watch in self._gauge.watches:
            crossed = self._gauge.table.crossed(watch.index) if watch.thresholds else 0
            if not crossed or watch.signal not in observations:
                continue
            available = observations[watch.signal].available
            over = sum(1 << i for i, line in enumerate(watch.lines) if line <= available)
            if crossed & over:
                self._gauge.table.clear_crossings(watch.index, crossed & over)
                self._recheck_ns = time.monotonic_ns() + RECHECK_NS

    def _order_stands(self) -> bool:
        """Whether what moved is only the first victim, growing: then it is still the first, and ranking can wait."""
        first = self._registry.first()
        if first is None or len(self.moved) != 1 or first.usage is None:
            return False
        return self.moved.get(first.index, -1) >= first.usage

    def _decide(
        self,
        result: PassResult,
        entry: PodEntry,
        about: dict[str, Any],
        readings: dict[str, Reading],
        crossed_ns: int,
        sent: SentKill | None,
    ) -> Acted | None:
        """Evict the pod the policy chose (enforce), or say that it would be evicted (observe)."""
        signal = about["signal"]
        if is_of_memory(result.outcome):
            usage = readings[about["domain"]].usage
            figures: dict[str, Any] = {"usage": usage, "coming": self._patience.left_in(signal)}
        else:
            crossed_ns = 0  # the crossing was of memory, and over when it was looked at
            figures = {"usage": about["capacity"] - about["available"], "cleanup": list(self._slow.cleanup(signal))}
            if self._trigger.is_pulled:
                return None  # somebody is dying in the kernel already: its record comes next
            if self._enforce:
                self._slow.evicted(signal, time.monotonic_ns())
        return self._act(entry, about, figures, crossed_ns, sent)

    def _act(
        self,
        entry: PodEntry,
        about: dict[str, Any],
        figures: dict[str, Any],
        crossed_ns: int = 0,
        sent: SentKill | None = None,
    ) -> Acted | None:
        """Signal the pod, then tell of it; or only tell, and that of one subject not too often (`Decisions`).

        ``about`` and ``figures``: what led to it. ``sent``: it was signalled already. Gives what was done, for the
        journal if there is one.
        """
        pod, grace_s = (entry.uid, entry.title), about["given_s"]
        decided_ns = time.monotonic_ns() if sent is None else sent.decided_ns
        if crossed_ns:
            self._stats.observe_us("detection_us", (decided_ns - crossed_ns) // 1000)
        signalled_ns, fired = None, None
        if self._enforce:
            fired = self._trigger.disarm()
            if fired is not None:
                entry = fired
            eviction = self._evictor.begin(entry, grace_s, sent)
            self._brake.began(entry)
            # What the kernel pulled was pulled at the crossing.
            signalled_ns = crossed_ns if fired is not None and crossed_ns else eviction.signalled_ns
            if crossed_ns and eviction.killed_ns is not None:
                self._stats.observe_us("kill_us", (signalled_ns - crossed_ns) // 1000)
        taken = None if fired is None else (fired.uid, fired.title)
        made = self._decisions.make(about, pod, decided_ns=decided_ns, crossed_ns=crossed_ns, fired=taken)
        if made is None:
            return self._acted(decided_ns, None, None)
        self._stats.add("decisions")
        table = self._gauge.table
        message: dict[str, Any] = {
            "t": "decision",
            **made,
            **figures,
            "rank": 1,
            "prepared": self._trigger.was_prepared,
            "signalled_ns": signalled_ns,
            "working_set": table.working_set(entry.index),
            "request": entry.request,
            "containers": {name: table.working_set(at) for name, (_, at) in entry.containers.items()},
            "order": self._registry.leaders(),
            "realtime": time.time(),
        }
        if self._enforce:
            eviction.decision = message
        self._tell(message)
        if self._enforce:
            self._evictor.note.told()
        self.changed = True
        return self._acted(decided_ns, taken, made)

    def _acted(self, decided_ns: int, fired: tuple[str, str] | None, decision: dict[str, Any] | None) -> Acted | None:
        if self._journal is None:
            return None
        from monitor.hot.pass_record import Acted

        return Acted(decided_ns, fired, decision)

    def take_slow(self, message: dict[str, Any]) -> None:
        """New numbers of disks and process ids: pods over their own limits of local storage first, all of them."""
        self._slow.take(message)
        self._decisions.forget(time.monotonic_ns())
        if not self.evict_over_limit():
            self.run_pass()

    def evict_over_limit(self) -> bool:
        """Evict the next pod that is over a limit of its own; False if there is none."""
        while self.may_act and self._evictor.current is None and not self._trigger.is_pulled:
            violation = self._slow.next_violation()
            if violation is None:
                break
            entry = self._registry.by_uid.get(violation.uid)
            if entry is not None and not entry.evicted:
                acted = self._act(entry, decisions.for_limit(self._config, violation.message), {})
                if self._journal is not None and acted is not None:
                    self._journal.over_limit(entry.uid, entry.title, violation.message, acted)
                if self._enforce:
                    return True
        return False

    def follow(self, now_ns: int, side: int) -> bool:
        """Go on with the pod being evicted (`Evictor.follow`); when that is over, look again at once. Whether it is."""
        if not self._evictor.follow(now_ns, side):
            return False
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
        """A signal went out in the kernel, and the policy, asked with the same numbers, wants nobody.

        Thresholds or pods changed in between. It cannot be taken back, but it is said.
        """
        fired = self._trigger.disarm()
        self._log(
            "warning",
            "a process was killed in the kernel at a crossing that was over when it was read",
            pod=fired.title if fired else None,
            crossed_ns=ts_ns,
        )

    def _log(self, level: str, msg: str, **fields: Any) -> None:
        self._tell({"t": "log", "level": level, "msg": msg, **fields})
