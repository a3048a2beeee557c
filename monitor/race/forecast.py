"""How long until a threshold, or until the OOM killer, from how memory grew; and how good such forecasts were.

The growth is the median of the slopes between all pairs of points (Theil-Sen) of the last three seconds: a single jump
does not move it. Two things say how far off such forecasts usually are: how unevenly memory grew in the last six, and
how far off forecasts of where memory is now would have been in the last thirty. The interval around a forecast is what
held for `LEVEL` of those that were alike in both, in recorded runs of 26 kinds of growth. Where that says too little,
there is no forecast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from monitor.policy.signals import used
from monitor.race.events import Sample, Watched

#: (ns, bytes)
Point = tuple[int, int]

#: The part of the crossings that fall inside the interval of their forecast.
LEVEL = 0.8
#: How far back is looked: for the rate (three samples a second apart, and their jitter), for how uneven it is, and for
#: how long memory has been seen at all.
RATE_NS, UNEVEN_NS, SEEN_NS = 3_200_000_000, 6_000_000_000, 30_000_000_000
#: One forecast a second, as the daemon makes them, less the jitter of its samples.
EVERY_NS = 800_000_000
#: Between two samples: however near a level is, a forecast may be off by as much. So the factors of a class are of the
#: plain time and this. (Of the plain time alone, 57 % of the crossings that were foreseen within a second came inside
#: the interval, and 87 % of those within 5 to 15.)
BETWEEN_NS = 1_000_000_000
#: Points closer together than this say nothing more.
SPACING_NS = 100_000_000
#: Fewer points in the last seconds are no growth yet.
MIN_POINTS = 3
#: No forecast reaches further ahead than so many times as long as memory has been seen. (Of those that did, in the lab,
#: half were three times too late.)
FURTHEST = 2.0
#: Most points of a window that are compared pair by pair: 32 make 496 slopes, a tenth of a millisecond.
_MOST_POINTS = 32
#: How far off the past was at most (a factor), and where it says nothing.
MOST_OFF = 100.0
#: Why there is no forecast.
TOO_FEW, STILL, TOO_FAR, TOO_UNEVEN = "too few figures", "not growing", "too far ahead", "growth too uneven"


class Class(NamedTuple):
    """Forecasts of growth that is no more uneven than `uneven`, and of which earlier ones were off by a factor of no
    more than `off`. What came took, with `BETWEEN_NS` added to both, between `soonest` and `latest` times the time that
    the plain rate gives, in `LEVEL` of the cases (as often earlier as later), and `middle` times in the median.
    """

    uneven: float
    off: float
    soonest: float
    middle: float
    latest: float


#: By split conformal prediction, from the runs with even numbers in tests/data/growth-runs.json.gz (26 kinds of growth,
#: Linux 6.18): of looks that are alike, sorted by (what came + BETWEEN_NS) / (plain time + BETWEEN_NS), the middle
#: `LEVEL`, with one case more than there are; 21 crossings a class at least. tests/race/test_forecast_runs.py judges
#: the other runs.
CLASSES = (
    Class(0.1, 1.1, 0.984, 1.011, 1.119),
    Class(0.1, 1.3, 0.989, 1.034, 1.26),
    Class(0.1, 2.0, 0.969, 1.053, 2.352),
    Class(0.1, MOST_OFF, 0.685, 1.015, 1.119),
    Class(0.3, 1.3, 0.937, 1.0, 1.118),
    Class(0.3, 2.0, 0.768, 0.987, 1.353),
    Class(0.3, MOST_OFF, 0.687, 0.972, 1.093),
    Class(0.6, 1.3, 0.781, 0.939, 1.204),
    Class(0.6, 2.0, 0.79, 1.025, 2.031),
    Class(0.6, MOST_OFF, 0.71, 0.979, 2.103),
    Class(1.0, 2.0, 0.69, 0.923, 1.572),
    Class(1.0, MOST_OFF, 0.646, 1.018, 2.116),
    Class(2.0, 2.0, 0.521, 0.897, 1.331),
    Class(2.0, MOST_OFF, 0.525, 1.005, 2.191),
)


class Forecast(NamedTuple):
    """When `level` (bytes) is reached if growth goes on. `rate` in bytes/s; times are ns from `at_ns`.

    `in_ns` None: there is no forecast, and `no` says why. `soonest_ns`..`latest_ns` is the interval that `LEVEL` of
    what comes falls into. All 0 if the level is reached already. `signal`: the memory signal by which the level is
    counted, "" of a limit.
    """

    at_ns: int
    level: int
    rate: float
    in_ns: int | None
    soonest_ns: int | None
    latest_ns: int | None
    no: str = ""
    signal: str = ""

    @property
    def reached(self) -> bool:
        """The level is reached already: what is ahead grows."""
        return self.in_ns is not None and self.rate == 0


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


def unevenness(points: Sequence[Point], rate: float) -> float:
    """The spread of the slopes of the last `UNEVEN_NS`, over the rate."""
    spread = slopes([p for p in points if p[0] >= points[-1][0] - UNEVEN_NS])
    tail = (1 - LEVEL) / 2
    return (quantile(spread, 1 - tail) - quantile(spread, tail)) / rate


def past_error(points: Sequence[Point]) -> float:
    """By which factor the forecasts of the last `SEEN_NS`, one a second by the plain rate, were off that were of where
    memory is now: `LEVEL` of them by no more. Too late counts as too early does. `MOST_OFF` where there was none.
    """
    now, last = points[-1]
    seconds: list[Point] = []
    for point in reversed(points):
        if point[0] < now - SEEN_NS:
            break
        if not seconds or seconds[-1][0] - point[0] >= EVERY_NS:
            seconds.append(point)
    seconds.reverse()
    off = []
    for n in range(MIN_POINTS, len(seconds)):
        made_ns, used_then = seconds[n - 1]
        recent = [p for p in seconds[:n] if p[0] >= made_ns - RATE_NS]
        rate = slope(recent) if len(recent) >= MIN_POINTS else None
        if rate is not None and rate > 0 and used_then < last:
            found = (now - made_ns) * rate / 1e9 / (last - used_then)
            off.append(min(max(found, 1 / found), MOST_OFF))
    return quantile(sorted(off), LEVEL) if off else MOST_OFF


def forecast(points: Sequence[Point], level: int, at_ns: int | None = None) -> Forecast:
    """When ``level`` is reached, from ``points`` in order of time (``at_ns``: now, else the last one's time)."""
    now = (points[-1][0] if points else 0) if at_ns is None else at_ns
    points = [p for p in points if now - SEEN_NS <= p[0] <= now]
    if not points:
        return Forecast(now, level, 0.0, None, None, None, TOO_FEW)
    last_ns, last = points[-1]
    if last >= level:
        return Forecast(now, level, 0.0, 0, 0, 0)
    recent = [p for p in points if p[0] >= last_ns - RATE_NS]
    found = slopes(recent) if len(recent) >= MIN_POINTS else []
    rate = quantile(found, 0.5) if found else 0.0
    if rate <= 0:
        return Forecast(now, level, 0.0, None, None, None, STILL if found else TOO_FEW)
    plain_ns = (level - last) / rate * 1e9
    seen_ns = last_ns - next(ts for ts, _ in points if ts >= last_ns - SEEN_NS)
    uneven, off = unevenness(points, rate), past_error(points)
    of = next((c for c in CLASSES if uneven <= c.uneven and off <= c.off), None)
    if plain_ns / seen_ns > FURTHEST or of is None:
        return Forecast(now, level, rate, None, None, None, TOO_FAR if of is not None else TOO_UNEVEN)
    gone_ns = now - last_ns
    middle, soonest, latest = (
        max(0, round((plain_ns + BETWEEN_NS) * factor) - BETWEEN_NS - gone_ns)
        for factor in (of.middle, of.soonest, of.latest)
    )
    return Forecast(now, level, rate, middle, soonest, latest)


def within(made: Forecast, left_ns: int) -> bool:
    """Whether what came ``left_ns`` after a forecast came in its interval."""
    soonest, latest = made.soonest_ns, made.latest_ns
    # Half a nanosecond of rounding is no miss.
    return soonest is not None and latest is not None and soonest - 1 <= left_ns <= latest + 1


def quantile(ordered: Sequence[float], q: float) -> float:
    """The ``q`` quantile of a sorted sequence that is not empty, interpolated."""
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    if ordered[low] == ordered[high]:
        return ordered[low]
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


class DomainForecast(NamedTuple):
    """What is ahead of one domain or pod.

    `threshold`: until the nearest of its thresholds that is not crossed yet is crossed, each by its formula; None: it
    has none. `oom`: until its limit is hit by what the kernel cannot drop: usage without page cache. (With it a file
    copy, which fills every node to its limit, would be an OOM kill in a few seconds again and again.)
    """

    name: str
    pod: str | None
    threshold: Forecast | None
    oom: Forecast | None


def used_by(signal: str, sample: Sample) -> int:
    """Bytes that a memory signal takes for used."""
    return used(signal, sample.usage, sample.inactive_file, sample.active_file)


def _near(own: Sequence[Sample], signal: str, levels: Sequence[int], at_ns: int | None) -> Forecast:
    """The forecast of the nearest line of one signal that is not crossed yet; of the last one if all are."""
    points = [(s.ts_ns, used_by(signal, s)) for s in own]
    ahead = [level for level in levels if level > points[-1][1]]
    return forecast(points, min(ahead) if ahead else max(levels), at_ns)._replace(signal=signal)


def domain_forecasts(
    samples: Iterable[Sample],
    watched: Sequence[Watched],
    at_ns: int | None = None,
    limits: Mapping[str, int] = MappingProxyType({}),
) -> list[DomainForecast]:
    """One forecast for each domain or cgroup among ``samples`` (in order of time), by name. ``limits``: of pods, by the
    domain of their samples.
    """
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.domain, []).append(sample)
    levels: dict[str, dict[str, list[int]]] = {}  # domain -> signal -> bytes used
    for w in watched:
        if not w.compared:
            levels.setdefault(w.domain, {}).setdefault(w.signal, []).append(w.capacity - w.quantity)
    limit_of: dict[str, int | None] = {**{w.domain: w.limit for w in watched}, **limits}
    made = []
    for name, own in sorted(found.items()):
        nears = [_near(own, signal, lines, at_ns) for signal, lines in levels.get(name, {}).items()]
        near = min(nears, key=lambda f: (f.reached, inf if f.in_ns is None else f.in_ns), default=None)
        held: list[Point] = [(s.ts_ns, max(0, s.usage - s.inactive_file - s.active_file)) for s in own]
        limit = limit_of.get(name)
        made.append(DomainForecast(name, own[-1].pod, near, None if limit is None else forecast(held, limit, at_ns)))
    return made
