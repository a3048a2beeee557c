"""How fast each pod and the node grow, from the frames of `outrace top` and from what the daemon remembers."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

#: Growth is over this long: the daemon's own rate (`monitor.race.forecast`) is of the last seconds too, and shorter
#: spans show every batch of 64 pages as a burst.
SPAN_S = 10.0
#: Two looks closer than this say nothing about a rate.
_LEAST_S = 0.5
#: Looks kept: of a frame each second, more than the span, whenever the last one before it was.
_KEPT = 120


class Trends:
    """Working sets in bytes by key (the uid of a pod, or a domain), over the last frames. Times are seconds."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, int]]] = {}

    def note(self, at_s: float, sizes: Mapping[str, int]) -> None:
        """What everybody has now; who is missing is forgotten."""
        self._seen = {key: self._seen.get(key) or deque(maxlen=_KEPT) for key in sizes}
        for key, size in sizes.items():
            self._seen[key].append((at_s, size))

    def remember(self, at_s: float, before: Mapping[str, Any] | None, now: Mapping[str, int]) -> None:
        """Before the first `note`: what pods had (`WorkingSets.to_json`, of the time ``at_s``). A pod that is not in it
        did not move.
        """
        if before is None:
            return
        moved = {one["pod"]: one for one in before["pods"]}
        since_s = at_s - (before["ts_ns"] - before["since_ns"]) / 1e9
        for uid, size in now.items():
            if uid in self._seen:
                continue
            one = moved.get(uid)
            points = [(since_s, size)]
            if one is not None:
                points = [(at_s - (before["ts_ns"] - ns) / 1e9, count) for ns, count in one["points"]]
            self._seen[uid] = deque(points, maxlen=_KEPT)

    def growth(self, key: str) -> float | None:
        """Bytes a second over the last `SPAN_S`; None: not known yet."""
        seen = self._seen.get(key)
        if not seen:
            return None
        end_s, end = seen[-1]
        # A figure holds until the next one: at the start of the span it is the last one before.
        before = [point for point in seen if point[0] <= end_s - SPAN_S]
        start_s, start = (end_s - SPAN_S, before[-1][1]) if before else seen[0]
        return None if end_s - start_s < _LEAST_S else (end - start) / (end_s - start_s)
