"""Pods as a cluster reports them: what is known, for how long, and what is stored."""

import json
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from monitor.kube.errors import TransportError
from monitor.pods import feed as feeds
from monitor.pods.feed import LINGER_S, STORE_S, Known, PodCache, PodFeed, known
from monitor.pods.manifest_files import Manifest
from tests.kube.clock import WaitedClock
from tests.pods.cluster import Cluster, a_pod
from tests.puppet import TIMEOUT_S

Object = dict[str, Any]


class PushedFeed(PodFeed):
    """A feed whose source is the test."""

    made: ClassVar[list[PodFeed]] = []

    def __init__(self, *arguments: Any, clock: WaitedClock | None = None) -> None:
        super().__init__(*arguments)
        self._clock = clock or self._clock
        self.made.append(self)

    def _run(self) -> None:
        raise AssertionError("a bug")


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while PushedFeed.made:
        PushedFeed.made.pop().close()


@pytest.fixture
def clock() -> WaitedClock:
    return WaitedClock(1000.0)


@pytest.fixture
def feed(clock: WaitedClock) -> PushedFeed:
    return PushedFeed("test", clock=clock)


def made(name: str, uid: str, **more: Any) -> Known:
    return known("test", a_pod(name, uid, **more))


def names(found: list[Manifest]) -> list[str]:
    return sorted(one.pod.name for one in found)


def of(*pods: Known) -> dict[str, Known]:
    return {one.uid: one for one in pods}


def test_a_deleted_pod_stays_a_minute(feed: PushedFeed, clock: WaitedClock) -> None:
    feed.replace_all(of(made("a", "u1"), made("b", "u2")))
    feed.drop("u1")
    clock.now += LINGER_S - 1
    assert names(feed.manifests()) == ["a", "b"]
    assert {one.pod.name: one.pod.phase for one in feed.manifests()} == {"a": "Succeeded", "b": "Running"}
    clock.now += 2
    assert names(feed.manifests()) == ["b"]


def test_one_whose_cgroup_is_there_stays_as_long(feed: PushedFeed, clock: WaitedClock) -> None:
    """A kubelet that was restarted while the API server is away knows its static pods alone, for as long as that."""
    feed.replace_all(of(made("a", "u1"), made("b", "u2")))
    feed.replace_all({})
    clock.now += 20 * LINGER_S
    assert names(feed.manifests(present={"u1"})) == ["a"]
    feed.replace_all(of(made("a", "u1")))
    assert [one.pod.phase for one in feed.manifests()] == ["Running"]


def test_a_pod_made_anew_under_its_name_is_another_one(feed: PushedFeed) -> None:
    feed.replace_all(of(made("db-0", "u1", priority=5)))
    feed.drop("u1")
    feed.put(made("db-0", "u2", priority=7))
    assert sorted((one.pod.uid, one.pod.priority) for one in feed.manifests()) == [("u1", 5), ("u2", 7)]


def test_only_what_changed_is_announced(feed: PushedFeed) -> None:
    feed.replace_all(of(made("a", "u1")))
    assert feed.drain()
    assert not feed.drain()
    feed.replace_all(of(made("a", "u1")))
    feed.put(made("a", "u1"))
    feed.drop("unknown")
    feed.answered()
    assert not feed.drain()
    feed.fail(TransportError("refused"))
    feed.fail(TransportError("refused"))
    assert feed.drain()
    assert feed.problems() == ["test: refused; its last pods stay in use"]
    assert feed.is_failing
    feed.answered()
    assert feed.drain()
    assert feed.problems() == []
    assert not feed.is_failing


