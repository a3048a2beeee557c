"""Memory over time, as recorded, and the pod a kubelet would have taken: it ranks pods by figures as old as cAdvisor's
last look at each of them.

cAdvisor looks at a container, waits for an interval times 1 to 2 (its jitter), and looks again. The interval is 10 s in
a kubelet, and goes up to 15 s for a container in which nothing moved. So at a moment picked at random a figure is up to
20 (30) s old, each pod's on its own. From that the probability of every pod to be the first is worked out exactly for
values recorded at moments: no dice.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf

from monitor.policy.ranking import Candidate, Key, memory_key

#: Intervals of time [begin, end) in ns.
Spans = list[tuple[float, float]]

BUSY_NS = 10_000_000_000
QUIET_NS = 15_000_000_000
#: A working set that stayed within this many bytes did not move.
_STILL = 2**20
#: Most different values of one pod.
_MOST = 64


class TimeSeries:
    """Bytes over time, from points (ns, bytes). Before the first point its value holds, after the last one too."""

    def __init__(self, points: Iterable[tuple[int, int]]) -> None:
        latest: dict[int, int] = dict(sorted(points))
        self.times: list[int] = list(latest)
        self.values: list[int] = list(latest.values())

    def __bool__(self) -> bool:
        return bool(self.times)

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


def age_below(age_ns: float, interval_ns: float) -> float:
    """The probability that a figure is at most so old, at a moment picked at random.

    Waits are evenly spread over [d, 2d], so the density of the age is P(wait > age) / (1.5 d).
    """
    d = interval_ns
    if age_ns <= 0:
        return 0.0
    if age_ns <= d:
        return age_ns / (1.5 * d)
    if age_ns >= 2 * d:
        return 1.0
    return (d + (2 * d * (age_ns - d) - (age_ns**2 - d**2) / 2) / d) / (1.5 * d)


def stale_usage(series: TimeSeries, at_ns: float) -> list[tuple[int, float]]:
    """The values cAdvisor may hold of a pod at ``at_ns``, each with its probability."""
    oldest = at_ns - 2 * QUIET_NS
    recent = series.values[max(0, bisect_right(series.times, oldest) - 1) : bisect_left(series.times, at_ns) + 1]
    interval = BUSY_NS if not recent or max(recent) - min(recent) > _STILL else QUIET_NS
    begin = at_ns - 2 * interval
    low, high = bisect_right(series.times, begin), bisect_left(series.times, at_ns)
    moments = series.times[low:high]
    if len(moments) > _MOST:
        step = (len(moments) - 1) / (_MOST - 1)
        moments = [moments[round(i * step)] for i in range(_MOST)]
    found: dict[int, float] = {}
    edges = [begin, *moments, at_ns]
    for left, right in pairwise(edges):
        chance = age_below(at_ns - left, interval) - age_below(at_ns - right, interval)
        value = series.held(left)
        found[value] = found.get(value, 0.0) + chance
    return list(found.items())


def first_victim(
    pods: Sequence[Candidate],
    series_by_uid: Mapping[str, TimeSeries],
    at_ns: float,
    key: Callable[[Candidate], Key] = memory_key,
) -> dict[str, float]:
    """The probability of each pod (uid) to be the first of the order by ``key``, by figures of random age.

    Pods without a series are ranked by the usage they have as candidates. Critical pods are never taken.
    """
    atoms: list[tuple[Key, str, float]] = []
    for pod in pods:
        if pod.critical:
            continue
        series = series_by_uid.get(pod.uid)
        values: list[tuple[int | None, float]] = [(pod.usage, 1.0)]
        if series:
            values = [(value, chance) for value, chance in stale_usage(series, at_ns)]
        atoms += [(key(replace(pod, usage=value)), pod.uid, p) for value, p in values if p > 0]
    atoms.sort()
    left = dict.fromkeys((uid for _, uid, _ in atoms), 1.0)  # of each pod, the probability of a later place than here
    product = 1.0
    found: dict[str, float] = {}
    for _, uid, chance in atoms:
        found[uid] = found.get(uid, 0.0) + chance * product / left[uid]
        rest = left[uid] - chance
        if rest < 1e-12:
            break  # this pod is here or before for certain: nobody after it can be the first
        product *= rest / left[uid]
        left[uid] = rest
    return found
