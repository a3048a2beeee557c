"""Pods that v1's freezer holds and that run for a moment: a SIGKILL ends who it was sent to, or runc starts a process.

A pod may ask for either as often as it wants: it kills children of its own, and calls itself what it is not. What it
takes meanwhile ends at its cap, which is lowered for the run, or, where it has none, far above the second line
(`monitor.hot.hold_apply`): so nothing counts how often it runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from monitor.actions.thaw_reasons import START

#: Whether anybody lives on in a pod, and whether its brake is still in force, is looked at so often; at one that runs,
#: so often. One pod in a turn of the loop, because a look on v1 takes up to 4 ms (64 processes at 30 us, two times 64
#: cgroups at 15 us): a crossing waits for one, however many are held, and a pod for those of the others.
ASK_NS, THAWED_NS = 100_000_000, 5_000_000


class Thaws:
    """By uid. Times are of CLOCK_MONOTONIC, in nanoseconds."""

    def __init__(self) -> None:
        #: Why, of those that run now: until they are looked at again, and all of their processes.
        self.running: dict[str, str] = {}
        self._starting: set[str] = set()  # runc starts a process in them
        self._looked_ns: dict[str, int] = {}  # when each was looked at, or let run
        self._ran = False  # the last look was at one that runs

    def due(self, held: Collection[str], now_ns: int) -> str:
        """The pod to look at in this turn, "" for none: one that runs, or, in turns with those, one that does not. Of
        each kind it is the pod with the oldest look.
        """
        runs = self._longest_ago((uid for uid in self.running if uid in held), now_ns - THAWED_NS)
        other = self._longest_ago((uid for uid in held if uid not in self.running), now_ns - ASK_NS)
        self._ran = bool(runs) and not (self._ran and other)
        found = runs if self._ran else other
        if found:
            self._looked_ns[found] = now_ns
        return found

    def is_late(self, now_ns: int) -> bool:
        """Whether one that runs is to be looked at as soon as the loop has turned."""
        return bool(self._longest_ago(self.running, now_ns - THAWED_NS))

    def _longest_ago(self, uids: Iterable[str], before_ns: int) -> str:
        found = min(uids, key=lambda uid: self._looked_ns.get(uid, 0), default="")
        return found if self._looked_ns.get(found, 0) <= before_ns else ""

    @property
    def started(self) -> str:
        """The pod that runs so that a process starts; "" for none."""
        return next((uid for uid, why in self.running.items() if why == START), "")

    def found(self, uid: str, waits: str) -> None:
        """A look at a pod found that this waits: `KILL`, `START` or nothing."""
        (self._starting.add if waits == START else self._starting.discard)(uid)

    def may_start(self, uid: str) -> bool:
        """Whether it is thawed for a process that starts: one pod at a time."""
        return uid in self._starting and not self.running

    def begin(self, uid: str, why: str, now_ns: int) -> None:
        """It is thawed."""
        self.running[uid] = why
        self._looked_ns[uid] = now_ns

    def end(self, uid: str) -> bool:
        """It is to be stopped again; whether it ran."""
        return self.running.pop(uid, "") != ""

    def released(self, uid: str) -> None:
        """It is held no more."""
        self._starting.discard(uid)
        self._looked_ns.pop(uid, None)
        self.running.pop(uid, None)
