"""Forecasts: exact on straight lines but for the calibration, and none where too little is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.signals import RECLAIMABLE
from monitor.race.forecast import (
    CLASSES,
    FURTHEST,
    MOST_OFF,
    STILL,
    TOO_FAR,
    TOO_FEW,
    TOO_UNEVEN,
    Forecast,
    domain_forecasts,
    forecast,
    past_error,
    within,
)
from tests.race.builders import CAPACITY, MI, T0, S, ms, sample, watched

RATES = st.integers(1, 10_000).map(lambda r: r * 1000)
#: Of growth on a straight line.
EVEN = CLASSES[0]


def after(seconds: float, factor: float) -> float:
    """ns until what the plain rate puts ``seconds`` ahead: the factor is of that and the second between two samples."""
    return ((seconds + 1) * factor - 1) * S


def line(rate: int, seconds: int = 8, start: int = 0) -> list[tuple[int, int]]:
    return [(T0 + k * S // 10, start + rate * k // 10) for k in range(seconds * 10 + 1)]


@given(RATES, st.integers(1, 16))
def test_on_a_straight_line_only_the_calibration_moves_it(rate: int, seconds_left: int) -> None:
    """Seen for 8 s, so up to 16 s ahead."""
    points = line(rate)
    found = forecast(points, points[-1][1] + rate * seconds_left)
    assert (found.rate, found.no) == (pytest.approx(rate), "")
    assert found.in_ns == pytest.approx(after(seconds_left, EVEN.middle), rel=1e-6)
    assert found.soonest_ns == pytest.approx(after(seconds_left, EVEN.soonest), rel=1e-6)
    assert found.latest_ns == pytest.approx(after(seconds_left, EVEN.latest), rel=1e-6)


@given(RATES, st.integers(6, 16), st.integers(0, 5))
def test_time_since_the_last_point_counts(rate: int, seconds_left: int, tenths: int) -> None:
    points = line(rate)
    level = points[-1][1] + rate * seconds_left
    later = forecast(points, level, points[-1][0] + tenths * S // 10)
    assert later.in_ns == pytest.approx(after(seconds_left, EVEN.middle) - tenths * S / 10, rel=1e-3)


@pytest.mark.parametrize("points", [line(0, start=5), [(t, 10**9 - v) for t, v in line(1000)]])
def test_what_does_not_grow_has_no_time(points: list[tuple[int, int]]) -> None:
    found = forecast(points, 2 * 10**9)
    assert (found.in_ns, found.soonest_ns, found.latest_ns, found.no) == (None, None, None, STILL)


def test_a_level_that_is_reached_is_reached_now() -> None:
    found = forecast(line(1000), 10)
    assert (found.in_ns, found.soonest_ns, found.latest_ns) == (0, 0, 0)


def test_a_forecast_in_hindsight_knows_no_later_points() -> None:
    leak = line(1000)
    points = leak + [(t + 10 * S, 5 * v + 10**5) for t, v in leak]
    assert forecast(points, 10**4, leak[-1][0]) == forecast(leak, 10**4)


@pytest.mark.parametrize("points", [[], line(1000)[:2], [(T0, 1)] * 9])
def test_too_few_samples_give_no_forecast(points: list[tuple[int, int]]) -> None:
    found = forecast(points, 1000)
    assert (found.in_ns, found.no) == (None, TOO_FEW)


def test_nothing_is_forecast_further_ahead_than_twice_as_long_as_growth_was_seen() -> None:
    """8 s were seen: 16 s ahead is a forecast, 17 s is none."""
    points = line(MI)
    assert FURTHEST == 2
    assert forecast(points, points[-1][1] + 16 * MI).in_ns is not None
    found = forecast(points, points[-1][1] + 17 * MI)
    assert (found.in_ns, found.no, found.rate) == (None, TOO_FAR, pytest.approx(MI))


def test_of_growth_in_leaps_there_is_no_forecast() -> None:
    """100 MiB every fourth second and 1 MiB in the others: the slopes of 6 s go from 1 to 51 MiB/s and more."""
    points, used = [], 0
    for k in range(12):
        used += 100 * MI if k % 4 == 0 else MI
        points.append((T0 + k * S, used))
    found = forecast(points, used + 20 * MI)
    assert (found.in_ns, found.no) == (None, TOO_UNEVEN)


def test_how_far_off_earlier_forecasts_were() -> None:
    """1 MiB/s, and then 10 MiB in one second. Two seconds ago there were 2 MiB at 1 MiB/s: now 13 are there, 11 more,
    which would have taken 11 s instead of 2: off by 5.5. A second ago 10 s instead of 1: off by 10. 80 % of the two, as
    between two points of a line: 5.5 + 0.8 * 4.5 = 9.1.
    """
    points = [(T0 + k * S, used * MI) for k, used in enumerate((0, 1, 2, 3, 13))]
    assert past_error(points) == pytest.approx(9.1)
    mirrored = [(T0 + k * S, used * MI) for k, used in enumerate((0, 10, 20, 30, 31))]  # 1.1 s of 2, 0.1 s of 1
    assert past_error(mirrored) == pytest.approx(2 / 1.1 + 0.8 * (10 - 2 / 1.1))
    assert past_error(line(MI, 20)) == pytest.approx(1.0)


def test_nothing_is_known_of_earlier_forecasts() -> None:
    """Three points make one forecast, of what is ahead; and none is of a level below."""
    assert past_error(line(MI, 2)) == MOST_OFF
    assert past_error([(T0 + k * S, (20 - k) * MI) for k in range(10)]) == MOST_OFF


@given(st.lists(st.tuples(st.integers(T0, T0 + 30 * S), st.integers(0, 2**40)), max_size=80))
def test_any_points_give_an_interval_around_the_forecast_or_a_reason(points: list[tuple[int, int]]) -> None:
    found = forecast(sorted(points), 2**39)
    if found.in_ns is None:
        assert (found.soonest_ns, found.latest_ns) == (None, None)
        assert found.no
        return
    assert 0 <= found.soonest_ns <= found.in_ns <= found.latest_ns
    assert not found.no


def made(in_ns: int | None, soonest: int | None, latest: int | None) -> Forecast:
    return Forecast(T0, 0, 1.0, in_ns, soonest, latest, "" if in_ns is not None else STILL)


def test_no_forecast_has_no_interval() -> None:
    assert not within(made(None, None, None), 5)
    assert within(made(100, 90, 110), 110)
    assert not within(made(100, 90, 110), 112)


def test_a_forecast_for_the_node_and_each_pod() -> None:
    node = [sample(100 * k, 500 + 2 * k) for k in range(160)]  # 20 MiB/s
    pod = [sample(100 * k, 10 + k / 2, domain="/kubepods/hog", pod="uid-hog") for k in range(160)]
    free = [sample(100 * k, 10, domain="/kubepods/db", pod="uid-db") for k in range(160)]
    found = {o.name: o for o in domain_forecasts([*node, *pod, *free], [watched()], limits={"/kubepods/hog": 128 * MI})}
    assert list(found) == ["/kubepods/db", "/kubepods/hog", "node"]
    here = found["node"]
    assert here.threshold.in_ns == pytest.approx(after((900 - 818) / 20, EVEN.middle), rel=1e-6)
    assert here.oom.in_ns == pytest.approx(after((CAPACITY / MI - 818) / 20, EVEN.middle), rel=1e-6)
    assert here.oom.at_ns == ms(15_900)
    assert found["/kubepods/hog"].oom is not None
    assert (found["/kubepods/hog"].threshold, found["/kubepods/db"].oom) == (None, None)


def test_a_threshold_that_is_crossed_is_followed_by_the_next() -> None:
    """A soft one at 300 MiB available is crossed at 700; the hard one at 900 is ahead."""
    samples = [sample(100 * k, 600 + 2 * k) for k in range(80)]  # now at 758
    soft = watched(hard=False, quantity=300 * MI)
    (found,) = domain_forecasts(samples, [soft, watched()])
    assert found.threshold.level == CAPACITY - 100 * MI
    assert found.threshold.in_ns == pytest.approx(after((900 - 758) / 20, EVEN.middle), rel=1e-6)
    (found,) = domain_forecasts(samples, [soft, watched(quantity=250 * MI)])
    assert found.threshold.in_ns == 0


def test_a_line_that_is_met_hides_no_line_of_another_signal() -> None:
    """1000 MiB in use, 400 of them active page cache, 20 MiB/s more: the soft line of memory.available is met, and by
    memory.reclaimable 300 MiB are missing until the hard one, 15 s away.
    """
    samples = [sample(100 * k, 600 + 2 * k, active_file=400 * MI) for k in range(201)]  # now at 1000
    soft = watched(hard=False, quantity=300 * MI)
    hard = watched(signal=RECLAIMABLE)
    for lines in ([soft, hard], [hard, soft]):
        (found,) = domain_forecasts(samples, lines)
        assert (found.threshold.signal, found.threshold.level) == (RECLAIMABLE, CAPACITY - 100 * MI)
        assert found.threshold.in_ns == pytest.approx(after((900 - 600) / 20, EVEN.middle), rel=1e-6)
