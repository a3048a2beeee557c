"""Memory over time, as recorded."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from math import inf

#: Intervals of time [begin, end) in ns.
Spans = list[tuple[float, float]]


class TimeSeries:
    """Bytes over time, from points (ns, bytes). Before the first point its value holds, after the last one too."""

    def __init__(self, points: Iterable[tuple[int, int]]) -> None:
        latest: dict[int, int] = dict(sorted(points))
        self.times: list[int] = list(latest)
        self.values: list[int] = list(latest.values())

    def held(self, ts: float) -> int:
        """The last value recorded by ``ts``."""
        return self.values[max(0, bisect_right(self.times, ts) - 1)]

    def at(self, ts: float) -> float:
        """The value on the straight line between the points around ``ts``."""
        i = bisect_right(self.times, ts)
        if i == 0:
            return self.values[0]
        if i == len(self.times):
            return self.values[-1]
        t1, t2 = self.times[i - 1], self.times[i]
        return self.values[i - 1] + (self.values[i] - self.values[i - 1]) * (ts - t1) / (t2 - t1)

    def above(self, level: float) -> Spans:
        """When the straight lines between the points run above ``level``; the last interval may never end."""
        spans: Spans = []
        begin: float | None = self.times[0] if self.values[0] > level else None
        for i in range(1, len(self.times)):
            if (self.values[i] > level) == (begin is not None):
                continue
            at = self._meets(i - 1, level)
            if begin is None:
                begin = at
            else:
                spans.append((begin, at))
                begin = None
        return spans if begin is None else [*spans, (begin, inf)]

    def _meets(self, i: int, level: float) -> float:
        """Where the line from point i to the next one has this value."""
        v1, v2 = self.values[i], self.values[i + 1]
        if v1 == v2:
            return self.times[i]
        part = min(1.0, max(0.0, (level - v1) / (v2 - v1)))
        return self.times[i] + part * (self.times[i + 1] - self.times[i])
