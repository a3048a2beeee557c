"""The brakes of pods, ready before they are needed: to open one takes 0.3 ms, to put it in force 0.1."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from monitor.actions.ledger import Ledger
from monitor.actions.pod_brake import PodBrake
from monitor.actions.thaw_reasons import CGROUPS, KILL
from monitor.hot.registry import PodEntry
from monitor.hot.thaws import Thaws
from monitor.kernel import cgroup_procs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.troubles import TROUBLES

#: Kept at most, besides those in force: the first of the order, and who moved last. 6 descriptors each.
MOST = 8
#: What was opened is looked at again after this long: containers come and go, and so may a pod.
REFRESH_NS = 5_000_000_000
#: What a release could not do is tried again so often: the kernel refused. A part of what it could goes on at once, and
#: then rests so many times as long as it took.
AGAIN_NS, _REST = 1_000_000_000, 4
#: What a look at one that is in force finds: nobody is left of the pod, somebody else took the brake away, a SIGKILL
#: waits until it runs, or it has run for a process that was to end or to start.
GONE, LOST, DYING, ENDED = "gone", "lost", "dying", "ended"


class HoldBrakes:
    """By uid. One that cannot be used is kept as well, so that it is not tried at every crossing."""

    def __init__(self, hierarchy: Hierarchy, journal: Ledger, kind: str) -> None:
        self._hierarchy, self._journal, self._kind = hierarchy, journal, kind
        self._brakes: dict[str, PodBrake] = {}
        self._used_ns: dict[str, int] = {}  # when it was last wanted, the longest ago first
        self._looked_ns: dict[str, int] = {}
        self.thaws = Thaws()
        self._left: list[PodBrake] = []  # released, and not all is back
        self._next_ns = 0

    def prepare(self, entries: Iterable[PodEntry]) -> list[PodEntry]:
        """Have these ready, and return those that are left for the next call. Not for the moment of a crossing: one is
        opened or looked at again in a call, because a crossing that comes meanwhile waits.
        """
        now, left, opened = time.monotonic_ns(), [], False
        for entry in entries:
            is_due = now - self._looked_ns.get(entry.uid, -REFRESH_NS) >= REFRESH_NS
            if is_due and opened:
                left.append(entry)
                continue
            known = self._brakes.get(entry.uid)
            brake = self.of(entry)
            if is_due:
                opened = True
                self._looked_ns[entry.uid] = now
                if brake is known:
                    brake.refresh()
        idle = [uid for uid in self._used_ns if not (brake := self._brakes[uid]).is_held and brake.is_clear]
        for uid in idle[:-MOST]:
            self.drop(uid)
        return left

    def of(self, entry: PodEntry) -> PodBrake:
        """The brake of a pod, opened now if it was not ready."""
        now = time.monotonic_ns()
        brake = self._brakes.get(entry.uid)
        if brake is not None and brake.cgroup != entry.cgroup:  # made again elsewhere
            self.drop(entry.uid)
            brake = None
        if brake is None:
            brake = PodBrake(entry.uid, entry.cgroup, self._hierarchy, self._journal, self._kind)
            self._brakes[entry.uid] = brake
            self._looked_ns[entry.uid] = now
        self._used_ns.pop(entry.uid, None)
        self._used_ns[entry.uid] = now
        return brake

    def look_after(self, entry: PodEntry) -> str:
        """Whether it is still held: `GONE`, `LOST`, `DYING`, `ENDED`, "" where there is nothing to do."""
        try:
            if cgroup_procs.empty(entry.cgroup, CGROUPS):
                return GONE
        except OSError as error:
            TROUBLES.note("cgroup", error, entry.uid)
        brake = self._brakes.get(entry.uid)
        if brake is None:
            return ""
        if brake.usage() is None:  # made anew under its path: nothing of this one is in force there
            return GONE
        waits = brake.waits_for_thaw()
        self.thaws.found(entry.uid, waits)
        if waits == KILL:
            return DYING
        if self.thaws.end(entry.uid):  # a probe's process, perhaps: the pod lives on
            return ENDED
        return "" if brake.in_force() else LOST

    def may_start(self, uid: str) -> bool:
        """Whether runc starts a process in a held pod, and no pod runs."""
        brake = self._brakes.get(uid)
        return brake is not None and brake.is_held and self.thaws.may_start(uid)

    def let_run(self, uid: str, why: str, cap: int) -> None:
        """Let a held pod run until the next look, for `KILL` or `START`. ``cap``: meanwhile, in bytes; 0: as it is."""
        self._brakes[uid].thaw(cap)
        self.thaws.begin(uid, why, time.monotonic_ns())

    @property
    def bounded(self) -> set[str]:
        """Those that run for a moment with a cap."""
        return {uid for uid in self.thaws.running if self._brakes[uid].is_capped}

    def get(self, uid: str) -> PodBrake | None:
        return self._brakes.get(uid)

    def release(self, uid: str) -> None:
        """It is held no more. What does not fit into a turn is left to `go_on`."""
        self.thaws.released(uid)
        brake = self._brakes.get(uid)
        if brake is not None:
            brake.release()
            self._follow(brake)

    def drop(self, uid: str) -> None:
        """Release it, and let go of it as soon as all of it is back."""
        brake = self._brakes.pop(uid, None)
        self._used_ns.pop(uid, None)
        self._looked_ns.pop(uid, None)
        self.thaws.released(uid)
        if brake is not None:
            brake.release()
            self._follow(brake)
            if brake.is_clear:
                brake.close()

    def _follow(self, brake: PodBrake) -> None:
        if not brake.is_clear and brake not in self._left:
            self._left.insert(0, brake)
            self._next_ns = 0

    def due_ns(self) -> int | None:
        """When to go on with what is released and not all back; None where nothing is."""
        return self._next_ns if self._left else None

    def go_on(self, _: int) -> bool:
        """One of those, a part that fits into a turn; whether there is more to do at once."""
        began_ns = time.thread_time_ns()
        brake = self._left.pop(0)
        more = brake.go_on()
        if brake.is_clear and self._brakes.get(brake.uid) is not brake:
            brake.close()
        elif not (brake.is_clear or brake.is_held):  # held again it will be released again
            self._left.insert(0 if more else len(self._left), brake)
        pause_ns = _REST * (time.thread_time_ns() - began_ns) if more else AGAIN_NS // max(1, len(self._left))
        self._next_ns = time.monotonic_ns() + pause_ns
        return more

    def have_changed(self, cgroup: Path) -> bool:
        """Whether one of them has changed something of it that is not back."""
        return any(one.cgroup == cgroup and not one.is_clear for one in (*self._brakes.values(), *self._left))

    def finish(self, until_ns: int) -> None:
        """This process ends: go on until then with what can be done. The next start takes back what is left."""
        while time.monotonic_ns() < until_ns and any(self.go_on(0) for _ in list(self._left)):
            pass
