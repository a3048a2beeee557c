"""Pods that v1's freezer holds and that run for a moment: a SIGKILL ends who it was sent to, or runc starts a process.

A pod may ask for either as often as it wants: it kills children of its own, and calls itself what it is not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from monitor.actions.thaw_reasons import START

#: Whether anybody lives on in a pod, and whether its brake is still in force, is looked at so often; at one that runs,
#: so often. One pod in a turn of the loop, because a look on v1 takes up to 4 ms (64 processes at 30 us, two times 64
#: cgroups at 15 us): a crossing waits for one, however many are held, and a pod for those of the others.
ASK_NS, THAWED_NS = 100_000_000, 5_000_000
#: For SIGKILLs a pod runs so many times without a pause, 0.3 s: a container of hundreds of tasks does not end in 5 ms.
#: Then it waits, each time twice as long, up to `PAUSE_NS`; after `_ANEW_NS` without one it begins anew. Two pods
#: without this, which killed children of theirs, ran half of the time.
_AT_ONCE, _FIRST_NS, _ANEW_NS = 60, 100_000_000, 10_000_000_000
#: So many times a pod that nothing keeps from taking more meanwhile: it has no cap.
_UNBOUNDED = 3
#: So often the pause is doubled, at the most.
_DOUBLED = 4
#: For a process that starts it is thawed no more often.
PAUSE_NS = 1_000_000_000


class Thaws:
    """By uid. Times are of CLOCK_MONOTONIC, in nanoseconds."""

    def __init__(self) -> None:
        #: Why, of those that run now: until they are looked at again, and all of their processes.
        self.running: dict[str, str] = {}
        self._starting: set[str] = set()  # runc starts a process in them
        self._started_ns: dict[str, int] = {}
        self._kills: dict[str, tuple[int, int]] = {}  # how often for a SIGKILL, and when last
        self._capped: set[str] = set()  # of those that run: with a cap
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

    @property
    def bounded(self) -> set[str]:
        """Those that run now with a cap."""
        return self.running.keys() & self._capped

    def may_die(self, uid: str, now_ns: int, *, is_capped: bool = True, ends: bool = False) -> bool:
        """Whether it is thawed for a SIGKILL now. ``is_capped``: below a cap; ``ends``: somebody evicts it."""
        if ends and is_capped:
            return True
        count, last_ns = self._kills.get(uid, (0, 0))
        at_once = _AT_ONCE if is_capped else _UNBOUNDED
        if count < at_once or now_ns - last_ns >= _ANEW_NS:
            return True
        return now_ns - last_ns >= min(PAUSE_NS, _FIRST_NS << min(count - at_once, _DOUBLED))

    def may_start(self, uid: str, now_ns: int) -> bool:
        """Whether it is thawed for a process that starts now: one at a time."""
        if uid not in self._starting or self.running:
            return False
        return now_ns - self._started_ns.get(uid, -PAUSE_NS) >= PAUSE_NS

    def begin(self, uid: str, why: str, now_ns: int, *, is_capped: bool = True) -> None:
        """It is thawed."""
        (self._capped.add if is_capped else self._capped.discard)(uid)
        self.running[uid] = why
        self._looked_ns[uid] = now_ns
        if why == START:
            self._started_ns[uid] = now_ns
            return
        count, last_ns = self._kills.get(uid, (0, 0))
        self._kills[uid] = (1 if now_ns - last_ns >= _ANEW_NS else min(count + 1, _AT_ONCE + _DOUBLED), now_ns)

    def end(self, uid: str) -> bool:
        """It is to be stopped again; whether it ran."""
        return self.running.pop(uid, "") != ""

    def released(self, uid: str) -> None:
        """It is held no more. How often it was thawed counts if it is held again."""
        self._starting.discard(uid)
        self._capped.discard(uid)
        self._looked_ns.pop(uid, None)
        self.running.pop(uid, None)

    def forget(self, uid: str) -> None:
        """It is gone."""
        self.released(uid)
        self._started_ns.pop(uid, None)
        self._kills.pop(uid, None)
