"""The brakes of pods, ready before they are needed: to open one takes 0.3 ms, to put it in force 0.1."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from monitor.actions.ledger import LEFT, Ledger
from monitor.hold.pod_brake import PANICS, PodBrake, panics_at_cap
from monitor.kernel import cgroup_procs
from monitor.kernel.cgroup_procs import CGROUPS
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.troubles import TROUBLES
from monitor.link.messages import PodHeld, PodReleased, Rows
from monitor.policy import hold
from monitor.policy.eviction_pass import DEFAULT_POD_GRACE_S
from monitor.policy.hold import Pod, Rules, State
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
            second_line=hold.kill_threshold(left) if rules.kills else 0,
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


#: Open brakes kept at most, besides those in force: of the first of the order, and of the pods that moved last. 6
#: descriptors each.
MOST = 8
#: An open brake is checked after this long: containers start and end, and a pod's cgroup may be made anew.
REFRESH_NS = 5_000_000_000
#: A release that the kernel refused is tried again this often.
AGAIN_NS = 1_000_000_000
#: What a check of a brake in force finds: no process is left of the pod, another program removed the brake, a SIGKILL
#: waits in it; or the brake is to be put in force anew: the pod has run for a SIGKILL, or may not be held any more
#: (vm.panic_on_oom was set).
GONE, LOST, KILL, ENDED = "gone", "lost", "kill", "ended"

#: Time between two checks of a held pod: whether a process lives in it, whether its brake is still in force; and of one
#: that runs. One pod in a turn of the loop, because a check on v1 takes up to 4 ms (64 processes at 30 us, two times 64
#: cgroups at 15 us): a crossing waits for one check, however many pods are held, and a pod for those of the others.
ASK_NS, THAWED_NS = 100_000_000, 5_000_000
#: A pod may allocate this much until the next check: 5 ms at 3 GiB/s, and the check (1.5 ms for 64 processes, 4.3 at
#: most).
UNTIL_NEXT_LOOK = 24 << 20


class HoldBrakes:
    """By uid. One that cannot be used is kept as well, so that it is not tried at every crossing.

    A pod that v1's freezer holds runs while a SIGKILL waits in it. The pod can cause that as often as it wants: it can
    kill its own children. Its growth meanwhile ends at its cap, so nothing counts how often it runs
    (`monitor.policy.hold.may_run`).
    """

    def __init__(self, hierarchy: Hierarchy, journal: Ledger) -> None:
        self._hierarchy, self._journal = hierarchy, journal
        self._brakes: dict[str, PodBrake] = {}  # the one that was wanted last is the last
        self._ran = False  # the last check was of a pod that runs
        self._refused: list[PodBrake] = []  # releases that the kernel refused
        self._next_ns = 0

    def prepare(self, entries: Iterable[PodEntry]) -> list[PodEntry]:
        """Open the brakes of these, and return those that are left for the next call. Not for the moment of a crossing:
        a call opens or checks one brake, because a crossing meanwhile waits.
        """
        now, left, opened = time.monotonic_ns(), [], False
        for entry in entries:
            known = self._brakes.get(entry.uid)
            is_due = known is None or now - known.opened_ns >= REFRESH_NS
            if is_due and opened:
                left.append(entry)
                continue
            brake = self.of(entry)
            if is_due:
                opened, brake.opened_ns = True, now
                if brake is known:
                    brake.refresh()
        idle = [uid for uid, brake in self._brakes.items() if not brake.is_held and brake.is_clear]
        for uid in idle[:-MOST]:
            self.drop(uid)
        return left

    def of(self, entry: PodEntry) -> PodBrake:
        """The brake of a pod, opened now if it was not ready."""
        brake = self._brakes.get(entry.uid)
        if brake is not None and brake.cgroup != entry.cgroup:  # the pod was made again elsewhere
            self.drop(entry.uid)
            brake = None
        if brake is None:
            brake = PodBrake(entry.uid, entry.cgroup, self._hierarchy, self._journal)
            brake.opened_ns = time.monotonic_ns()
        elif brake.problem in (LEFT, PANICS):  # not any more, perhaps: 0.3 ms
            brake.refresh()
        self._brakes.pop(entry.uid, None)
        self._brakes[entry.uid] = brake
        return brake

    def due(self, held: Iterable[str], now_ns: int) -> str:
        """The pod to check in this turn, "" for none: alternately one that runs and one that does not. Of each kind it
        is the pod with the oldest check.
        """
        brakes = [brake for uid in held if (brake := self._brakes.get(uid)) is not None]
        runs = _longest_ago((brake for brake in brakes if brake.runs), now_ns - THAWED_NS)
        other = _longest_ago((brake for brake in brakes if not brake.runs), now_ns - ASK_NS)
        self._ran = bool(runs) and not (self._ran and other)
        found = runs if self._ran else other
        if found is None:
            return ""
        found.looked_ns = now_ns
        return found.uid

    @property
    def running(self) -> list[PodBrake]:
        return [brake for brake in self._brakes.values() if brake.runs]

    def runs(self, uid: str) -> bool:
        brake = self._brakes.get(uid)
        return brake is not None and brake.runs

    def is_late(self, now_ns: int) -> bool:
        """Whether a pod that runs is to be checked as soon as the loop has turned."""
        return _longest_ago(self.running, now_ns - THAWED_NS) is not None

    def look_after(self, entry: PodEntry) -> str:
        """Whether it is still held: `GONE`, `LOST`, `KILL`, `ENDED`, "" where there is nothing to do."""
        try:
            if cgroup_procs.empty(entry.cgroup, CGROUPS):
                return GONE
        except OSError as error:
            TROUBLES.note("cgroup", error, entry.uid)
        brake = self.of(entry)
        if brake.usage() is None:  # its cgroup was made anew: nothing of this brake is in force there
            return GONE
        if brake.waits_for_thaw():
            return KILL
        ran, brake.runs = brake.runs, False
        if ran or panics_at_cap(self._hierarchy.version):
            return ENDED
        return "" if brake.in_force() else LOST

    def let_run(self, uid: str) -> None:
        brake = self._brakes[uid]
        brake.thaw()
        brake.runs, brake.looked_ns = True, time.monotonic_ns()

    def get(self, uid: str) -> PodBrake | None:
        return self._brakes.get(uid)

    def release(self, uid: str) -> None:
        """Release a pod."""
        brake = self._brakes.get(uid)
        if brake is not None:
            self._release(brake)

    def drop(self, uid: str) -> None:
        """Release it, and close its brake as soon as all is restored."""
        brake = self._brakes.pop(uid, None)
        if brake is not None:
            self._release(brake)
            if brake.is_clear:
                brake.close()

    def _release(self, brake: PodBrake) -> None:
        brake.runs, brake.looked_ns = False, 0
        brake.release()
        if not brake.is_clear and brake not in self._refused:
            self._refused.append(brake)
            self._next_ns = time.monotonic_ns() + AGAIN_NS

    def due_ns(self) -> int | None:
        """When to try refused releases again; None where there is none."""
        return self._next_ns if self._refused else None

    def try_again(self, now_ns: int) -> None:
        refused, self._refused, self._next_ns = self._refused, [], now_ns + AGAIN_NS
        for brake in refused:
            if not brake.is_held:  # held again it will be released again
                self._release(brake)
            if brake.is_clear and self._brakes.get(brake.uid) is not brake:
                brake.close()

    # held pods

    def apply(self, held: Hold, pod: Pod, *, runs: bool) -> bool:
        """Stop the pod at its cap, or let it run below it; False where nothing is in force."""
        brake = self.of(held.entry)
        brake.runs = False
        in_force = brake.loosen(pod.cap) if runs else brake.apply(pod.cap)
        held.pod, held.braked_ns = pod, time.monotonic_ns()
        if in_force is None:
            self.release(pod.uid)  # it has released itself; what it could not restore is tried again
            return False
        held.brake, held.cap = in_force.brake, in_force.cap
        return True


def _longest_ago(brakes: Iterable[PodBrake], before_ns: int) -> PodBrake | None:
    found = min(brakes, key=lambda brake: brake.looked_ns, default=None)
    return found if found is not None and found.looked_ns <= before_ns else None
