"""Feeds of a real client: the API server is watched, the kubelet asked, both are away at times."""

from __future__ import annotations

import pytest

from monitor.kube.errors import ResourceExpired
from monitor.pods import cluster_feeds as feeds
from monitor.pods.feed import PodFeed, known
from tests.kube import faults
from tests.pods.cluster import Cluster, a_pod, look, named, uid_of
from tests.pods.cluster import cluster as cluster
from tests.pods.test_feed import Clock, made, names
from tests.waiting import TIMEOUT_S, until

pytestmark = pytest.mark.usefixtures("node")


def knows(feed: PodFeed, *wanted: str) -> None:
    until(lambda: feed.synced and names(feed.manifests()) == sorted(wanted), "the pods")


def test_the_api_server_is_away_with_and_without_a_cache(cluster: Cluster) -> None:
    cluster.create(a_pod("a"), cgroup=False)
    first = cluster.watched(cache=True)
    first.start()
    knows(first, "a")
    until((cluster.state / "pods-cache.json").exists, "it is stored")
    first.close()
    cluster.api.refuse()
    second = cluster.watched(cache=True)
    second.start()
    assert second.wait(TIMEOUT_S)
    assert second.is_known
    assert names(second.manifests()) == ["a"]
    until(lambda: "its last pods stay in use" in " ".join(second.problems()), "it is reported")
    third = cluster.watched()
    third.start()
    assert third.wait(TIMEOUT_S)
    assert not third.is_known
    cluster.api.listen()
    knows(third, "a")
    until(lambda: not second.problems(), "its end is reported")


def test_an_expired_version_is_no_problem(cluster: Cluster) -> None:
    """Every watch meets that some day, and lists again: a warning each time would be noise."""
    feed = cluster.watched()
    feed.failed(ResourceExpired("too old"), 0.1)
    assert feed.problems() == []
    cluster.api.fail(faults.error_event(), watching=True)
    cluster.create(a_pod("a"), cgroup=False)
    feed.start()
    until(lambda: len([one for one in cluster.api.seen("GET", "/pods") if not one.watching]) == 2, "two lists")
    knows(feed, "a")


def test_while_a_pod_starts_it_is_asked_every_second(cluster: Cluster) -> None:
    pod = a_pod("a")
    feed = cluster.polled()
    assert feed._pause_s([made("a", "u1")]) == feeds.POLL_S
    pod["status"] = {"phase": "Pending"}
    starting = known("test", pod)
    assert starting is not None
    clock = feed._clock = Clock()
    assert feed._pause_s([starting]) == feeds.STARTING_S
    clock.now += 61  # whose image cannot be pulled
    assert feed._pause_s([starting]) == feeds.POLL_S


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
    feed._disconnect()
    assert pauses == [feeds.POLL_S]


def test_a_kubelet_that_is_restarted(cluster: Cluster) -> None:
    """Away, then without the API's pods, then with them."""
    pods = [a_pod("a"), a_pod("b")]
    for one in pods:
        cluster.create(one, cgroup=False)
    feed = cluster.polled(cache=True)
    feed.start()
    knows(feed, "a", "b")
    cluster.kubelet.refuse()
    feed.soon()
    until(feed.problems, "it is reported")
    assert names(feed.manifests()) == ["a", "b"]
    cluster.kubelet.pods = []
    cluster.kubelet.listen()
    until(lambda: not feed.problems(), "it answers")
    assert [one.pod.phase for one in feed.manifests(present={uid_of(pods[0])})] == ["Succeeded"] * 2
    cluster.kubelet.pods = pods
    feed.soon()
    until(lambda: [one.pod.phase for one in feed.manifests()] == ["Running"] * 2, "they are back")


def test_a_token_that_is_not_taken_is_reported(cluster: Cluster) -> None:
    cluster.kubelet.tokens = {"another"}
    feed = cluster.polled()
    feed.start()
    assert feed.wait(TIMEOUT_S)
    assert "401" in feed.problems()[0]
    assert not feed.is_known


def test_the_kubelet_is_asked_as_soon_as_a_container_ended(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes a moment later that it evicted the pod: an incident does not wait until it would be asked next."""
    monkeypatch.setattr(feeds, "POLL_S", 600.0)
    pod = a_pod("a")
    cluster.create(pod)
    source = cluster.source(cluster.polled())
    evicted: list[str] = []
    source.notify_evicted(lambda uid, _name, _message: evicted.append(uid))
    look(source, lambda: named(source) == {"shop/a"})
    (container,) = source.pods[uid_of(pod)].containers.values()
    container.rmdir()
    look(source, lambda: container not in source.pods[uid_of(pod)].containers.values())
    assert evicted == []
    pod["status"] |= {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    look(source, lambda: evicted == [uid_of(pod)])
