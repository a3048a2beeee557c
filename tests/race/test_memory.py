"""The curves that are kept with an incident: of which cgroups, how thin, by which formula."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from monitor.race.events import Event
from monitor.race.facts import Facts
from monitor.race.memory import USAGE, Curve, Memory, memory, thinned
from tests.race.builders import KUBEPODS, MI, OWN, START, clear, crossing, mark, one, same_after_json, sample, watched


def of(*events: Event) -> Memory:
    found = memory(Facts(one(*START, *events)))
    assert same_after_json(found)
    return found


def curve(found: Memory, **wanted: Any) -> Curve:
    [only] = [c for c in found.curves if all(getattr(c, key) == value for key, value in wanted.items())]
    return only


def test_a_cgroup_at_its_own_limit_by_its_usage() -> None:
    path = OWN["oom_path"]
    grows = [sample(t, 60 + t / 100, 8, domain=path, pod="uid-hog") for t in (-900, -500, -100)]
    found = of(*grows, mark(0, **OWN))
    own = curve(found, domain=path)
    assert found.lines == ()
    assert (own.measure, own.limit, own.pod) == (USAGE, 64 * MI, "shop/hog")
    assert own.points[-1] == (0.0, 64 * MI)


def test_kubepods_has_a_chart_when_it_was_crossed() -> None:
    pressure = [sample(t, 500, domain=domain) for t in (-200, -100) for domain in ("node", "kubepods")]
    quiet = of(watched(**KUBEPODS), *pressure, crossing(0), clear(5))
    assert {line.domain for line in quiet.lines} == {"node"}
    met = of(
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
