"""The interval of a forecast holds what it says, on recorded runs that its constants were not made from.

tests/data/growth-runs.json.gz: 26 kinds of growth over two thresholds, 8 runs of each on Linux 6.18. ``points`` are the
node's working set as the daemon sampled it (ns, bytes), ``crossed`` when the kernel saw each of ``levels`` crossed.
"""

import gzip
import json
from collections.abc import Iterator
from math import sqrt
from pathlib import Path
from typing import NamedTuple

import pytest

from monitor.race.forecast import (
    CLASSES,
    EVERY_NS,
    LEVEL,
    SEEN_NS,
    Class,
    Forecast,
    forecast,
    past_error,
    quantile,
    unevenness,
    within,
)

RUNS = Path(__file__).resolve().parents[1] / "data/growth-runs.json.gz"


class Look(NamedTuple):
    """A forecast as it stood, its class, and when what it is of came."""

    load: str
    crossing: tuple[str, int, int]
    made: Forecast
    of: Class
    crossed_ns: int

    @property
    def left_ns(self) -> int:
        return self.crossed_ns - self.made.at_ns

    @property
    def inside(self) -> bool:
        return within(self.made, self.left_ns)


def looks(run: dict) -> Iterator[Look]:
    """Every forecast of a run that stood before the crossing it is of, one a second."""
    last_ns = -EVERY_NS
    every = [(ts, used) for ts, used in run["points"]]
    for n, (ts, used) in enumerate(every, 1):
        if ts < last_ns + EVERY_NS:
            continue
        last_ns = ts
        points = [p for p in every[:n] if p[0] >= ts - SEEN_NS]
        for level, crossed_ns in zip(run["levels"], run["crossed"], strict=True):
            if crossed_ns is not None and ts < crossed_ns and used < level:
                made = forecast(points, level)
                if made.in_ns is not None:
                    uneven, off = unevenness(points, made.rate), past_error(points)
                    of = next(c for c in CLASSES if uneven <= c.uneven and off <= c.off)
                    yield Look(run["load"], (run["load"], run["run"], level), made, of, crossed_ns)


@pytest.fixture(scope="module")
def held_out() -> list[Look]:
    """Of the runs with odd numbers: the constants are of the others."""
    runs = json.loads(gzip.decompress(RUNS.read_bytes()))["runs"]
    return [look for run in runs if run["run"] % 2 for look in looks(run)]


def holds_the_level(mine: list[Look]) -> bool:
    """Whether `LEVEL` is in the 95 % confidence interval (Wilson's) of the part inside. The looks at one crossing are
    right or wrong together: each crossing is one case.
    """
    part, cases, z = sum(look.inside for look in mine) / len(mine), len({look.crossing for look in mine}), 1.96
    middle = part + z**2 / (2 * cases)
    half = z * sqrt(part * (1 - part) / cases + z**2 / (4 * cases**2))
    return middle - half <= LEVEL * (1 + z**2 / cases) <= middle + half


def test_four_of_five_crossings_come_in_the_interval(held_out: list[Look]) -> None:
    """The promise: 75 to 85 %, and a bias of at most 5 %."""
    assert len(held_out) > 1000
    assert LEVEL - 0.05 <= sum(look.inside for look in held_out) / len(held_out) <= LEVEL + 0.05
    errors = sorted(
        [(look.made.in_ns - look.left_ns) / look.left_ns for look in held_out if look.made.in_ns is not None]
    )
    assert abs(quantile(errors, 0.5)) <= 0.05


def test_of_no_load_and_no_class_it_is_further_off_than_so_few_crossings_allow(held_out: list[Look]) -> None:
    """A class of few crossings and many looks at them may be far too narrow."""
    assert {look.of for look in held_out} == set(CLASSES)
    for group in (lambda look: look.load, lambda look: look.of):
        for one in {group(look) for look in held_out}:
            assert holds_the_level([look for look in held_out if group(look) == one]), one