def test_what_is_announced_is_known(feed: PushedFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that is woken up looks without the lock."""
    known_then = list[bool]()
    monkeypatch.setattr(feed, "_changed", lambda news: known_then.append(feed.is_known))
    feed.replace_all({})
    assert known_then == [True]


def test_after_its_end_nothing_is_written_into_the_number_of_its_descriptor(feed: PushedFeed) -> None:
    feed.close()
    feed.put(made("a", "u1"))
    feed.fail(TransportError("refused"))
    feed.close()


def test_a_bug_in_its_thread_is_raised_where_pods_are_asked_for(feed: PushedFeed) -> None:
    feed.start()
    assert select.select([feed.fileno()], [], [], TIMEOUT_S)[0]
    with pytest.raises(AssertionError, match="a bug"):
        feed.manifests()


@pytest.mark.parametrize(
    "obj",
    [None, 7, [], {}, {"metadata": None}, {"metadata": {"uid": 7}}, {"metadata": {"uid": ""}}, {"metadata": ["uid"]}],
)
def test_what_has_no_uid_is_passed_over(obj: Any) -> None:
    assert known("test", obj) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda pod: pod["metadata"].update(name=["?"]),
        lambda pod: pod["metadata"].update(annotations=7, labels=[1], ownerReferences={"kind": "x"}),
        lambda pod: pod.update(spec=None, status="none"),
        lambda pod: pod["spec"].update(containers={"name": "x"}),
        lambda pod: pod["spec"].update(containers=[{"name": ["x"], "resources": [1]}]),
        lambda pod: pod["spec"].update(volumes=[{"name": 5, "emptyDir": 5}], tolerations=[None]),
        lambda pod: pod["status"].update(containerStatuses=[{"name": {}, "allocatedResources": {"memory": "1"}}]),
        lambda pod: pod["spec"]["containers"][0]["resources"].update(requests={"memory": "much"}),
        lambda pod: pod["metadata"].update(name="\ud800"),
    ],
)
def test_an_object_of_any_shape_is_a_pod_or_a_problem(change: Any) -> None:
    pod = a_pod("a", "u1")
    change(pod)
    found = known("test", pod)
    assert (found.manifest is None) == bool(found.problem)


def cached(feed: PodFeed, clock: WaitedClock) -> Object:
    clock.now += STORE_S
    feed.store()
    return json.loads(feed._cache.path.read_text())


def test_what_is_known_is_there_after_a_restart(tmp_path: Path, clock: WaitedClock) -> None:
    feed = PushedFeed("test", PodCache(tmp_path, "n1"), clock=clock)
    feed.replace_all(of(made("a", "u1", priority=9), made("b", "u2")))
    feed.drop("u2")
    assert [one["metadata"]["name"] for one in cached(feed, clock)["pods"]] == ["a", "b"]
    assert (tmp_path / "pods-cache.json").stat().st_mode & 0o777 == 0o600
    again = PushedFeed("test", PodCache(tmp_path, "n1"), clock=clock)
    assert again.is_known
    assert not again.synced
    assert [(one.pod.name, one.pod.priority) for one in again.manifests()] == [("a", 9), ("b", 0)]
    assert not PushedFeed("test", PodCache(tmp_path, "n2"), clock=clock).is_known  # the disk of another node


def test_secrets_are_not_stored(tmp_path: Path, clock: WaitedClock) -> None:
    feed = PushedFeed("test", PodCache(tmp_path, "n1"), clock=clock)
    pod = a_pod("a", "u1")
    pod["spec"]["containers"][0] |= {"env": [{"name": "PASSWORD", "value": "hunter2"}], "command": ["hunter2"]}
    pod["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "hunter2"}
    pod["metadata"]["managedFields"] = [{"manager": "hunter2"}]
    feed.put(known("test", pod))
    assert "hunter2" not in json.dumps(cached(feed, clock))


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 2}', '{"version":1,"node":"n1","pods":7}', "\0", "[" * 9999])
def test_a_damaged_cache_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "pods-cache.json").write_text(text)
    assert not PushedFeed("test", PodCache(tmp_path, "n1")).is_known


def test_a_cache_that_cannot_be_written_is_reported_and_tried_again(tmp_path: Path, clock: WaitedClock) -> None:
    state = tmp_path / "state"
    feed = PushedFeed("test", PodCache(state, "n1"), clock=clock)
    feed.replace_all(of(made("a", "u1")))
    clock.now += STORE_S
    feed.store()
    assert "No such file or directory; after a restart pods are known when the cluster answers" in feed.problems()[0]
    state.mkdir()
    assert len(cached(feed, clock)["pods"]) == 1
    assert feed.problems() == []


def test_a_tenant_fills_no_disk(tmp_path: Path, clock: WaitedClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is written again with each change: what a tenant writes into its pods stays out of it."""
    pods = [made(f"p{i}", f"u{i}") for i in range(3)]
    pods[1].object["metadata"]["labels"] = {f"label{i}": "x" * 63 for i in range(100)}
    monkeypatch.setattr(feeds, "_MOST_BYTES", 4096)
    feed = PushedFeed("test", PodCache(tmp_path, "n1"), clock=clock)
    feed.replace_all(of(*pods))
    assert [one["metadata"]["name"] for one in cached(feed, clock)["pods"]] == ["p0", "p2"]
    assert "the 1 largest of 3 pods do not fit into a file; after a restart they are known" in feed.problems()[0]
    assert not feed._dirty  # nothing is tried again before something changes


def test_it_is_written_every_five_seconds_at_most(tmp_path: Path, clock: WaitedClock) -> None:
    feed = PushedFeed("test", PodCache(tmp_path, "n1"), clock=clock)
    feed.replace_all(of(made("a", "u1")))
    feed.store()
    feed.put(made("b", "u2"))
    feed.store()
    assert len(json.loads((tmp_path / "pods-cache.json").read_text())["pods"]) == 1
    assert len(cached(feed, clock)["pods"]) == 2


MESSAGE = "The node was low on resource: memory. "


def in_phase(phase: str, reason: str = "") -> Known:
    pod = a_pod("web", "u1")
    pod["status"] = {"phase": phase, "reason": reason, "message": MESSAGE if reason else ""}
    return known("test", pod)


RUNNING, EVICTED = in_phase("Running"), in_phase("Failed", "Evicted")


@pytest.mark.parametrize(
    ("steps", "times"),
    [
        (([RUNNING], EVICTED, EVICTED), 1),
        (([RUNNING], [EVICTED], [EVICTED]), 1),
        (([RUNNING], [EVICTED], EVICTED), 1),
        (([EVICTED],), 0),  # so when it was first seen
        (([RUNNING], [], [EVICTED]), 0),
        (([in_phase("Pending")], EVICTED), 0),  # the kubelet did not admit it
        (([RUNNING], in_phase("Failed")), 0),  # by itself
        (([RUNNING], in_phase("Succeeded")), 0),
    ],
)
def test_a_pod_that_ran_and_is_evicted_is_reported_once(feed: PushedFeed, steps: Any, times: int) -> None:
    """Each step is all the pods, or one that changed."""
    found = list[tuple[str, str, str]]()
    feed.ends = feed.ends._replace(evicted=lambda *one: found.append(one))
    for step in steps:
        feed.put(step) if isinstance(step, Known) else feed.replace_all(of(*step))
    assert found == [("u1", "shop/web", MESSAGE)] * times


def test_a_pod_that_is_asked_to_end_is_reported_once(feed: PushedFeed) -> None:
    ending = in_phase("Running")
    ending.object["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    cached_one = PushedFeed("test")
    cached_one._pods = of(ending)
    # Also where it was so when it was first seen: this process may be another one.
    for one, steps in ((feed, [RUNNING, ending, ending]), (PushedFeed("test"), [ending] * 2), (cached_one, [ending])):
        found = list[str]()
        one.ends = one.ends._replace(ending=found.append)
        for step in steps:
            one.replace_all(of(step))
        one.put(ending)
        assert found == ["u1"]


def test_a_kubelet_that_answers_slowly_is_still_asked_every_ten_seconds(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It rests for ten times what an answer took: 2 s of an answer would be 20 s without a new pod's name."""
    feed = cluster.polled()
    pauses: list[float] = []

    def wait(pause_s: float) -> bool:
        pauses.append(pause_s)
        return True  # the feed ends

    monkeypatch.setattr(feed, "_clock", iter(float(at) for at in range(0, 1000, 2)).__next__)
    monkeypatch.setattr(feed.stop, "wait", wait)
    feed._run()
    assert pauses == [feeds.POLL_S]
