"""Holds growing pods at a crossing, and releases them when memory is clear (mode hold, `--hard-grace`).

`monitor.policy.hold` decides, by figures of `monitor.hold.figures`; this file acts, reports and samples again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from monitor.actions.ledger import HOT, Ledger, is_noted, this_daemon
from monitor.actions.undo import undo_left
from monitor.hold.brakes import ENDED, GONE, KILL, LOST, THAWED_NS, Hold, HoldBrakes
from monitor.hold.figures import HoldFigures, KubeletAnswers
from monitor.hold.pod_brake import ROOM
from monitor.link.messages import KubeletEviction, Soften, Softened
from monitor.link.outbox import Outbox
from monitor.policy import hold
from monitor.policy.eviction_pass import Outcome, is_of_memory, is_urgent
from monitor.policy.hold import FREE, Look, Pod, State, may_run
from monitor.settings.config import RunConfig
from monitor.sources.gauge import Gauge
from monitor.sources.registry import PodEntry, Registry
from monitor.sources.suspension_figures import SuspensionFigures
from monitor.sources.watch import Watch

#: (Until so long after the last change of a brake, time between samples.) A sample costs 60 us with 110 pods.
PACES = ((50_000_000, 500_000), (1 << 62, 5_000_000))
_REST = 4  # the pause after a sample is at least so many times its cost
_Due = Callable[[], int | None]
_Timer = tuple[str, _Due, Callable[[int], object]]


class HoldControl:
    """Exists where `RunConfig.holds`. ``state`` is the policy's. ``grace_ends_ns``: `Evictor.grace_ends_ns`;
    ``record``: `PassRecorder.held`, where everything is recorded.
    """

    def __init__(
        self,
        config: RunConfig,
        gauge: Gauge,
        registry: Registry,
        figures: SuspensionFigures,
        grace_ends_ns: Callable[[str], int],
        record: Callable[[hold.Rules, State, Look, State, hold.Steps], object] | None,
        outbox: Outbox,
    ) -> None:
        #: The victim gets SIGTERM at once, and SIGKILL when its grace is over (`--hard-grace`).
        self.graceful = config.hard_grace_ns > 0
        self.rules = hold.Rules(config.hold_limit_ns + config.hard_grace_ns, config.kills, config.two_steps)
        self.state: State = FREE
        self._gauge = gauge
        self._registry = registry
        self._grace_ends_ns = grace_ends_ns
        self._record = record
        self._stats, self._send, self._log = outbox.stats, outbox.send, outbox.log
        self._state_dir = Path(config.state_dir)
        self._ledger = Ledger(self._state_dir)
        #: When all that earlier processes hold is released, unless their pods are known before.
        self._left_due_ns: int | None = time.monotonic_ns() + config.hold_limit_ns
        self._brakes = HoldBrakes(gauge.hierarchy, self._ledger)
        self._figures = HoldFigures(gauge, registry, self.rules, figures, self._brakes, self._log)
        self._holds: dict[str, Hold] = {}
        self._last_id = self._next_ns = self._changed_ns = 0
        self._moved: dict[str, PodEntry] = {}  # pods that moved last
        self._evicted: set[str] = set()  # uids of pods that another program evicts
        self._answers = KubeletAnswers()
        self._gone: list[str] = []  # held pods that have no process left, or cannot be held any more

    def timers(self, rank_due_ns: _Due, run_pass: Callable[[], object]) -> tuple[_Timer, ...]:
        """(Name, when due, handler.) ``run_pass`` follows where held pods do not delay the victim any more."""

        def due_ns() -> int | None:
            due = self.due_ns()
            return 0 if due is not None and rank_due_ns() is not None else due

        def follow(now_ns: int) -> None:
            if self.follow(now_ns):
                run_pass()

        return (
            ("hold", due_ns, follow),
            ("released", self._brakes.due_ns, self._brakes.try_again),
            ("left-holds", lambda: self._left_due_ns, lambda _: self._release_left()),
        )

    # before a crossing

    def begin(self) -> None:
        """All pods are known and counted: continue or release what an earlier hot process holds. Released before
        that, pods would grow unwatched: of 4 such races at full speed 3 were lost (`outrace bench kills --mode hold`).
        The helper releases what is held of others (`monitor.side.left_changes`): looking for it takes 15 us a cgroup.
        """
        held = [entry for entry in self._registry if is_noted(entry.cgroup, self._ledger.attribute)]
        for entry in self.go_on(held):
            self._log("warning", "a hold of an earlier daemon continues", pod=entry.title)
        self._release_left([entry.cgroup for entry in held])

    def _release_left(self, paths: Iterable[Path] | None = None, *, own: bool = False) -> None:
        """What earlier processes hold, and this one does not continue. ``paths``: of these cgroups alone. ``own``: also
        what the kernel has refused to this one.
        """
        self._left_due_ns, spared = None, None if own else this_daemon()
        undo_left([self._state_dir], self._log, self._gauge.hierarchy, (HOT,), spared, paths)

    def moved(self, indexes: Iterable[int]) -> None:
        """Pods moved by a re-rank step: a growing one may have to be held next."""
        for index in indexes:
            entry = self._registry.by_index.get(index)
            if entry is not None and not entry.critical:
                self._moved[entry.uid] = entry

    def prepare(self) -> None:
        entries = list(self._moved.values())[-4:]
        first = self._registry.first()
        left = self._brakes.prepare(entries if first is None else [first, *entries])
        self._moved = {entry.uid: entry for entry in left}

    # at a crossing, and in the pass after it

    def crossed(self, crossed_ns: int, watch: Watch) -> None:
        if watch.hard_line and self._gauge.known(watch):
            if self._holds:
                self.follow(time.monotonic_ns(), crossed_ns)
            else:
                self._hold_growing(crossed_ns, watch)

    def look_uncrossed(self, now_ns: int) -> None:
        """Pods moved while none is held. Where memory was short before, no crossing will start a hold."""
        if self.state != FREE or now_ns < self._next_ns:
            return
        began_ns = time.thread_time_ns()
        self._hold_growing()
        self._next_ns = time.monotonic_ns() + max(PACES[0][1], _REST * (time.thread_time_ns() - began_ns))

    def _hold_growing(self, crossed_ns: int = 0, watch: Watch | None = None) -> None:
        """Where memory is short, hold pods that grow in the domain of ``watch``, else in the first that is short."""
        figures, domains = self._figures, self._figures.domains()
        short = [w for w in self._gauge.watches if (d := domains.get(w.signal)) and figures.is_short(d)]
        if short:
            self._advance(figures.look(domains, self.state, figures.who_grew(watch or short[0])), crossed_ns)

    def keeps(self, entry: PodEntry, outcome: Outcome, crossed_ns: int) -> bool:
        """Whether pods are held instead of evicting the victim of a pass. With a grace it is held and evicted."""
        if not (is_of_memory(outcome) and is_urgent(outcome)):
            return False
        figures = self._figures
        if self.graceful and entry.uid not in self._holds:
            self._advance(figures.look(figures.domains(), self.state, [entry.uid]), crossed_ns)
        elif not self._holds:
            self._advance(figures.look(figures.domains(), self.state, victim=entry), crossed_ns)
        return not self.graceful and self.rules.kills and self.is_in_the_way

    @property
    def hurries(self) -> bool:
        """Whether a pod's grace may be cut short: if it spends the grace held, only once the policy decides itself."""
        return not self.graceful or not self.is_in_the_way

    @property
    def is_in_the_way(self) -> bool:
        """Whether pods are held, and the policy does not decide yet."""
        return hold.is_in_the_way(self.state)

    def acted(self, uid: str, decision: Mapping[str, Any] | None) -> None:
        """Note what was done about a pod: after SIGKILL its hold ends, after SIGTERM it may run to handle it."""
        held = self._holds.get(uid)
        if held is None or decision is None or decision["observed"]:
            return
        grace_s = decision["given_s"]
        if not grace_s:
            self._remove(uid, self.state.opened or hold.SECOND_LINE)
            return
        held.decision = decision["id"]
        self._report(held, resent=False)
        self._soften(held, grace_s * 1_000_000_000)

    def went(self, uid: str, *, killed: bool) -> None:
        """The eviction of a pod is over; ``killed``: it did not end within its grace."""
        if uid in self._holds:
            self._remove(uid, (self.state.opened or "grace") if killed else hold.GONE)

    def dropped(self, uid: str) -> None:
        self._answers.gone(uid, time.monotonic_ns(), held=uid in self._holds)
        if uid in self._holds:
            self._remove(uid, hold.EVICTED if uid in self._evicted else hold.GONE)
        self._moved.pop(uid, None)
        self._evicted.discard(uid)
        self._figures.forget(uid)
        self._brakes.drop(uid)

    def go_on(self, entries: Iterable[PodEntry]) -> list[PodEntry]:
        """Continue holds of an earlier hot process, where memory is short; returns the pods of these."""
        adopted = []
        for entry in entries:
            if self._brakes.of(entry).adopt():
                adopted.append(entry)
            else:
                self._brakes.drop(entry.uid)  # opened anew when the helper has undone what is held there
        domains, uids = self._figures.domains(), [entry.uid for entry in adopted]
        since = {e.uid: ns for e in adopted if (ns := self._brakes.of(e).since_ns)}  # its time limit continues
        if adopted:
            self._advance(self._figures.look(domains, self.state, uids)._replace(since=since), 0)
        for uid in uids:
            held = self._holds.get(uid)
            if held is None:
                self._brakes.drop(uid)
            elif self._grace_ends_ns(uid):  # frozen it could not use what is left of its grace
                self._soften(held, self._grace_left_ns(held))
        return [entry for entry in adopted if entry.uid in self._holds]

    def due_ns(self) -> int | None:
        """When to sample again: while pods are held, and until the shortage is over for which the policy decides."""
        return self._next_ns if self._holds or self.state != FREE else None

    def follow(self, now_ns: int, crossed_ns: int = 0) -> bool:
        """Sample, and check one held pod unless a ceiling was crossed; whether the policy is to decide anew."""
        began_ns = time.thread_time_ns()
        figures, before, brakes = self._figures, self.state, self._brakes
        if not crossed_ns and (due := brakes.due(self._holds, now_ns)):
            self._look_after(due, now_ns)
        caps = {uid: held.cap for uid, held in self._holds.items() if held.cap}
        domains = figures.with_rates(figures.domains(), now_ns, caps, before)
        look = figures.look(domains, before, figures.who_grows_on(domains, before))
        self._advance(self._with_answers(look), crossed_ns)
        for held in [one for one in self._holds.values() if one.is_unreported]:
            self._report(held, resent=False)
        is_crossing = self.state.step == hold.ACROSS and self.state.met_ns  # to be stopped after a few MiB
        pace = PACES[0][1] if is_crossing else next(p for until, p in PACES if now_ns - self._changed_ns < until)
        rest, ended_ns = _REST * (time.thread_time_ns() - began_ns), time.monotonic_ns()
        wait = max(pace, min(rest, THAWED_NS) if brakes.running else rest)
        next_ns = ended_ns + (0 if brakes.is_late(ended_ns) else wait)
        self._next_ns = min(self._next_ns, next_ns) if crossed_ns else next_ns  # a crossing delays no sample
        return bool(self.state.opened and not before.opened) or bool(before.pods and not self.state.pods)

    def _with_answers(self, look: Look) -> Look:
        """The sample with what has become of the held pods; each answer is used once."""
        evicted, answers = [uid for uid in self.state.uids if uid in self._evicted], self._answers
        gone, self._gone = self._gone, []
        look = look._replace(gone=gone, evicted=evicted, other=answers.other, answered=answers.answered)
        answers.forget()
        return look

    def take_eviction(self, message: KubeletEviction) -> None:
        """The kubelet, the API server or a person evicts a pod."""
        if message.pod in self._registry.by_uid:
            self._evicted.add(message.pod)
        if message.for_memory and self._holds:
            self._answers.take(message.pod, time.monotonic_ns())
        if (held := self._holds.get(message.pod)) is not None:
            self._soften(held, held.grace_ns)
        self._next_ns = 0

    def take_softened(self, message: Softened) -> None:
        """The helper has braked a pod so that it may run, or cannot."""
        held = self._holds.get(message.pod)
        if held is not None and held.id == message.id and message.high:
            self._run_below(held, "limit+high" if held.cap else "high")

    def report_all(self) -> None:
        for held in self._holds.values():
            self._report(held, resent=True)
            self._brakes.of(held.entry).high_is_left = False  # the new helper has undone what the last one set
            if held.asked and self._gauge.hierarchy.version == 2:
                self._ask(held, self._grace_left_ns(held))

    def helper_lost(self) -> None:
        """The next helper undoes what this one set, before it can slow a pod again: until then it is frozen."""
        for held in self._holds.values():
            if held.soft and self._gauge.hierarchy.version == 2:
                held.soft = False
                self._put_in_force(held, held.pod)
                self._report(held, resent=False)

    def release_all(self) -> None:
        """This process ends: release all pods, also those that it has not continued to hold."""
        for uid in list(self._holds):
            self._remove(uid, "stopped")
        self._release_left(own=True)

    def _look_after(self, uid: str, now_ns: int) -> None:
        held, is_evicted = self._holds[uid], uid in self._evicted
        self._answers.hold(self._figures.up_to(uid), now_ns)
        found = self._brakes.look_after(held.entry)
        if found == GONE:
            self._gone.append(uid)
        elif found == KILL and ((is_evicted and held.cap) or self._may_run(held)):
            self._brakes.let_run(uid)
        elif found == ENDED or self._brakes.runs(uid) or (found == LOST and not is_evicted):
            cap = held.cap
            if not self._put_in_force(held, held.pod):  # vm.panic_on_oom was set, perhaps
                self._gone.append(uid)
            elif held.cap != cap:
                self._report(held, resent=False)

    def _may_run(self, held: Hold) -> bool:
        """Whether it may run until the next check, perhaps below a lower cap. Not twice in a row: a pod can cause runs
        all the time.
        """
        if self._brakes.runs(held.pod.uid):
            return False
        self._gauge.reread()
        if self._has_room(held):
            return True
        cap, least = held.cap, (self._figures.usage(held.pod.uid) or 0) + ROOM
        held.cap = min(cap, least)
        if held.cap == cap or not self._has_room(held):
            held.cap = cap
            return False
        return self._put_in_force(held, held.pod._replace(cap=least))  # until the policy sets another cap

    def _has_room(self, held: Hold) -> bool:
        room = self._figures.room(held, self._holds.values())
        return may_run(self.rules, self.state, self._figures.domains(), room)

    def _advance(self, look: Look, crossed_ns: int) -> None:
        before = self.state
        if self._gauge.hierarchy.version == 1:
            look = look._replace(freezes=False)  # pods may have to run, and v1 kills none at its cap
        for uid, usage in look.usages.items():
            self._holds[uid].most = max(self._holds[uid].most, usage)
        self.state, steps = hold.advance(self.rules, before, look)
        if self.state == before and steps == hold.Steps():
            return
        if self._record is not None:
            self._record(self.rules, before, look, self.state, steps)
        for pod in steps.hold:
            self._hold(pod, look, crossed_ns)
        for pod in steps.recap:
            self._put_in_force(self._holds[pod.uid], pod)
        for uid, why in steps.end:
            self._end(uid, why)
        for pod in (*steps.hold, *steps.recap):
            if pod.uid in self._holds:
                self._report(self._holds[pod.uid], resent=False)

    def _hold(self, pod: Pod, look: Look, crossed_ns: int) -> None:
        """Brake a pod. Where that fails it is not held, and the policy decides as if it could not be."""
        entry = self._registry.by_uid[pod.uid]
        self._last_id += 1
        lowest = min(look.domains, key=lambda signal: look.domains[signal].available - look.domains[signal].line)
        watch = next(w for w in self._gauge.watches if w.signal == lowest)
        held = Hold(self._last_id, entry, pod, crossed_ns, watch)
        if not self._put_in_force(held, pod):
            self.state = self.state._replace(pods=tuple(p for p in self.state.pods if p.uid != pod.uid))
            new = pod.uid not in self._figures.refused  # it is tried again at every sample: 200 times a second
            self._figures.refused.add(pod.uid)
            if new:
                self._log("error", "a pod could not be held", pod=entry.title, problem=self._brakes.of(entry).problem)
            return
        self._holds[pod.uid] = held
        self._answers.hold(self._figures.up_to(pod.uid), self._changed_ns)
        self._stats.add("holds")
        if crossed_ns:
            self._stats.observe_us("hold_us", (self._changed_ns - crossed_ns) // 1000)

    def _put_in_force(self, held: Hold, pod: Pod) -> bool:
        state, evicted = self.state, pod.uid in self._evicted
        runs = pod.crosses or (held.soft and not state.tight)
        is_held = self._brakes.apply(held, pod, runs=runs)
        self._changed_ns, self._next_ns = held.braked_ns, 0
        self._figures.braked()
        if is_held and evicted and not (runs or state.tight or held.asked):  # it got SIGTERM before
            self._soften(held, held.grace_ns)
        return is_held

    def _soften(self, held: Hold, grace_ns: int) -> None:
        """The pod gets SIGTERM, which it cannot handle while frozen. On v2 the helper sets a brake below which it can.
        v1 has none: the pod runs below its cap, if it has one, where a system call may fail.
        """
        if "freeze" not in held.brake:
            return
        held.asked = True
        if self._gauge.hierarchy.version == 2:
            self._ask(held, grace_ns)
        elif held.cap:
            in_force = self._brakes.of(held.entry).loosen(held.cap)
            held.cap = in_force.cap if in_force is not None else held.cap
            self._run_below(held, "limit")

    def _ask(self, held: Hold, grace_ns: int) -> None:
        self._brakes.of(held.entry).high_is_left = True
        # Without a cap in force, the helper counts with the policy's cap.
        self._send(Soften(held.id, held.entry.uid, held.cap or held.pod.cap, grace_ns))

    def _grace_left_ns(self, held: Hold) -> int:
        """For how long it may run: for its whole grace if another program evicts it, because that end is not known."""
        ends_ns = self._grace_ends_ns(held.entry.uid)
        return max(0, ends_ns - time.monotonic_ns()) if ends_ns else held.grace_ns

    def _run_below(self, held: Hold, brake: str) -> None:
        """Thaw it, below the ``brake`` that is left."""
        held.soft, held.brake = True, brake
        self._brakes.of(held.entry).thaw()
        self._report(held, resent=False)

    def _remove(self, uid: str, why: str) -> None:
        """End a hold that the policy does not end."""
        left = tuple(p for p in self.state.pods if p.uid != uid)
        self.state = self.state._replace(pods=left, step=self.state.step if left else "")
        if not left and not self.state.met_ns:
            self.state = FREE
        self._end(uid, why)

    def _end(self, uid: str, why: str) -> None:
        held = self._holds.pop(uid)
        usage = self._figures.usage(uid) or 0
        self._brakes.release(uid)
        self._figures.braked()
        self._send(held.ended(why, usage, self._figures.available(held.watch), self._answers.last))

    def _report(self, held: Hold, *, resent: bool) -> None:
        if not resent and not held.may_report(time.monotonic_ns()):
            return  # `follow` does, later
        order = self._registry.leaders()
        self._send(held.held(self.rules, self.state, self._figures.available(held.watch), order, resent=resent))
