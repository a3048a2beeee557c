"""Forecasts: exact on straight lines, not moved by a wild point, honest about what they do not know."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.race.forecast import Forecast, domain_forecasts, forecast, score, slope
from tests.race.builders import CAPACITY, MI, T0, S, ms, same_after_json, sample, watched

RATES = st.integers(1, 10_000).map(lambda r: r * 1000)


def line(rate: int, seconds: int = 8, start: int = 0) -> list[tuple[int, int]]:
    return [(T0 + k * S // 10, start + rate * k // 10) for k in range(seconds * 10 + 1)]


@given(RATES, st.integers(1, 10_000))
def test_exact_on_straight_lines(rate: int, seconds_left: int) -> None:
    points = line(rate)
    found = forecast(points, points[-1][1] + rate * seconds_left)
    assert (found.rate, found.in_ns) == (pytest.approx(rate), pytest.approx(seconds_left * S, rel=1e-6))
    assert found.soonest_ns == pytest.approx(seconds_left * S, rel=1e-6)
    assert found.latest_ns == pytest.approx(seconds_left * S, rel=1e-6)


@given(RATES, st.integers(1, 100), st.integers(0, 50))
def test_time_since_the_last_point_counts(rate: int, seconds_left: int, tenths: int) -> None:
    points = line(rate)
    level = points[-1][1] + rate * (seconds_left + 5)
    later = forecast(points, level, points[-1][0] + tenths * S // 10)
    if tenths <= 5:
        assert later.in_ns == pytest.approx((seconds_left + 5) * S - tenths * S / 10, rel=1e-3)


def test_one_wild_point_moves_nothing() -> None:
    points = line(10 * MI)
    points[-4] = (points[-4][0], 10**12)
    found = forecast(points, points[-1][1] + 100 * MI)
    assert found.in_ns == pytest.approx(10 * S, rel=0.01)


@pytest.mark.parametrize("points", [line(0, start=5), [(t, 10**9 - v) for t, v in line(1000)]])
def test_what_does_not_grow_has_no_time(points: list[tuple[int, int]]) -> None:
    found = forecast(points, 2 * 10**9)
    assert (found.in_ns, found.latest_ns) == (None, None)


def test_a_level_that_is_reached_is_reached_now() -> None:
    found = forecast(line(1000), 10)
    assert (found.in_ns, found.soonest_ns, found.latest_ns) == (0, 0, 0)


def test_a_forecast_in_hindsight_knows_no_later_points() -> None:
    leak = line(1000)
    points = leak + [(t + 10 * S, 5 * v + 10**5) for t, v in leak]
    assert forecast(points, 10**6, leak[-1][0]) == forecast(leak, 10**6)


@pytest.mark.parametrize("points", [[], line(1000)[:3], [(T0, 1)] * 9])
def test_too_little_to_tell(points: list[tuple[int, int]]) -> None:
    assert forecast(points, 100) is None


def test_a_burst_after_a_slow_leak_widens_the_interval() -> None:
    leak = line(MI, 20)
    last_ns, last = leak[-1]
    burst = [(last_ns + k * S // 10, last + 100 * MI * k // 10) for k in range(1, 11)]
    found = forecast(leak + burst, burst[-1][1] + 1000 * MI)
    assert found.rate == pytest.approx(100 * MI, rel=0.1)
    assert found.latest_ns is not None
    assert found.soonest_ns is not None
    assert found.soonest_ns <= 10 * S < 100 * S < found.latest_ns


@given(st.lists(st.tuples(st.integers(T0, T0 + 30 * S), st.integers(0, 2**40)), max_size=80))
def test_any_points_give_an_interval_around_the_forecast(points: list[tuple[int, int]]) -> None:
    found = forecast(sorted(points), 2**39)
    if found is None:
        return
    assert same_after_json(found)
    if found.in_ns is not None and found.soonest_ns is not None:
        assert found.soonest_ns <= found.in_ns
        assert found.latest_ns is None or found.in_ns <= found.latest_ns


def test_the_slope_needs_two_moments() -> None:
    assert slope([(T0, 1)]) is None
    assert slope([(T0, 1), (T0 + S, 11)]) == 10


def made(in_ns: int | None, soonest: int | None, latest: int | None) -> Forecast:
    return Forecast(T0, 0, 1.0, in_ns, soonest, latest)


def test_forecasts_are_judged_by_what_happened() -> None:
    right = (made(100, 90, 110), T0 + 100)
    late = (made(150, 140, 160), T0 + 100)
    after_the_fact = (made(0, 0, 0), T0)
    found = score([right, late, after_the_fact])
    assert (found.given, found.n, found.covered) == (3, 2, 0.5)
    assert (found.bias, found.error_p50) == (pytest.approx(0.25), pytest.approx(0.25))
    assert found.error_p90 == pytest.approx(0.45)
    assert same_after_json(found)


def test_never_is_a_forecast_too() -> None:
    never, open_end = made(None, None, None), made(50, 10, None)
    assert score([(never, None), (open_end, None)]).covered == 1.0
    assert (score([(never, T0 + 5)]).covered, score([(made(50, 10, 90), None)]).covered) == (0.0, 0.0)
    assert score([]).covered is None


def test_a_forecast_for_the_node_and_each_pod() -> None:
    node = [sample(100 * k, 500 + k) for k in range(80)]  # 10 MiB/s
    pod = [sample(100 * k, 10 + k, domain="/kubepods/hog", pod="uid-hog", limit=128 * MI) for k in range(80)]
    free = [sample(100 * k, 10, domain="/kubepods/db", pod="uid-db", limit=None) for k in range(80)]
    found = {o.name: o for o in domain_forecasts([*node, *pod, *free], [watched()])}
    assert list(found) == ["/kubepods/db", "/kubepods/hog", "node"]
    here = found["node"]
    assert here.threshold.in_ns == pytest.approx((900 - 579) / 10 * S, rel=1e-6)
    assert here.oom.in_ns == pytest.approx((CAPACITY / MI - 579) / 10 * S, rel=1e-6)
    assert here.oom.at_ns == ms(7900)
    assert found["/kubepods/hog"].oom is not None
    assert (found["/kubepods/hog"].threshold, found["/kubepods/db"].oom) == (None, None)
    assert all(same_after_json(o) for o in found.values())
