"""How far off forecasts were in recorded runs, and the intervals that make what they say true.

The method is split conformal prediction: the interval is where the middle `LEVEL` of the past lay, relative to what the
plain rate said, separately for growth that is more or less even, and by how far off it was a moment ago. Whole runs are
kept for the one or the other: the looks of one run are too much alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil, floor, sqrt
from typing import NamedTuple

from monitor.lab.growth_runs import Run
from monitor.race.forecast import (
    BETWEEN_NS,
    EVERY_NS,
    FURTHEST,
    LEVEL,
    MOST_OFF,
    SEEN_NS,
    Class,
    Forecast,
    Growth,
    forecast,
    growth_towards,
    quantile,
)

#: Upper ends of the classes of uneven growth: the last one's is where there is no forecast any more.
EDGES = (0.1, 0.3, 0.6, 1.0, 2.0)
#: And of how far off earlier forecasts were.
OFF = (1.1, 1.3, 2.0, MOST_OFF)
#: Standard deviations of a normal distribution that hold 95 % of it.
_Z = 1.96
#: Crossings that a class rests on at least. The looks at one of them are right or wrong together: a class of 104 looks
#: at 20 crossings held only 55 % of the looks at 17 held-out ones (31 to 76 %).
_LEAST = 21


class Case(NamedTuple):
    """What came of a look: how far off earlier forecasts were, what came as a part of the plain time, which crossing
    (load, run, level).
    """

    off: float
    ratio: float
    crossing: tuple[str, int, int]


class Look(NamedTuple):
    """A forecast as it stood: of which threshold of which run, what was known then, and when it was crossed (ns)."""

    load: str
    run: int
    made: Forecast
    growth: Growth | str
    crossed_ns: int

    @property
    def left_ns(self) -> int:
        return self.crossed_ns - self.made.at_ns

    @property
    def crossing(self) -> tuple[str, int, int]:
        return self.load, self.run, self.made.level


def looks(run: Run) -> Iterator[Look]:
    """Every forecast of a run that stood before the crossing it is of."""
    last_ns = -EVERY_NS
    for n, (ts, used) in enumerate(run.points, 1):
        if ts < last_ns + EVERY_NS:
            continue
        last_ns = ts
        points = [p for p in run.points[:n] if p[0] >= ts - SEEN_NS]
        for level, crossed_ns in zip(run.levels, run.crossed, strict=True):
            if crossed_ns is not None and ts < crossed_ns and used < level:
                yield Look(run.load, run.run, forecast(points, level), growth_towards(points, level), crossed_ns)


def trains(run: Run) -> bool:
    """Whether a run is for the calibration; the others are held out."""
    return run.run % 2 == 0


def calibrate(runs: Iterable[Run]) -> tuple[Class, ...]:
    """`monitor.race.forecast.CLASSES` from the runs with even numbers. Raises ValueError where they are too few.

    What there are too few cases of goes to the class next to it, of as uneven a growth that earlier was further off.
    """
    cases: dict[float, list[Case]] = {edge: [] for edge in EDGES}
    for run in runs:
        for look in looks(run) if trains(run) else ():
            growth = look.growth
            if isinstance(growth, str) or growth.reach > FURTHEST:
                continue
            edge = next((edge for edge in EDGES if growth.uneven <= edge), None)
            if edge is not None:
                ratio = (look.left_ns + BETWEEN_NS) / (growth.plain_ns + BETWEEN_NS)
                cases[edge].append(Case(growth.off, ratio, look.crossing))
    return tuple([one for edge, found in cases.items() for one in _classes(edge, found)])


def _classes(uneven: float, cases: Sequence[Case]) -> Iterator[Class]:
    """Of as uneven a growth."""
    seen, mine = 0.0, list[Case]()
    for off in OFF:
        mine += [case for case in cases if seen < case.off <= off]
        seen = off
        enough, rest = _different(mine) >= _LEAST, _different([case for case in cases if case.off > off])
        if off == OFF[-1] and not enough:
            raise ValueError(f"{_different(mine)} crossings of growth up to {uneven} are too few: play more runs")
        if off == OFF[-1] or (enough and rest >= _LEAST):
            yield class_of(uneven, off, sorted([case.ratio for case in mine]))
            mine = []


def _different(cases: Iterable[Case]) -> int:
    return len({case.crossing for case in cases})


def class_of(uneven: float, off: float, ratios: Sequence[float]) -> Class:
    """The interval of ``ratios`` (what came, as a part of the plain time; sorted)."""
    # One case more than there are: the next one, about which nothing is known.
    tail, cases = (1 - LEVEL) / 2, len(ratios) + 1
    low = max(0, floor(round(tail * cases, 9)) - 1)
    high = min(len(ratios) - 1, ceil(round((1 - tail) * cases, 9)) - 1)
    return Class(uneven, off, round(ratios[low], 3), round(quantile(ratios, 0.5), 3), round(ratios[high], 3))


def crossings(seen: Iterable[Look]) -> int:
    """How many crossings there was a forecast of."""
    return len({look.crossing for look in seen if look.made.in_ns is not None})


def confidence(part: float, cases: int) -> tuple[float, float]:
    """The 95 % confidence interval (Wilson's score interval) of a part that was ``part`` in so many independent cases.
    Of the looks at one crossing only one counts as a case: they are right or wrong together.
    """
    shrunk = 1 + _Z**2 / cases
    middle = (part + _Z**2 / (2 * cases)) / shrunk
    half = _Z * sqrt(part * (1 - part) / cases + _Z**2 / (4 * cases**2)) / shrunk
    return max(0.0, middle - half), min(1.0, middle + half)
