"""Forecasts as the helper makes, compares and reports them."""

from types import SimpleNamespace
from typing import Any

import pytest

from monitor.race.events import Crossing, Sample, Watched
from monitor.side.forecasts import Forecaster

S = 1_000_000_000
MIB = 1 << 20


@pytest.fixture
def forecaster() -> Forecaster:
    view: Any = SimpleNamespace(stats={"armed": 1}, pods={})
    made = Forecaster(view, view, view, lambda: ((), ()))
    made._compare = lambda: None  # (the kernel's likely victim is no part of this)
    return made


def line_to(level: int, rate: int) -> list[Sample]:
    """The node grew by ``rate`` bytes a second for 10 s, up to half of ``level``."""
    return [Sample(k * S, "node", None, used := level // 2 - rate * (10 - k), used, 0, 0) for k in range(11)]


def test_a_crossing_is_compared_with_the_first_forecast_before_it(forecaster: Forecaster) -> None:
    """100 MiB are in use of 200, 5 MiB more each second: 20 s by the plain rate, from second 10 on."""
    level, capacity = 200 * MIB, 300 * MIB
    watched = Watched(0, "node", "memory.available", True, capacity - level, capacity)
    forecaster.facts = lambda: (line_to(level, 5 * MIB), [watched])

    def crossed(second: int) -> Crossing:
        figures = (capacity - level, capacity, level, level, capacity - level - 1)
        return Crossing(second * S, "node", "memory.available", True, *figures)

    for second, outcome in ((30, "inside"), (12, "sooner"), (40, "later"), (80, "none")):
        forecaster._update(10 * S)
        forecaster.crossed(crossed(second))
        assert forecaster.judged[outcome] == 1, outcome
    forecaster.crossed(crossed(31))  # nothing was forecast since
    assert forecaster.judged == {"inside": 1, "sooner": 1, "later": 1, "none": 2}
    (threshold,) = forecaster.report()  # (a machine has no limit of its own)
    assert (threshold["domain"], threshold["of"], threshold["no"]) == ("node", "threshold", None)
    assert (threshold["level_bytes"], threshold["bytes_per_s"]) == (level, 5 * MIB)
    assert threshold["interval_holds"] == 0.8
    assert threshold["soonest_s"] <= threshold["seconds"] <= threshold["latest_s"]
    assert threshold["seconds"] == pytest.approx(20, rel=0.1)


def test_why_there_is_no_forecast_is_reported(forecaster: Forecaster) -> None:
    watched = Watched(0, "node", "memory.available", True, 100 * MIB, 300 * MIB)
    forecaster.facts = lambda: (line_to(200 * MIB, 0), [watched])
    forecaster._update(10 * S)
    (found,) = forecaster.report()
    assert (found["seconds"], found["soonest_s"], found["latest_s"], found["no"]) == (None, None, None, "not growing")
    forecaster.facts = lambda: ((), [watched])  # far from every threshold
    forecaster._update(11 * S)
    assert forecaster.report() == []
