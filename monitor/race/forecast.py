"""How long until a threshold, or until the OOM killer, from how memory grew; and how good such forecasts were.

The growth is the median of the slopes between all pairs of points (Theil-Sen): a single jump, or a third of the points
being wild, does not move it. Several windows are looked at, because a burst shows in the short one only and a slow leak
in the long one only: the shortest window with enough points gives the growth, all of them give the uncertainty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from monitor.race.codec import Record
from monitor.race.events import Sample, Watched

#: (ns, bytes)
Point = tuple[int, int]

#: Windows looked at, in ns: from a burst to a leak. The last is what the flight recorder holds.
WINDOWS_NS = (1_000_000_000, 3_000_000_000, 10_000_000_000, 30_000_000_000)
#: Fewer points do not show their own scatter.
MIN_POINTS = 4
#: Most points of a window that are compared pair by pair: 32 make 496 slopes, a tenth of a millisecond.
_MOST_POINTS = 32
#: The part of the pairwise slopes within the interval of a prediction.
COVERAGE = 0.8


@dataclass(frozen=True, slots=True)
class Forecast(Record):
    """When `level` (bytes) is reached if growth goes on. `rate` in bytes/s; times are ns from `at_ns`.

    `in_ns` None: not growing. `soonest_ns`..`latest_ns` is the interval it is expected in (`latest_ns` None: maybe
    never). 0 if it is reached already.
    """

    at_ns: int
    level: int
    rate: float
    in_ns: int | None
    soonest_ns: int | None
    latest_ns: int | None


@dataclass(frozen=True, slots=True)
class Score(Record):
    """How forecasts did against what happened: `n` that could be judged, of `given`.

    Errors are (forecast - truth) / truth of the time left: `bias` the median, `error_p50`, `error_p90` of the absolute
    ones; `covered` the part of the truths inside the interval. None where there was nothing to judge.
    """

    given: int
    n: int
    bias: float | None
    error_p50: float | None
    error_p90: float | None
    covered: float | None


def slope(points: Sequence[Point]) -> float | None:
    """Bytes/s: the median of all pairwise slopes; None for fewer than two moments."""
    found = slopes(points)
    return quantile(found, 0.5) if found else None


def slopes(points: Sequence[Point]) -> list[float]:
    """All pairwise slopes in bytes/s, sorted. Of many points, evenly chosen ones."""
    if len(points) > _MOST_POINTS:
        step = (len(points) - 1) / (_MOST_POINTS - 1)
        points = [points[round(i * step)] for i in range(_MOST_POINTS)]
    return sorted([(y2 - y1) * 1e9 / (t2 - t1) for (t1, y1), (t2, y2) in combinations(points, 2) if t2 != t1])


def forecast(points: Sequence[Point], level: int, at_ns: int | None = None) -> Forecast | None:
    """When ``level`` is reached, from ``points`` in order of time (``at_ns``: now, else the last one's time).

    None if there are too few points to say anything.
    """
    if not points:
        return None
    now = points[-1][0] if at_ns is None else at_ns
    points = [p for p in points if p[0] <= now]
    found = [s for s in (_window(points, now, width) for width in WINDOWS_NS) if s is not None]
    if not found:
        return None
    rate = quantile(found[0], 0.5)
    tail = (1 - COVERAGE) / 2
    medians = [quantile(s, 0.5) for s in found]
    fastest = max(quantile(found[0], 1 - tail), *medians)
    slowest = min(quantile(found[0], tail), *medians)
    last_ns, last = points[-1]
    here = last + rate * (now - last_ns) / 1e9 if rate > 0 else float(last)
    left = level - here
    return Forecast(now, level, rate, _until(left, rate), _until(left, fastest), _until(left, slowest))


def _window(points: Sequence[Point], now: int, width: int) -> list[float] | None:
    recent = [p for p in points if p[0] >= now - width]
    found = slopes(recent) if len(recent) >= MIN_POINTS else []
    return found or None


def _until(left: float, rate: float) -> int | None:
    if left <= 0:
        return 0
    return round(left / rate * 1e9) if rate > 0 else None


def score(pairs: Iterable[tuple[Forecast, int | None]]) -> Score:
    """Judge forecasts, each with when its level was really reached (ns on the same clock; None: never).

    One that said "never" of what came, or a time for what never came, has no error in percent; it counts in `given`
    and, as outside its interval (or inside, if that was open), in `covered`.
    """
    errors: list[float] = []
    given = inside = judged = 0
    for made, reached_ns in pairs:
        given += 1
        left = None if reached_ns is None else reached_ns - made.at_ns
        if left is not None and left <= 0:
            continue  # forecast after the fact: proves nothing
        judged += 1
        inside += _within(made, left)
        if left is not None and made.in_ns is not None:
            errors.append((made.in_ns - left) / left)
    errors.sort()
    sizes = sorted([abs(e) for e in errors])
    return Score(
        given,
        judged,
        quantile(errors, 0.5) if errors else None,
        quantile(sizes, 0.5) if errors else None,
        quantile(sizes, 0.9) if errors else None,
        inside / judged if judged else None,
    )


def _within(made: Forecast, left: int | None) -> bool:
    if left is None:
        return made.latest_ns is None
    soon = made.soonest_ns
    # Half a nanosecond of rounding is no miss.
    return soon is not None and soon - 1 <= left and (made.latest_ns is None or left <= made.latest_ns + 1)


def quantile(ordered: Sequence[float], q: float) -> float:
    """The ``q`` quantile of a sorted sequence that is not empty, interpolated."""
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    if ordered[low] == ordered[high]:
        return ordered[low]
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


@dataclass(frozen=True, slots=True)
class DomainForecast(Record):
    """What is ahead of one domain or pod.

    `threshold`: until the nearest of its thresholds is crossed (working set); None: it has none, or nothing is known.
    `oom`: until its limit is hit by what the kernel cannot drop: usage without page cache. (With it a file copy, which
    fills every node to its limit, would be an OOM kill in a few seconds again and again.)
    """

    name: str
    pod: str | None
    threshold: Forecast | None
    oom: Forecast | None


def domain_forecasts(
    samples: Iterable[Sample], watched: Iterable[Watched] = (), at_ns: int | None = None
) -> list[DomainForecast]:
    """One forecast for each domain or cgroup among ``samples`` (in order of time), by name."""
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.domain, []).append(sample)
    levels: dict[str, int] = {}
    for w in watched:
        level = w.capacity - w.quantity
        levels[w.domain] = min(level, levels.get(w.domain, level))
    made = []
    for name in sorted(found):
        own = found[name]
        sets: list[Point] = [(s.ts_ns, s.working_set) for s in own]
        held: list[Point] = [(s.ts_ns, max(0, s.usage - s.inactive_file - s.active_file)) for s in own]
        limit = own[-1].limit
        near = forecast(sets, levels[name], at_ns) if name in levels else None
        made.append(
            DomainForecast(name, own[-1].pod, near, forecast(held, limit, at_ns) if limit is not None else None)
        )
    return made
