"""Which of the evicted pods go."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.evicted.pods import EvictedPod
from monitor.evicted.selection import Criteria, choose
from monitor.evicted.token_bucket import TokenBucket
from tests.kube.clock import WaitedClock

NOW = 1_000_000.0


def pod(
    name: str, age_s: float | None, namespace: str = "a", owner: str = "Deployment/web", held: str = ""
) -> EvictedPod:
    kind, _, owner_name = owner.partition("/")
    since = None if age_s is None else NOW - age_s
    return EvictedPod(namespace, name, f"uid-{namespace}-{name}", "1", "n", kind, owner_name, since, "", held)


def going(pods: list[EvictedPod], **criteria: object) -> list[str]:
    made = Criteria(**criteria)  # type: ignore[arg-type]
    return [choice.pod.name for choice in choose(pods, made, NOW) if choice.goes]


FIVE = [pod(str(age), age) for age in (10, 50, 30, 20, 40)]


def test_without_criteria_all_go_oldest_first() -> None:
    assert going(FIVE) == ["50", "40", "30", "20", "10"]


def test_by_age() -> None:
    assert going(FIVE, older_than_s=30.0) == ["50", "40", "30"]
    assert going([pod("x", None), pod("future", -60)], older_than_s=1.0) == []
    assert going([pod("x", None)]) == ["x"]


def test_the_newest_stay() -> None:
    assert going(FIVE, keep=2) == ["50", "40", "30"]
    assert going(FIVE, keep=0) == ["50", "40", "30", "20", "10"]
    assert going(FIVE, keep=9) == []


def test_the_newest_of_each_namespace_and_owner_stay() -> None:
    pods = [pod("a1", 1), pod("a2", 2), pod("b3", 3, "b"), pod("b4", 4, "b", "Job/x"), pod("b5", 5, "b")]
    assert going(pods, keep_per_namespace=1) == ["b5", "b4", "a2"]
    assert going(pods, keep_per_owner=1) == ["b5", "a2"]
    assert going(pods, keep_per_owner=1, keep=2) == ["b5"]


def test_every_criterion_only_keeps() -> None:
    assert going(FIVE, keep=1, older_than_s=45.0) == ["50"]
    assert going(FIVE, keep=5, older_than_s=0.0) == []


def test_by_owner_kind() -> None:
    pods = [pod("d", 1), pod("j", 2, owner="Job/x"), pod("bare", 3, owner="none")]
    assert going(pods, owner_kinds=frozenset({"job"})) == ["j"]
    assert going(pods, owner_kinds=frozenset({"None", "Deployment"})) == ["bare", "d"]


def test_what_is_held_stays_with_a_reason() -> None:
    pods = [pod("h", 50, held="container x is still running"), *FIVE[:2]]
    choices = choose(pods, Criteria(), NOW)
    assert [(choice.pod.name, choice.stays) for choice in choices] == [
        ("h", "container x is still running"),
        ("50", ""),
        ("10", ""),
    ]


def test_one_that_is_being_deleted_does_not_count() -> None:
    assert going([pod("gone", 1, held="is being deleted"), *FIVE], keep=1) == ["50", "40", "30", "20"]


PODS = st.lists(
    st.builds(
        pod,
        st.uuids().map(str),
        st.none() | st.integers(0, 100),
        st.sampled_from("abc"),
        st.sampled_from(["Deployment/web", "Job/x", "none"]),
        st.sampled_from(["", "", "its Job has not counted it yet", "is being deleted"]),
    ),
    max_size=30,
)
LIMIT = st.none() | st.integers(0, 5)
CRITERIA = st.builds(
    Criteria,
    older_than_s=st.none() | st.integers(0, 100),
    keep=LIMIT,
    keep_per_namespace=LIMIT,
    keep_per_owner=LIMIT,
)


@given(PODS, CRITERIA)
def test_laws(pods: list[EvictedPod], criteria: Criteria) -> None:
    choices = choose(pods, criteria, NOW)
    assert sorted(choice.pod.uid for choice in choices) == sorted(pod.uid for pod in pods)
    gone = {choice.pod.uid for choice in choices if choice.goes}
    stay = [one for one in pods if one.uid not in gone and one.held != "is being deleted"]
    countable = [one for one in pods if one.held != "is being deleted"]
    assert not any(one.held for one in pods if one.uid in gone)
    if criteria.keep is not None:  # at least so many stay, and they are the newest
        assert len(stay) >= min(criteria.keep, len(countable))
    for name in {one.namespace for one in countable}:
        if criteria.keep_per_namespace is not None:
            of = [one for one in countable if one.namespace == name]
            assert sum(one.uid not in gone for one in of) >= min(criteria.keep_per_namespace, len(of))
    # Done again on what stays, nothing more goes.
    assert not any(choice.goes for choice in choose(stay, criteria, NOW))
    # A criterion taken away never keeps more.
    for name in ("older_than_s", "keep", "keep_per_namespace", "keep_per_owner"):
        fewer = choose(pods, dataclasses.replace(criteria, **{name: None}), NOW)
        assert gone <= {choice.pod.uid for choice in fewer if choice.goes}


def test_no_more_than_the_rate() -> None:
    clock = WaitedClock()
    bucket = TokenBucket(10.0, clock=clock)
    waits = []
    for _ in range(30):
        waits.append(bucket.take())
        clock.wait(waits[-1])
    assert waits[:10] == [0.0] * 10
    assert clock.now == pytest.approx(2.0)
    clock.wait(100.0)  # what was not used is not saved up beyond the burst
    for _ in range(20):
        clock.wait(bucket.take())
    assert clock.now == pytest.approx(103.0)


def test_slow_rates_do_not_wait_for_ever() -> None:
    clock = WaitedClock()
    bucket = TokenBucket(0.5, clock=clock)
    assert (bucket.take(), bucket.take()) == (0.0, 2.0)
