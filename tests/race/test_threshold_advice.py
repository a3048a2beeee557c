"""What was taken in past races, what would have been enough, and the arithmetic between growth and threshold."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.hold import STOP_NS, second_line
from monitor.race.reaction import HOLD, NOTIFIED, REACTIONS, Reaction, survives
from monitor.race.threshold_advice import Advised, Burst, advise, needed, reservation
from monitor.race.verdict import verdict
from tests.race.builders import CAPACITY, KUBEPODS, MI, QUANTITY, crossing, growing, mark, one, sample, watched


def burst_of(*events: Any) -> Burst | None:
    return verdict(one(watched(), *events)).burst


def by_reaction(*bursts: Burst, quantile: float = 0.99) -> dict[str, Advised]:
    return {each.reaction: each for each in advise([(f"race-{n}", burst) for n, burst in enumerate(bursts)], quantile)}


def test_steady_growth_up_to_a_kill() -> None:
    """500 MiB/s: 2.5 MiB in outrace's 5 ms; the kubelet's 12 s need more than the machine has."""
    found = burst_of(*growing(-1000, 0, 400, 500), crossing(0), mark(200, None, scope="node"))
    assert found.rate == pytest.approx(500 * MI, rel=0.01)
    assert found.taken(5) == pytest.approx(2.5 * MI, rel=0.02)
    assert found.taken(1000) == pytest.approx(500 * MI, rel=0.02)
    advised = by_reaction(found)
    assert advised["enforce"].threshold == pytest.approx(2.5 * MI, rel=0.02)
    assert advised["enforce"].present == 1.0
    assert advised["kubelet"].threshold is None
    assert advised["kubelet"].present == 0.0
    assert advised["kubelet-notified"].threshold is None


def test_a_limit_below_the_capacity_has_to_be_kept_away_from_as_well() -> None:
    limit = CAPACITY - 50 * MI
    found = verdict(
        one(watched(limit=limit), *growing(-1000, 0, 800, 100), crossing(0), mark(100, None, oom_limit=limit))
    ).burst
    assert (found.beyond, found.taken(5)) == (50 * MI, pytest.approx(0.5 * MI, rel=0.03))
    enforce = by_reaction(found)["enforce"]
    assert enforce.threshold == pytest.approx(50.5 * MI, rel=0.02)
    assert enforce.arithmetic.beyond == 50 * MI


def test_a_line_that_is_only_compared_is_no_threshold_in_force() -> None:
    """Outrace acts by memory.reclaimable: memory.available<100Mi is what a kubelet would have."""
    growth = (*growing(-1000, 0, 400, 500), crossing(0), mark(200, None, scope="node"))
    own = verdict(one(watched(compared=True), watched(signal="memory.reclaimable"), *growth)).burst
    assert own.threshold is None
    advised = by_reaction(own)["enforce"]
    assert (advised.present, advised.present_threshold, advised.survives) == (None, None, None)
    assert advised.threshold == pytest.approx(2.5 * MI, rel=0.02)


def test_only_the_latest_capacity_counts() -> None:
    small = Burst("memory.available", 500 * MI, None, 0, None, ((12_500, 400 * MI),))
    large = Burst("memory.available", CAPACITY, QUANTITY, 0, None, ((12_500, 50 * MI),))
    advised = advise([("a", small), ("b", large), ("c", large)])
    assert {each.episodes for each in advised} == {2}
    assert {each.evidence for each in advised} == {("b", "c")}
    assert {each.capacity for each in advised} == {CAPACITY}
    assert advise([]) == []


@given(
    st.lists(st.lists(st.integers(0, 2 * CAPACITY), min_size=3, max_size=3).map(sorted), min_size=1, max_size=20),
    st.floats(0.01, 1.0),
)
def test_the_threshold_advised_wins_what_it_promises(rises: list[list[int]], quantile: float) -> None:
    bursts = [
        Burst("memory.available", CAPACITY, None, 0, None, ((5, r[0]), (2000, r[1]), (12_500, r[2]))) for r in rises
    ]
    reactions = {reaction.name: reaction for reaction in REACTIONS}
    for each in advise([("race", b) for b in bursts], quantile):
        reaction = reactions[each.reaction]
        needs = [needed(b, reaction, ms) for b in bursts for ms in reaction.phases_ms]
        if each.threshold is None:
            assert sum(n < CAPACITY - 1 for n in needs) < quantile * len(needs) + 1e-6
            continue
        assert sum(n < each.threshold for n in needs) >= quantile * len(needs) - 1e-6
        assert sum(n < each.threshold - 1 for n in needs) < quantile * len(needs) + 1e-6  # and none smaller does


def steady(rate_mi: int, **more: Any) -> Burst:
    """Growth of so many MiB/s, recorded as a burst."""
    most = tuple((ms, rate_mi * MI * ms // 1000) for ms in (5, 1000, 12_500))
    return Burst("memory.available", CAPACITY, QUANTITY, 0, float(rate_mi * MI), most, **more)


def test_the_arithmetic_is_that_of_the_race_that_counts() -> None:
    """Three races of 10, 30 and 20 MiB/s; the worst phase of the kubelet's loop is 12.03 s.

    30 MiB/s x 12.03 s = 360.9 MiB. With 100 MiB it survives 100 / 12.03 = 8.31 MiB/s.
    """
    found = by_reaction(steady(10), steady(30), steady(20), quantile=1.0)
    kubelet = found["kubelet"]
    why = kubelet.arithmetic
    assert (why.incident, why.ms, why.through, why.second_line, why.beyond) == ("race-1", 12_030, 0, 0, 0)
    assert why.taken / MI == pytest.approx(360.9)
    assert kubelet.threshold == why.need + 1
    assert kubelet.survives.always / MI == pytest.approx(8.31, abs=0.01)
    assert found["observe"].threshold == kubelet.threshold
    # 30 MiB/s x 5 ms = 0.15 MiB, 2 MiB that pass the brake, and a third of that for the kill threshold: 2.82 MiB.
    hold = found["hold"].arithmetic
    assert (hold.through, hold.second_line) == (2 * MI, round(2 * MI / 3))
    assert abs(hold.need - hold.taken - hold.through - hold.second_line) <= 1
    assert found["hold"].threshold == pytest.approx(threshold_for(30 * MI, HOLD), abs=2)


def test_what_is_in_use_outside_the_pods_has_to_be_reserved() -> None:
    """Node of 1000 MiB, kubepods limited to 800: 200 are reserved. 900 - 640 = 260 are used outside: 60 more."""
    burst = burst_of(
        watched(**KUBEPODS, capacity=800 * MI),
        *(sample(t, 500 + t / 10) for t in range(-1000, 1, 100)), sample(-100, 900),
        sample(-100, 640, domain="kubepods"), crossing(0), mark(200, None, scope="node"),
    )  # fmt: skip
    assert (burst.outside, burst.reserved) == (260 * MI, CAPACITY - 800 * MI)
    found = reservation([("quiet", steady(5, outside=100 * MI, reserved=200 * MI)), ("race", burst)])
    assert (found.incident, found.evidence) == ("race", ("quiet", "race"))
    assert found.short == 260 * MI - (CAPACITY - 800 * MI)
    assert reservation([("race", steady(5))]) is reservation([]) is None, "not without a kubepods cgroup"


REACTION = st.sampled_from(REACTIONS)
BEYOND = st.integers(0, 1 << 34)


def threshold_for(rate: int, reaction: Reaction, beyond: int = 0) -> int:
    """The least threshold (bytes) for ``rate`` bytes/s."""
    return beyond + int(reaction.need_at(rate, max(reaction.phases_ms))) + 1


@pytest.mark.parametrize(
    ("reaction", "rate_mi", "wanted"),
    [
        # 50 MiB/s x 2.25 s = 112.5 MiB = 117,964,800 bytes.
        (NOTIFIED, 50, 117_964_801),
        # 1000 MiB/s x 5 ms = 5 MiB until the brake is on, 2 MiB that pass it, 5 MiB for a kill at the kill threshold.
        (HOLD, 1000, 12 * MI + 1),
        # 4000 MiB/s: 20 MiB, and a kill threshold of 20 MiB is at most three quarters of what is left, 26.67 MiB: in
        # all 46.67 MiB = 48,933,546.67 bytes.
        (HOLD, 4000, 48_933_547),
    ],
)
def test_the_threshold_that_a_growth_needs(reaction: Reaction, rate_mi: int, wanted: int) -> None:
    assert threshold_for(rate_mi * MI, reaction) == wanted
    assert threshold_for(rate_mi * MI, reaction, beyond=7 * MI) == wanted + 7 * MI


@given(st.integers(0, 50_000).map(lambda mi: mi * MI))
def test_a_hold_keeps_its_second_line_with_what_it_needs(rate: int) -> None:
    """By the policy's own line: what passes the brake stays above it, and it is in time for a kill."""
    taken = rate * STOP_NS // 10**9
    left = threshold_for(rate, HOLD) - taken
    line = second_line(left, rate)
    assert left - line >= (HOLD.through or 0) - 1
    assert line >= taken - 1
    less = left - 16
    assert less - second_line(less, rate) < (HOLD.through or 0) or second_line(less, rate) < taken


@given(st.integers(1, 1 << 40), REACTION, BEYOND)
def test_what_a_threshold_survives_needs_no_more(quantity: int, reaction: Reaction, beyond: int) -> None:
    found = survives(quantity, reaction, beyond)
    if found.always is None:
        assert threshold_for(0, reaction, beyond) > quantity
        return
    assert found.always <= found.at_best
    assert threshold_for(found.always, reaction, beyond) <= quantity
    assert threshold_for(found.always + 1, reaction, beyond) > quantity
