"""What a kubelet would have done: known answers, the laws of headroom and time, thresholds that it does not have."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.policy.eviction_pass import PassConfig
from monitor.policy.signals import MEMORY, RECLAIMABLE
from monitor.policy.thresholds import parse_thresholds
from monitor.race.counterfactual import TimeSeries, World, counterfactual, world
from monitor.race.facts import Facts
from monitor.race.verdict import verdict
from tests.race.builders import (
    MI,
    PODS,
    QUANTITY,
    S,
    clear,
    crossing,
    decided,
    gone,
    growing,
    judged,
    ms,
    one,
    ranked,
    same_after_json,
    sample,
    signalled,
    watched,
)
from tests.race.scenarios import OWN_LINES

HARD = PassConfig(parse_thresholds({MEMORY: "100Mi"}, None, None, None), 300 * S)
CAPACITY = 1000 * MI


def growth(mi_per_s: float, headroom_mi: float = 100) -> World:
    """A node that grows on a straight line, crosses at time 0 and is out of memory ``headroom_mi`` later.

    The threshold is 100 MiB whatever the headroom.
    """
    end_s = headroom_mi / mi_per_s
    line = [(ms(-30_000), -30 * mi_per_s), (ms(end_s * 1000), headroom_mi), (ms(1e7), headroom_mi)]
    sets = [(t, CAPACITY - QUANTITY + round(v * MI)) for t, v in line]
    return World({MEMORY: TimeSeries(sets)}, {MEMORY: CAPACITY}, PODS[:2], ms(0), float(ms(end_s * 1000)))


def test_a_soft_threshold_waits_for_its_grace_in_whole_periods() -> None:
    """Seen first after 0 to 10 s; the first pass 15 s later is the second one after it, after 20 to 30 s."""
    soft = PassConfig(parse_thresholds(None, {MEMORY: "100Mi"}, {MEMORY: "15s"}, None), 300 * S)
    for headroom_mi, detected in ((20, 0), (25, 0.5), (30, 1)):
        assert counterfactual(growth(1, headroom_mi), soft).detected == pytest.approx(detected, abs=1e-3)


@given(st.floats(1, 400), st.floats(5, 300), st.floats(5, 300))
@settings(max_examples=25)
def test_more_headroom_never_hurts(rate: float, one_mi: float, other_mi: float) -> None:
    small, large = sorted([one_mi, other_mi])
    less, more = (counterfactual(growth(rate, mi), HARD) for mi in (small, large))
    assert less.in_time <= more.in_time + 1e-6
    assert less.detected <= more.detected + 1e-6
    assert less.in_time <= less.in_time_if_obeying <= less.detected


@given(st.floats(1, 400))
@settings(max_examples=25)
def test_probabilities_are_those_of_the_arithmetic(rate: float) -> None:
    found = counterfactual(growth(rate), HARD)
    left = 100 / rate
    assert found.detected == pytest.approx(min(1, left / 10), abs=1e-5)
    assert found.in_time == pytest.approx(min(1, max(0, left - 2.03) / 10), abs=1e-5)
    assert found.in_time_if_obeying == pytest.approx(min(1, max(0, left - 0.03) / 10), abs=1e-5)
    assert same_after_json(found)


def test_a_record_with_an_eviction_is_grown_on_to_the_limit() -> None:
    hog = [sample(t, 400 + t / 10, domain="/kubepods/hog", pod="uid-hog") for t in range(-1000, 1, 100)]
    samples = list(growing(-1000, 0, 800, 100))
    events = (crossing(), decided(0.1), signalled(0.15), gone(8), sample(9, 400), clear(12))
    found = world(Facts(one(watched(), ranked(), *samples, *hog, *events)))
    assert found.assumed
    assert found.oom_ns == pytest.approx(ms(1000), abs=30_000_000)
    assert found.working_set[MEMORY].at(ms(500)) == pytest.approx(950 * MI, rel=0.01)
    assert found.working_set[MEMORY].at(ms(9)) == pytest.approx(901 * MI, rel=0.001)  # not what the eviction made it
    answer = counterfactual(found, HARD)
    assert answer.detected == pytest.approx(0.1, abs=0.01)
    assert answer.assumed


def test_time_series() -> None:
    series = TimeSeries([(0, 0), (10, 100), (20, 0)])
    assert (series.at(5), series.at(-5), series.at(99)) == (50, 0, 0)
    assert (list(series.meets(50)), list(series.meets(-1))) == ([5, 15], [0])


# a node whose thresholds are by outrace's own formulas, beside the line that a kubelet would have

OWN = PassConfig(parse_thresholds({RECLAIMABLE: "100Mi"}, own=True), 300 * S)


def test_only_the_kubelet_would_have_evicted() -> None:
    """Its line is crossed for 30 s by page cache: of 950 MiB in use 600 are active file pages."""
    samples = [sample(t, 950, active_file=600 * MI) for t in range(-2000, 30_001, 500)]
    flood = one(ranked(), *OWN_LINES, *samples[:4], crossing(0), *samples[4:], clear(30_100))
    found = verdict(flood, 0, OWN)
    assert (found.verdict, found.flags, found.evicted) == ("relieved", ("kubelet_only",), ())
    # 1000 MiB less the 350 that are no page cache.
    assert found.summary == (
        "Nothing was wrong: only the kubelet's formula was below its line of 100 MiB: by memory.reclaimable at least "
        "650 MiB were available, and nobody was OOM-killed."
    )
    (poll,) = found.counterfactual
    assert (poll.detected, poll.oom_ms) == (1.0, None), "its loop comes round within the 30 s"


def test_an_eviction_by_our_own_line_is_about_that_line() -> None:
    ours = {"signal": RECLAIMABLE}
    found = judged(
        ranked(), *OWN_LINES, crossing(-3000), crossing(0, **ours), decided(0.1, **ours), signalled(0.15), gone(8),
        clear(12, **ours), clear(13),
    )  # fmt: skip
    assert (found.verdict, found.flags) == ("eviction_won", ())
    assert "within 8.0 ms of the crossing" in found.summary, "of ours, not of the kubelet's 3 s before"
