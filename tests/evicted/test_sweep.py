"""Sweeps against the fake API server when it is nasty; test_evicted_contract.py has what is deleted and what is not."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.evicted.sweep import DELETED, FAILED, EvictedPod, Progress, Sweep, choose
from monitor.kube.client import ApiClient
from monitor.kube.errors import ServerError, TransportError
from tests.evicted.made import evicted, names, put
from tests.kube import faults
from tests.kube.clock import WaitedClock
from tests.kube.fake_apiserver import FakeApiServer
from tests.kube.fake_http import Asked, Reply

Make = Callable[..., Sweep]


@pytest.fixture
def clock() -> WaitedClock:
    return WaitedClock()


@pytest.fixture
def make(client: ApiClient, clock: WaitedClock) -> Make:
    def make(**options: Any) -> Sweep:
        return Sweep(client, **{"rate": 1000.0, "clock": clock, "wait": clock.wait, **options})

    return make


def swept(sweep: Sweep) -> Progress:
    *_, progress = sweep.delete(sweep.find())
    return progress


def test_only_what_the_server_is_asked_for(api: FakeApiServer, make: Make) -> None:
    put(api, evicted("a", "one", labels={"app": "x"}), evicted("b", "two"), evicted("c", "three", labels={"app": "x"}))
    assert [pod.key for pod in make().find(("one", "two"), "app=x", "node-1")] == ["one/a"]
    (one, two) = api.seen("GET", "pods")
    assert (one.path, two.path) == ("/api/v1/namespaces/one/pods", "/api/v1/namespaces/two/pods")
    assert one.query["fieldSelector"] == "status.phase=Failed,spec.nodeName=node-1"


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_what_passes_is_tried_again(api: FakeApiServer, make: Make, clock: WaitedClock, method: str) -> None:
    """After the time that the server asks for; test_backoff.py has what else passes."""
    put(api, evicted("a"), evicted("b"))
    met = api.fail(faults.status(429, "TooManyRequests", Retry_After="7"), times=2, method=method, path="pods")
    progress = swept(make())
    assert (met.met, progress.outcomes[DELETED], names(api)) == (2, 2, set())
    assert clock.now >= 14.0


def test_without_the_right_to_delete_a_namespace_is_asked_once(api: FakeApiServer, make: Make) -> None:
    put(api, *(evicted(f"a{number}", "closed") for number in range(5)), evicted("b", "open"))
    refuse = faults.status(403, "Forbidden", 'pods "a" is forbidden: User "me" cannot delete resource "pods"')
    api.fail(refuse, times=99, path="namespaces/closed")
    progress = swept(make())
    assert dict(progress.outcomes) == {FAILED: 5, DELETED: 1}
    assert len(api.seen("DELETE", "closed")) == 1
    (problem,) = progress.problems
    assert '{apiGroups: [""], resources: ["pods"], verbs: ["delete"]}' in problem


def test_a_refusal_of_one_pod_is_its_own(api: FakeApiServer, make: Make) -> None:
    """An admission webhook refuses in its own words, with 403."""
    put(api, *(evicted(name) for name in "abc"))
    api.fail(faults.status(403, "Forbidden", 'admission webhook "keep" denied the request'), times=99, path="pods/b")
    progress = swept(make())
    assert dict(progress.outcomes) == {FAILED: 1, DELETED: 2}
    assert names(api) == {"default/b"}


def test_a_server_that_stays_away_ends_it_and_the_next_sweep_goes_on(api: FakeApiServer, make: Make) -> None:
    put(api, *(evicted(f"a{number}") for number in range(6)))
    sweep = make()
    going = sweep.delete(sweep.find())
    assert [str(next(going)) for _ in range(2)] == ["1 of 6: 1 deleted", "2 of 6: 2 deleted"]
    api.refuse()
    with pytest.raises(TransportError):
        next(going)
    api.listen()
    assert len(names(api)) == 4
    assert dict(swept(make()).outcomes) == {DELETED: 4}


def test_a_server_that_fails_on_every_pod_ends_it(api: FakeApiServer, make: Make) -> None:
    put(api, *(evicted(f"a{number}") for number in range(9)))
    api.fail(faults.status(500, "InternalError", "no quorum"), times=10_000, method="DELETE")
    with pytest.raises(ServerError, match="no quorum"):
        swept(make())
    assert len({asked.path for asked in api.seen("DELETE")}) == 3


def test_pages_that_expire_half_way_lose_and_double_nothing(api: FakeApiServer, make: Make) -> None:
    put(api, *(evicted(f"a{number:04}") for number in range(1200)))
    pages = []

    def compact(asked: Asked, _reply: Reply) -> bool:
        pages.append(asked.query.get("limit"))
        if "continue" in asked.query:
            api.store.compact()
        return False

    api.fail(compact, times=99, method="GET", path="pods")
    found = make().find()
    assert pages == ["500", "500", None]
    assert len(found) == len({pod.uid for pod in found}) == 1200


def test_deletes_are_paced_and_take_no_other_right(api: FakeApiServer, make: Make, clock: WaitedClock) -> None:
    """test_kubernetes.py has that the chart grants these two."""
    put(api, *(evicted(f"a{number}") for number in range(20)))
    swept(make(rate=5.0))
    assert clock.now == pytest.approx(19 / 5)
    for asked in api.seen("DELETE"):
        assert asked.json()["preconditions"].keys() == {"uid", "resourceVersion"}
    used = {(asked.method, asked.path.rpartition("/a")[0] or asked.path) for asked in api.asked}
    assert used == {("GET", "/api/v1/pods"), ("DELETE", "/api/v1/namespaces/default/pods")}


# which of them go

NOW = 1_000_000.0


def pod(name: str, age_s: float | None, namespace: str, owner: str, stays: str) -> EvictedPod:
    kind, _, owner_name = owner.partition("/")
    since = None if age_s is None else NOW - age_s
    return EvictedPod(namespace, name, f"uid-{namespace}-{name}", "1", "n", kind, owner_name, since, "", stays)


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


@given(PODS, st.none() | st.integers(0, 100))
def test_laws(pods: list[EvictedPod], older_than_s: int | None) -> None:
    chosen = choose(pods, NOW, older_than_s)
    before = {pod.uid: pod for pod in pods}
    assert sorted(pod.uid for pod in chosen) == sorted(before)
    ages = [NOW - pod.since for pod in chosen if pod.since is not None]
    assert ages == sorted(ages, reverse=True)
    for pod in chosen:
        old = older_than_s is None or (pod.since is not None and NOW - pod.since >= older_than_s)
        assert (not pod.stays) == (old and not before[pod.uid].stays)
        assert pod.stays.startswith(before[pod.uid].stays)
