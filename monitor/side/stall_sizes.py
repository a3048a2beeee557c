"""What pods have and had, for the cause of a stall (`monitor.side.stalls`): bytes that reclaim cannot take, cache,
limits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from monitor.kernel import limits
from monitor.policy import stall
from monitor.policy.stall import KUBEPODS, MACHINE, NOTHING, Size
from monitor.side.node_state import Figures, NodeState, label

#: A pod is at its limit if less than this, or a 64th of the limit, is left.
_NEAR_LIMIT = 1 << 20
#: Between two looks at what all pods have, to measure growth: 110 pods cost 5 ms; and for the cause of a stall: 10 ms.
_GROWTH_PACE_NS, _NOW_NS = 5_000_000_000, 1_000_000_000


@dataclass(eq=False)
class Sizes:
    node: NodeState
    figures: Figures
    order: Callable[[], Sequence[str]]
    _grown: deque[tuple[int, Mapping[str, Size]]] = field(default_factory=deque)
    _first: dict[str, int] = field(default_factory=dict)  # uid -> bytes that reclaim could not take when seen first
    _now: tuple[int, Mapping[str, Size], Sequence[str]] = (-_NOW_NS, {}, ())

    def look(self, now_ns: int, growth: bool) -> None:
        """Note what new pods have; with ``growth`` also what all have."""
        pods = self.node.pods
        self._first = {uid: kept for uid, kept in self._first.items() if uid in pods}
        for uid, found in pods.items():
            if uid not in self._first and (has := self.of(found.cgroup)) is not None:
                self._first[uid] = has.kept
        if not growth or not self.node.synced:  # what a late list of pods adds is no growth
            return
        if not self._grown or now_ns >= self._grown[-1][0] + _GROWTH_PACE_NS:
            self._grown.append((now_ns, self.all()))
            while self._grown[0][0] < now_ns - stall.GROWTH_NS - _GROWTH_PACE_NS:
                self._grown.popleft()

    @property
    def before(self) -> Mapping[str, Size]:
        """What each had `GROWTH_NS` ago, by uid; empty: not known."""
        return self._grown[0][1] if self._grown else {}

    def most(self, key: str) -> Size:
        """The most that a pod, or all of them, had since then."""
        return max((has[key] for _, has in self._grown if key in has), key=sum, default=NOTHING)

    def now(self, now_ns: int) -> tuple[Mapping[str, Size], Sequence[str]]:
        """What each has, and the uids of those that may be evicted, in order."""
        if now_ns - self._now[0] >= _NOW_NS:
            self._now = now_ns, self.all(), list(self.order())
        return self._now[1:]

    def took(self, uid: str, before: Mapping[str, Size], now_ns: int) -> int:
        """Bytes that reclaim cannot take and that a pod surely took since ``before``. One that was listed late may have
        had all that it had at first; a new one has the place of those that are gone.
        """
        if uid in before:
            return self.kept(uid) - before[uid].kept
        had = self._first.get(uid)
        return 0 if had is None else self.kept(uid) - had - stall.gone(before, self.now(now_ns)[0])

    def all(self) -> dict[str, Size]:
        """By uid; also of `MACHINE` and `KUBEPODS`."""
        places = {MACHINE: self.node.node_path, **{uid: one.cgroup for uid, one in self.node.pods.items()}}
        if self.node.kubepods is not None:
            places[KUBEPODS] = self.node.kubepods
        return {uid: found for uid, path in places.items() if (found := self.of(path)) is not None}

    def of(self, cgroup: Path) -> Size | None:
        reading = self.figures.used(cgroup, counted=False)
        if reading is None:
            return None
        cache = min(reading.usage, reading.inactive_file + reading.active_file)
        return Size(reading.usage - cache, cache)

    def kept(self, uid: str) -> int:
        """Bytes of a pod that reclaim cannot take; 0 without such a pod."""
        found = self.node.pods.get(uid)
        return 0 if found is None else (self.of(found.cgroup) or NOTHING).kept

    def limit(self, uid: str) -> str:
        """Whether a pod, or a container of it, is at its limit, or at its memory.high."""
        hierarchy = self.node.hierarchy
        found = self.node.pods.get(uid)
        for cgroup in () if found is None else (found.cgroup, *found.containers.values()):
            own, has = limits.read(hierarchy, cgroup, swap=False) or {}, self.figures.used(cgroup, counted=False)
            for name, what in (("max", stall.OWN_LIMIT), ("high", stall.THROTTLED)):
                line = own.get(name)
                if line is not None and has is not None and line - has.usage < max(_NEAR_LIMIT, line // 64):
                    return what
        return ""

    def swapped(self, uids: Iterable[str]) -> dict[str, int]:
        """Bytes that these pods have in swap, where that is known: 110 pods: 10 ms."""
        cgroups = {uid: self.node.pods[uid].cgroup for uid in uids if uid in self.node.pods}
        found = {uid: limits.read(self.node.hierarchy, cgroup) or {} for uid, cgroup in cgroups.items()}
        return {uid: has["swap"] for uid, has in found.items() if "swap" in has}

    def name(self, uid: str) -> str:
        found = self.node.pods.get(uid)
        return "" if found is None else label(found.pod)
