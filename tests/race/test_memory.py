"""The curves that are kept with an incident: of which cgroups, how thin, by which formula."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.race.events import KUBEPODS, Clear, Event, Sample
from monitor.race.facts import facts
from monitor.race.memory import USAGE, WORKING_SET, Curve, Memory, memory, thinned
from tests.race.builders import (
    CAPACITY,
    MI,
    OWN,
    START,
    clear,
    crossing,
    decided,
    gone,
    mark,
    ms,
    one,
    same_after_json,
    sample,
    watched,
)


def of(*events: Event) -> Memory:
    found = memory(facts(one(*START, *events)))
    assert same_after_json(found)
    return found


def pod_sample(t: float, name: str, used_mi: float, **more: Any) -> Sample:
    return sample(t, used_mi, domain=f"/kubepods/{name}", pod=f"uid-{name}", limit=None, **more)


def curve(found: Memory, **wanted: Any) -> Curve:
    [only] = [c for c in found.curves if all(getattr(c, key) == value for key, value in wanted.items())]
    return only


def test_the_domain_by_its_signal_and_pods_by_working_set() -> None:
    found = of(
        sample(-2000, 500, 20), pod_sample(-2000, "hog", 100, inactive_mi=10), pod_sample(-2000, "db", 150),
        sample(-1000, 700, 20), pod_sample(-1000, "hog", 300, inactive_mi=10), pod_sample(-1000, "db", 150),
        crossing(0), decided(0.1), gone(20, freed_mi=250), clear(20),
    )  # fmt: skip
    [line] = found.lines
    assert (line.signal, line.quantity, line.capacity, line.limit) == ("memory.available", 100 * MI, CAPACITY, CAPACITY)
    node = curve(found, domain="node")
    assert node.points[:2] == ((-2000.0, 480 * MI), (-1000.0, 680 * MI))
    assert node.points[2] == (0.0, CAPACITY - round(99.75 * MI))
    hog = curve(found, pod="shop/hog")
    assert (hog.measure, hog.grew, hog.in_s) == (WORKING_SET, 200 * MI, 1.0)
    assert hog.points == ((-2000.0, 90 * MI), (-1000.0, 290 * MI), (20.0, 40 * MI))
    assert [c.pod for c in found.curves] == [None, "shop/hog"], "db had no part in it and did not grow"


def test_another_formula_is_a_curve_of_its_own() -> None:
    own = watched(signal="memory.reclaimable", quantity=50 * MI)
    found = of(own, sample(-1000, 600, 20, active_file=100 * MI), sample(-500, 650, 20), crossing(0), clear(5))
    assert {line.signal for line in found.lines} == {"memory.available", "memory.reclaimable"}
    assert curve(found, measure="memory.reclaimable").points[0] == (-1000.0, 480 * MI)
    assert curve(found, measure="memory.available").points[0] == (-1000.0, 580 * MI)


def test_a_cgroup_at_its_own_limit_by_its_usage() -> None:
    path = OWN["oom_path"]
    grows = [sample(t, 60 + t / 100, 8, domain=path, pod="uid-hog", limit=None) for t in (-900, -500, -100)]
    found = of(*grows, mark(0, **OWN))
    own = curve(found, domain=path)
    assert found.lines == ()
    assert (own.measure, own.limit, own.pod) == (USAGE, 64 * MI, "shop/hog")
    assert own.points[-1] == (0.0, 64 * MI)


def test_kubepods_has_a_chart_when_it_was_crossed() -> None:
    both = {"domain": KUBEPODS, "signal": "allocatableMemory.available"}
    pressure = [sample(t, 500, domain=domain) for t in (-200, -100) for domain in ("node", KUBEPODS)]
    quiet = of(watched(**both), *pressure, crossing(0), clear(5))
    assert {line.domain for line in quiet.lines} == {"node"}
    met = of(
        watched(**both), *pressure, crossing(0), crossing(1, **both), clear(5),
        Clear(ms(5), **both, hard=True, available=500 * MI),
    )  # fmt: skip
    assert {c.domain for c in met.curves} == {"node", KUBEPODS}


def test_growers_are_named_up_to_a_number() -> None:
    pods = [f"p{i}" for i in range(20)]
    grown = [
        pod_sample(t, name, 10 + i + (i + 2) * (t + 2000) / 1000) for t in (-2000, -1000) for i, name in enumerate(pods)
    ]
    found = of(*grown, sample(-2000, 500), sample(-1000, 700), crossing(0), clear(5))
    assert [c.domain for c in found.curves[1:]] == [f"/kubepods/p{i}" for i in (19, 18, 17, 16)]


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


@pytest.mark.parametrize("count", [2000, 2048])
def test_a_long_record_stays_small(count: int) -> None:
    """Ten thousand incidents have to fit in the store's 64 MiB."""
    steps = [sample(-count + i, 400 + i / 10) for i in range(count)]
    assert len(json.dumps(of(*steps, crossing(0), clear(5)).to_json())) < 2000
