"""What else an incident has: margins, advice, timeline, page cache, and the curves that are kept with it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.race.events import End, Event, Reclaim
from monitor.race.facts import Facts
from monitor.race.incident import timestamp
from monitor.race.memory import USAGE, Memory, memory, thinned
from monitor.race.verdict import verdict
from tests.race.builders import (
    CAPACITY,
    KUBEPODS,
    MI,
    MS,
    OWN,
    PODS,
    START,
    clear,
    crossing,
    decided,
    gone,
    growing,
    mark,
    ms,
    one,
    pod,
    ranked,
    same_after_json,
    sample,
    signalled,
    watched,
)
from tests.race.scenarios import CLEAR, EVICTED, MARKED, SCENARIOS


def test_the_order_is_the_last_one_reported_before_the_kill() -> None:
    other = (pod("db", 900 * MI), *PODS[:2])
    late = one(watched(), ranked(), crossing(), *MARKED, ranked(4, other), *CLEAR)
    assert Facts(late).order == PODS


def test_the_grace_of_a_soft_threshold_is_compared_with_the_way_to_the_limit() -> None:
    soft = {"hard": False, "quantity": 200 * MI}
    soft_line = watched(**soft, grace_s=60.0)
    episode = one(*START, soft_line, crossing(-900, 200, **soft), *MARKED, clear(12, hard=False), End(ms(5000)))
    assert "takes 903 ms: its grace of 60 s has to be shorter" in verdict(episode).advice


def test_the_timeline_has_every_step_and_what_grew_before() -> None:
    podly = [sample(t, used, domain="/kubepods/hog", pod="uid-hog") for t, used in ((-900, 10), (-1, 99))]
    cache = [
        sample(-900, 300, 100, domain="/kubepods/db", active_file=0),
        sample(-1, 300, 20, domain="/kubepods/db", active_file=80 * MI),
    ]
    episode = one(*START, *podly, *cache, Reclaim(ms(-0.5), "/node"), crossing(), *EVICTED, *CLEAR)
    found = verdict(episode).steps
    assert [s["what"] for s in found] == [
        "grew", "grew", "cache_activated", "reclaim", "crossed", "decided", "signalled", "gone", "clear",
    ]  # fmt: skip
    assert found[0] | {"pod": "shop/hog", "bytes": 89 * MI, "t_ms": -1.0} == found[0]
    assert found[2]["active_file"] == 80 * MI
    assert found[5] | {"t_ms": 0.1, "pod": "shop/hog", "available": round(99.75 * MI)} == found[5]


def test_times_are_written_as_dates() -> None:
    assert timestamp(0) == "1970-01-01T00:00:00.000Z"
    assert timestamp(951_826_149_123 * MS) == "2000-02-29T12:09:09.123Z"
    assert timestamp(4_107_542_399_999 * MS) == "2100-02-28T23:59:59.999Z"
    found = verdict(one(*SCENARIOS["eviction won"][0]), realtime_ns=1_800_000_000 * 10**9)
    assert (found.start, found.id) == ("2027-01-15T08:16:40.000Z", "20270115-081640.000-node")
    assert found.margin_bytes <= CAPACITY


@pytest.mark.parametrize(
    ("active_mi", "before_mi", "named"), [(300, 0, True), (0.1, 0, False), (300, 280, False)],
    ids=["enough", "too little", "active all the time"],
)  # fmt: skip
def test_active_cache_that_would_have_been_enough_is_named(active_mi: float, before_mi: float, named: bool) -> None:
    episode = one(
        watched(), ranked(), sample(-1100, 700, active_file=round(before_mi * MI)), *growing(-1000, -100, 700, 100),
        sample(0, 900.25, active_file=round(active_mi * MI)), crossing(0), decided(1), signalled(1), gone(5),
        sample(6, 400), clear(6),
    )  # fmt: skip
    found = verdict(episode)
    assert found.verdict == "eviction_won"
    assert ("Page cache was behind it: 300 MiB were active" in found.advice) == named
    assert ("256 KiB were short" in found.advice) == ("Page cache" in found.advice) == named


# curves: of which cgroups, how thin, by which formula


def curves_of(*events: Event) -> Memory:
    found = memory(Facts(one(*START, *events)))
    assert same_after_json(found)
    return found


def test_a_cgroup_at_its_own_limit_by_its_usage() -> None:
    path = OWN["oom_path"]
    grows = [sample(t, 60 + t / 100, 8, domain=path, pod="uid-hog") for t in (-900, -500, -100)]
    found = curves_of(*grows, mark(0, **OWN))
    [own] = [curve for curve in found.curves if curve.domain == path]
    assert found.lines == ()
    assert (own.measure, own.limit, own.pod) == (USAGE, 64 * MI, "shop/hog")
    assert own.points[-1] == (0.0, 64 * MI)


def test_kubepods_has_a_chart_when_it_was_crossed() -> None:
    pressure = [sample(t, 500, domain=domain) for t in (-200, -100) for domain in ("node", "kubepods")]
    quiet = curves_of(watched(**KUBEPODS), *pressure, crossing(0), clear(5))
    assert {line.domain for line in quiet.lines} == {"node"}
    met = curves_of(
        watched(**KUBEPODS), *pressure, crossing(0), crossing(1, **KUBEPODS), clear(5),
        clear(5, 500, **KUBEPODS),
    )  # fmt: skip
    assert {c.domain for c in met.curves} == {"node", "kubepods"}


@given(st.lists(st.integers(0, 1 << 40), max_size=300), st.integers(1, 30))
def test_thinning_loses_no_peak(values: list[int], stretches: int) -> None:
    points = list(enumerate(values))
    kept = thinned(points, stretches)
    assert len(kept) <= 2 * stretches + 2
    assert kept == sorted(set(kept) & set(points))
    if points:
        assert (kept[0], kept[-1]) == (points[0], points[-1])
        for extreme in (min, max):
            assert extreme(v for _, v in kept) == extreme(values)
