"""The threshold that would have won, from how fast memory was taken."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.race.burst import REACTIONS, Advised, Burst, advise
from monitor.race.verdict import verdict
from tests.race.builders import (
    CAPACITY,
    MI,
    QUANTITY,
    clear,
    crossing,
    decided,
    gone,
    growing,
    mark,
    one,
    sample,
    signalled,
    watched,
)


def burst_of(*events: Any) -> Burst | None:
    return verdict(one(watched(), *events)).burst


def by_reaction(*bursts: Burst, quantile: float = 0.99) -> dict[str, Advised]:
    return {each.reaction: each for each in advise(bursts, quantile)}


def test_steady_growth_up_to_a_kill() -> None:
    """500 MiB/s: 2.5 MiB in outrace's 5 ms; the kubelet's 12 s need more than the machine has."""
    found = burst_of(*growing(-1000, 0, 400, 500), crossing(0), mark(200, None, scope="node"))
    assert found.rate == pytest.approx(500 * MI, rel=0.01)
    assert found.needed(5) == pytest.approx(2.5 * MI, rel=0.02)
    assert found.needed(1000) == pytest.approx(500 * MI, rel=0.02)
    advised = by_reaction(found)
    assert advised["outrace"].threshold == pytest.approx(2.5 * MI, rel=0.02)
    assert advised["outrace"].present == 1.0
    assert advised["kubelet"].threshold is None
    assert advised["kubelet"].present == 0.0
    assert advised["kubelet-notified"].threshold is None


def test_a_slow_leak_gives_a_kubelet_its_threshold() -> None:
    """5 MiB/s: 12.03 s of it at most, in every phase of the loop."""
    found = burst_of(*growing(-20_000, 0, 799.75, 5), crossing(0), mark(20_000, None, scope="node"))
    assert found is not None
    advised = by_reaction(found, quantile=1.0)["kubelet"]
    assert advised.threshold == pytest.approx(5 * 12.03 * MI, rel=0.02)
    assert advised.present == 1.0  # 100 MiB last 20 s
    half = by_reaction(found, quantile=0.5)["kubelet"]
    assert half.threshold == pytest.approx(5 * 7.03 * MI, rel=0.05)


def test_a_jump_is_not_averaged_away() -> None:
    """A burst of 300 MiB in 100 ms that came to rest: no rate to go on with, but the burst itself counts."""
    found = burst_of(
        *growing(-5000, -200, 500, 0), sample(-100, 600), sample(0, 900), crossing(0), sample(500, 905), clear(1000)
    )
    assert found.rate is None
    assert found.needed(100) == pytest.approx(300 * MI, rel=0.02)
    assert found.needed(12_000) == pytest.approx(405 * MI, rel=0.02)


def test_an_eviction_cuts_the_record() -> None:
    """What came back afterwards, and what grew then, is of another world: growth goes on as it was."""
    found = burst_of(
        *growing(-1000, 0, 800, 100),
        crossing(0),
        decided(1),
        signalled(1),
        gone(10),
        sample(20, 400),
        clear(20),
        sample(30, 890),
    )
    assert found.rate == pytest.approx(100 * MI, rel=0.02)
    assert found.needed(10) == pytest.approx(1 * MI, rel=0.2)


def test_a_limit_below_the_capacity_has_to_be_kept_away_from_as_well() -> None:
    limit = CAPACITY - 50 * MI
    found = verdict(
        one(watched(limit=limit), *growing(-1000, 0, 800, 100), crossing(0), mark(100, None, oom_limit=limit))
    ).burst
    assert found.beyond == 50 * MI
    assert found.needed(5) == pytest.approx(50.5 * MI, rel=0.02)


def test_no_race_no_burst() -> None:
    assert burst_of(sample(-10, 100), mark(0, "hog", scope="container", oom_path="/kubepods/hog/main")) is None


def test_only_the_latest_capacity_counts() -> None:
    small = Burst("memory.available", 500 * MI, None, 0, None, ((12_500, 400 * MI),))
    large = Burst("memory.available", CAPACITY, QUANTITY, 0, None, ((12_500, 50 * MI),))
    advised = advise([small, large, large])
    assert {each.episodes for each in advised} == {2}
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
    for each in advise(bursts, quantile):
        needs = [b.needed(ms) for b in bursts for ms in REACTIONS[each.reaction]]
        if each.threshold is None:
            assert sum(n < CAPACITY - 1 for n in needs) < quantile * len(needs) + 1e-6
            continue
        assert sum(n < each.threshold for n in needs) >= quantile * len(needs) - 1e-6
        assert sum(n < each.threshold - 1 for n in needs) < quantile * len(needs) + 1e-6  # and none smaller does
