"""Whom a kubelet takes by the age of its figures of pods: worked out by hand, and the laws."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.ranking import Candidate, memory_order
from monitor.policy.releases import era
from monitor.race.events import End, KubeletEvicted, WorkingSets
from monitor.race.facts import facts
from monitor.race.figure_age import OLDEST_NS, FigureAge, OfAge, PodHistory, PodPoints, figure_age, of_pod
from monitor.race.series import TimeSeries
from monitor.race.verdict import verdict
from monitor.race.world import pod_history
from monitor.side.judge import judge
from tests.race.builders import (
    MI,
    START,
    S,
    clear,
    crossing,
    gone,
    growing,
    kill,
    mark,
    ms,
    one,
    pod,
    same_after_json,
    sample,
)
from tests.race.test_counterfactual import HARD

#: The hog grew from 10 MiB since 8 s before; db has 150 MiB and a priority above cart's, which has 100.
HOG, CART, DB = pod("hog", 800 * MI), pod("cart", 100 * MI), pod("db", 150 * MI, priority=1)


def series(*points: tuple[float, float]) -> TimeSeries:
    """Of (seconds before T0, MiB)."""
    return TimeSeries([(ms(-1000 * s), round(mib * MI)) for s, mib in points])


GROWN = PodHistory({"uid-hog": series((20, 10), (8, 10), (6, 50), (4, 90), (2, 400), (0, 800))}, {}, ms(-20_000))


def spans(found: FigureAge | None) -> list[tuple[str, float, float]]:
    assert found is not None
    return [(one.pod.removeprefix("shop/"), one.from_s, one.to_s) for one in found.by_age]


def test_the_hog_is_first_on_figures_that_saw_it_grow() -> None:
    # 2 s before it had 400 MiB, 4 s before 90: less than cart's 100, which is first by figures older than 2 s.
    found = figure_age((HOG, CART, DB), GROWN, ms(0), ms(-1500))
    assert found == FigureAge(
        1500.0,
        "shop/hog",
        15.0,
        (OfAge("shop/hog", 0, 2.0, 0.133), OfAge("shop/cart", 2.0, 15.0, 0.867)),
        ("shop/cart", "shop/hog"),
    )
    assert same_after_json(found)


def test_a_pod_that_did_not_exist_has_no_figure_and_goes_first() -> None:
    """A kubelet ranks pods without stats before all others."""
    new = PodHistory({"uid-hog": series((3, 5), (1, 30))}, {"uid-hog": ms(-3000)}, ms(-20_000))
    small = dataclasses.replace(HOG, usage=30 * MI)
    assert spans(figure_age((small, CART), new, ms(0), ms(0))) == [("cart", 0, 3), ("hog", 3, 15)]
    old = dataclasses.replace(new, born_ns={})
    assert spans(figure_age((small, CART), old, ms(0), ms(0))) == [("cart", 0, 15)]


def test_what_is_older_than_the_record_is_not_known() -> None:
    found = figure_age((HOG, CART), dataclasses.replace(GROWN, since_ns=ms(-3000)), ms(0), ms(0))
    assert found is not None
    assert (found.known_s, spans(found)) == (3.0, [("hog", 0, 2), ("cart", 2, 3)])
    nothing = figure_age((HOG, CART), PodHistory(since_ns=ms(0)), ms(0), ms(0))
    assert nothing is not None
    assert (nothing.fresh, nothing.known_s, nothing.by_age) == ("shop/hog", 0, ())


def test_each_figure_has_an_age_of_its_own() -> None:
    """No common age has b first: it fell when a rose. But a's may be old while b's is old too, and c is between."""
    a, b = pod("a", 300 * MI), pod("b", 50 * MI)
    known = PodHistory({"uid-a": series((20, 10), (5, 300)), "uid-b": series((20, 280), (9, 50))}, {}, ms(-20_000))
    found = figure_age((a, b, pod("c", 200 * MI)), known, ms(0), ms(0))
    assert found is not None
    assert spans(found) == [("a", 0, 5), ("c", 5, 9), ("b", 9, 15)]
    assert found.could == ("shop/a", "shop/b", "shop/c")


@pytest.mark.parametrize(
    "pods", [(), (pod("agent", MI, critical=True),), (HOG, dataclasses.replace(CART, priority=None))]
)
def test_nobody_to_take_or_a_priority_that_is_not_known(pods: tuple[Candidate, ...]) -> None:
    assert figure_age(pods, GROWN, ms(0), ms(0)) is None


def test_each_release_ranks_as_it_does() -> None:
    """1.8 goes by QoS class: usage, of whatever age, only decides within one."""
    pods = (dataclasses.replace(HOG, qos="Guaranteed"), dataclasses.replace(CART, qos="BestEffort"))
    assert spans(figure_age(pods, GROWN, ms(0), ms(0), era("kubelet-1.8").memory_key)) == [("cart", 0, 15)]


# laws

_PODS = st.lists(
    st.tuples(
        st.integers(-1, 1),  # priority
        st.integers(0, 300),  # request
        st.lists(st.tuples(st.integers(0, 20), st.integers(0, 500)), min_size=1, max_size=6),  # seconds ago, MiB
        st.booleans(),  # came while it was recorded
    ),
    min_size=1,
    max_size=6,
)


def _made(drawn: list[Any]) -> tuple[tuple[Candidate, ...], PodHistory]:
    known = {f"uid-p{i}": series(*points) for i, (_, _, points, _) in enumerate(drawn)}
    pods = tuple(
        pod(f"p{i}", known[f"uid-p{i}"].held(ms(0)), request * MI, priority)
        for i, (priority, request, _, _) in enumerate(drawn)
    )
    born = {f"uid-p{i}": known[f"uid-p{i}"].times[0] for i, one in enumerate(drawn) if one[3]}
    return pods, PodHistory(known, born, ms(-20_000))


@given(_PODS)
def test_every_age_has_one_pod_and_it_is_possible(drawn: list[Any]) -> None:
    pods, known = _made(drawn)
    found = figure_age(pods, known, ms(0), ms(0))
    assert found is not None
    edges = [(span.from_s, span.to_s) for span in found.by_age]
    assert [edge[0] for edge in edges[1:]] == [edge[1] for edge in edges[:-1]]
    assert (edges[0][0], edges[-1][1]) == (0, OLDEST_NS / S)
    assert sum(span.share for span in found.by_age) == pytest.approx(1, abs=0.01)
    assert {found.fresh, *(span.pod for span in found.by_age)} <= set(found.could)
    assert found.fresh == f"shop/{memory_order(pods)[0].name}"
    for span in found.by_age:  # by the order itself, on the figures of the middle of it
        at = ms(-500 * (span.from_s + span.to_s))
        then = [dataclasses.replace(p, usage=known.usage(p, at)) for p in pods]
        assert span.pod == f"shop/{memory_order(then)[0].name}"


@given(_PODS)
def test_pods_that_did_not_change_rank_alike_at_every_age(drawn: list[Any]) -> None:
    pods, _ = _made(drawn)
    still = PodHistory({p.uid: TimeSeries([(ms(-20_000), p.usage or 0)]) for p in pods}, {}, ms(-20_000))
    found = figure_age(pods, still, ms(0), ms(0))
    assert found is not None
    assert [span.pod for span in found.by_age] == [found.fresh] == list(found.could)


# in an incident


def moved(t: float, *pods: PodPoints, since: float = -20_000) -> WorkingSets:
    return WorkingSets(ms(t), ms(since), pods)


def points(name: str, *found: tuple[float, float], new: bool = False) -> PodPoints:
    """Of (seconds before T0, MiB)."""
    return PodPoints(f"uid-{name}", new, tuple((ms(-1000 * s), round(mib * MI)) for s, mib in found))


#: The hog had 20 MiB until 3 s before the crossing; cart, which has 200, is first by what was before.
HOGS = moved(1, points("hog", (20, 20), (3, 300), (1, 500)))
END = End(ms(60_000))
STOPPED = (kill(4000, "cart", 10, code=0, sender_comm="containerd-shim"), gone(4050, "cart", None, by="kubelet"))


def reported(t: float, name: str) -> KubeletEvicted:
    return KubeletEvicted(ms(t), f"uid-{name}", f"shop/{name}", "The node was low on resource: memory. ")


def test_an_eviction_by_the_kubelet_is_explained() -> None:
    """SIGKILL came at 4 s, so it decided at 2 s: there the hog had 20 MiB on figures more than 5 s old."""
    found = verdict(one(*START, crossing(), HOGS, *STOPPED, reported(4900, "cart"), clear(4060), END))
    assert (found.verdict, found.by, found.reported_evicted) == ("eviction_won", "kubelet", ("shop/cart",))
    figures = found.evicted[0].figures
    assert figures is not None
    assert (figures.at_ms, spans(figures)) == (2000, [("hog", 0, 5), ("cart", 5, 15)])
    assert (
        "the kubelet took shop/cart, number 2 in the order of eviction: on figures 5 to 15 s old it was first, on "
        "fresh ones shop/hog"
    ) in found.summary
    assert same_after_json(found)


def test_where_no_figures_put_it_first_that_is_not_shown() -> None:
    found = verdict(one(*START, crossing(), moved(1), *STOPPED, reported(4900, "cart"), clear(4060), END))
    assert "number 2 in the order of eviction: it ranks by figures of pods that are up to 15 s old" in found.summary


def test_of_a_pod() -> None:
    found = FigureAge(0, "n/a", 15, (OfAge("n/a", 0, 4, 0.267), OfAge("n/b", 4, 15, 0.733)), ("n/a", "n/b"))
    assert of_pod(found, "n/a") == "on figures up to 4 s old it was first"
    assert of_pod(found, "n/b") == "on figures 4 to 15 s old it was first, on fresh ones n/a"
    assert of_pod(found, "n/c") == ""


def test_the_counterfactual_reports_it_too() -> None:
    node = (*growing(-1000, -100, 800, 100), crossing(), sample(8999, 905), sample(9000, 400))
    incident = judge(one(*START, *node, HOGS, clear(9000), END), HARD, 0)
    (answer,) = incident.counterfactual
    assert answer.figures is not None
    # The median of its decisions, 4.5 s after the crossing: 9 s of the loop's 10 see the threshold met.
    assert (answer.figures.at_ms, answer.figures.fresh) == (pytest.approx(4500, abs=5), "shop/hog")
    assert spans(answer.figures) == [
        ("hog", 0, pytest.approx(7.5, abs=0.01)),
        ("cart", pytest.approx(7.5, abs=0.01), 15),
    ]


def test_an_episode_keeps_the_first_histories_and_the_latest() -> None:
    many = [moved(t, points("hog", (0, t)), since=t - 20_000) for t in range(1, 10)]
    found = one(*START, crossing(), *many, clear(9000), END)
    assert [e.ts_ns for e in found.events if isinstance(e, WorkingSets)] == [ms(t) for t in (1, 2, 8, 9)]
    assert pod_history(facts(found)).since_ns == ms(1 - 20_000)


def test_a_pod_of_which_nothing_was_read_has_no_series() -> None:
    """Its cgroup was gone before the first look: the incident is judged all the same."""
    found = one(*START, crossing(), moved(1, points("hog", (20, 20), (1, 500)), points("x", new=True)), mark(300), END)
    assert set(pod_history(facts(found)).series) & {"uid-hog", "uid-x"} == {"uid-hog"}
    assert pod_history(facts(found)).born_ns == {}
    assert judge(found, HARD, 0).verdict == "oom_before_decision"
