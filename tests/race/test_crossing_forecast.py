"""The forecast that an incident says stood before its crossing."""

import pytest

from monitor.policy.signals import OBTAINABLE, RECLAIMABLE
from monitor.race.crossing_forecast import CrossingForecast
from monitor.race.events import Event
from monitor.race.forecast import CLASSES, LEVEL, UNSAMPLED
from tests.race.builders import MI, clear, crossing, growing, judged, mark, same_after_json, sample, watched

#: Of growth on a straight line.
EVEN = CLASSES[0]


def crossing_forecast(*events: Event) -> CrossingForecast | None:
    found = judged(watched(), *events)
    assert same_after_json(found)
    return found.forecast


def test_the_first_forecast_of_the_growth_that_led_to_the_crossing() -> None:
    """10 MiB/s for 10 s up to 900 MiB, a sample each 0.9 s. What is left may be twice as long as what was seen, which
    it is from 3.33 s on (6.67 s are left): the look at 3.6 s is the first, 6.4 s before.
    """
    found = crossing_forecast(
        *growing(-10_000, -1, 800, 10, 900), crossing(0, available_mi=100), mark(9000, None, scope="node")
    )
    assert found is not None
    assert (found.before_ms, found.no, found.interval_holds) == (6400, "", LEVEL)
    assert found.in_ms == pytest.approx(7400 * EVEN.middle - 1000, rel=0.01)
    assert found.soonest_ms == pytest.approx(7400 * EVEN.soonest - 1000, rel=0.01)
    assert found.latest_ms == pytest.approx(7400 * EVEN.latest - 1000, rel=0.01)
    assert found.inside


def test_what_was_forecast_of_an_earlier_crossing_does_not_count() -> None:
    """Growth up to above the threshold, memory given back, and a leap: of that there was no forecast."""
    found = crossing_forecast(
        *growing(-20_000, -10_000, 800, 11, 900),
        sample(-9_000, 300),
        sample(-8_000, 300),
        *growing(-7_000, -1_000, 300, 0, 1000),
        crossing(0),
        clear(100),
    )
    assert found is not None
    assert (found.in_ms, found.inside, found.no) == (None, None, "not growing")


def test_a_crossing_by_another_formula_is_forecast_by_that_formula() -> None:
    """Of 500 to 990 MiB in use 90 are active page cache: by memory.reclaimable 900 are in use when the line is crossed,
    and by memory.available that line was met 1.8 s before. Looked at once a second; 6 s are no more than twice the 4.
    """
    grown = [sample(t, 990 + 50 * t / 1000, active_file=90 * MI) for t in range(-10_000, 0, 500)]
    end = mark(9000, None, scope="node")
    found = judged(watched(signal=RECLAIMABLE), *grown, crossing(0, signal=RECLAIMABLE, available_mi=100), end).forecast
    assert found is not None
    assert (found.before_ms, found.no) == (6000, "")
    assert found.in_ms == pytest.approx(7000 * EVEN.middle - 1000, rel=0.01)
    assert found.inside
    found = judged(watched(signal=OBTAINABLE), *grown, crossing(0, signal=OBTAINABLE, available_mi=100), end).forecast
    assert found is not None
    assert (found.in_ms, found.no) == (None, UNSAMPLED)
