"""What pods have, for the cause of a stall (`monitor.side.stalls`): bytes that reclaim cannot take, cache, limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from monitor.kernel import limits
from monitor.policy import stall
from monitor.policy.stall import KUBEPODS, MACHINE, NOTHING, Size
from monitor.side.node_state import Figures, NodeState, label

#: A pod is at its limit if less than this, or a 64th of the limit, is left.
_NEAR_LIMIT = 1 << 20


@dataclass(eq=False)
class Sizes:
    node: NodeState
    figures: Figures

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
