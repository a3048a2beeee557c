"""What is sent to the API server beside statuses: events, once each, however long it is away; node conditions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monitor.kube.backoff import BackOff
from monitor.kube.client import ApiClient
from monitor.kube.cluster import ClusterConfig
from monitor.side.cluster.cluster import Cluster
from monitor.side.cluster.event_writer import STATUS_NOTE, EventWriter
from monitor.side.cluster.node_conditions import HEARTBEAT_S, NodeConditions
from monitor.side.cluster.record import PendingRecords, Record, record_of
from monitor.side.cluster.status_writer import AWAY, TAKEN
from monitor.side.export.log import Log
from monitor.side.worker import Worker
from tests.kube import faults
from tests.kube.fake_apiserver import FakeApiServer, pod
from tests.kube.fake_node import relist
from tests.kube.test_status_writer import Clock, evicted, record
from tests.waiting import until as wait_until


def until(condition: Callable[[], object]) -> None:
    wait_until(condition, "what the API server is sent")


class Events:
    """A writer of events, its clock, and the records that are over."""

    def __init__(self, client: ApiClient) -> None:
        self.clock, self.over = Clock(), list[str]()
        back_off = BackOff(first_s=0.5, jitter=0.0, clock=self.clock)
        rights = BackOff(first_s=0.5, jitter=0.0, clock=self.clock)
        self.writer = EventWriter(client, Log(), lambda r: self.over.append(r.id), back_off, self.clock, rights)

    def after(self, seconds: float) -> None:
        until_s = self.clock.now + seconds
        while (wait_s := self.writer.turn()) is not None and self.clock.now + wait_s <= until_s:
            self.clock.now += wait_s
        self.clock.now = until_s


@pytest.fixture
def events(client: ApiClient, api: FakeApiServer) -> Events:
    api.store.create("pods", pod("web"))
    return Events(client)


def reasons(api: FakeApiServer) -> list[tuple[str, str]]:
    found = api.store.all("events")
    return sorted((one["involvedObject"]["kind"], one["reason"]) for one in found)


BOTH = [("Node", "EvictionThresholdMet"), ("Pod", "Evicted")]


def test_an_eviction_is_an_event_on_the_pod_and_one_on_the_node(events: Events, api: FakeApiServer) -> None:
    made = record(api)
    events.writer.submit(made)
    assert events.writer.turn() is None
    assert reasons(api) == BOTH
    assert events.over == [made.id]
    event = next(one for one in api.store.all("events") if one["reason"] == "Evicted")
    assert event["involvedObject"]["uid"] == made.uid
    assert event["metadata"]["annotations"] == {"starved_resource": "memory"}
    assert event["source"] == {"component": "outrace", "host": "node-1"}


def test_an_event_that_is_there_is_not_made_twice(events: Events, api: FakeApiServer) -> None:
    """Its answer was lost, or the daemon was killed before it knew."""
    events.writer.submit(record(api))
    events.after(1)
    events.writer.submit(record(api))
    events.after(1)
    assert reasons(api) == BOTH
    assert len(events.over) == 2


def test_a_server_that_is_away_for_minutes_gets_every_event_once(events: Events, api: FakeApiServer) -> None:
    api.refuse()
    made = record(api)
    events.writer.submit(made)
    events.after(600)
    events.writer.note_status_outcome(made, AWAY)
    assert events.over == []
    api.listen()
    events.after(60)
    assert reasons(api) == BOTH
    assert events.over == [made.id]
    event = next(one for one in api.store.all("events") if one["reason"] == "Evicted")
    assert "away" in event["metadata"]["annotations"][STATUS_NOTE]
    assert event["firstTimestamp"] == "2027-01-15T08:01:40Z"  # of the eviction


def test_a_server_that_fails_and_throttles(events: Events, api: FakeApiServer) -> None:
    api.fail(faults.status(500, "InternalError"), path="/events", times=2)
    api.fail(faults.status(429, "TooManyRequests", Retry_After="7"), path="/events")
    events.writer.submit(record(api))
    events.after(6)
    assert reasons(api) == []
    events.after(7)
    assert reasons(api) == BOTH


def test_a_namespace_that_is_gone_does_not_hold_up_the_others(events: Events, api: FakeApiServer) -> None:
    api.fail(faults.status(404, "NotFound"), path="/namespaces/default/events")
    events.writer.submit(record(api))
    events.after(1)
    assert reasons(api) == [("Node", "EvictionThresholdMet")]
    assert events.writer.dropped == 1


def test_missing_rights_are_waited_for(events: Events, api: FakeApiServer) -> None:
    api.forbidden.add(("create", "events"))
    events.writer.submit(record(api))
    events.after(30)
    api.forbidden.clear()
    events.after(60)
    assert reasons(api) == BOTH


def test_any_name_of_a_pod_makes_a_name_of_an_event(api: FakeApiServer) -> None:
    api.store.create("pods", pod("a" * 253))
    made = record_of(evicted(api, "a" * 253), 0.0)
    assert all(len(one["metadata"]["name"]) <= 253 for one in made.events)


# in the state dir


def test_records_outlive_the_daemon(tmp_path: Path, api: FakeApiServer) -> None:
    api.store.create("pods", pod("web"))
    pending, made, problems = PendingRecords(tmp_path), record(api), list[str]()
    pending.write(made)
    (tmp_path / "cluster" / "broken.json").write_text('{"id": ')
    assert PendingRecords(tmp_path).load(problems.append) == [made]
    assert len(problems) == 1
    pending.remove(made)
    assert PendingRecords(tmp_path).load(problems.append) == []


def test_the_newest_records_are_kept(tmp_path: Path) -> None:
    pending = PendingRecords(tmp_path, keep=2)
    for number in range(4):
        pending.write(Record(str(number), "default", "web", "u", 0.0, {}, ()))
    assert [one.id for one in pending.load(print)] == ["2", "3"]


# the two threads


@pytest.fixture
def open_cluster(config: ClusterConfig, tmp_path: Path) -> Iterator[Callable[[], Cluster]]:
    made: list[tuple[Cluster, Worker]] = []

    def make() -> Cluster:
        files = Worker("files")
        made.append((Cluster(config, "node-1", tmp_path, files, Log()), files))
        made[-1][0].start()
        return made[-1][0]

    yield make
    for cluster, files in made:
        cluster.close()
        files.close(1.0)


def test_an_eviction_is_written_to_the_cluster(
    open_cluster: Callable[[], Cluster], api: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor.side.cluster.status_writer.HOLD_S", 0.0)
    api.store.create("pods", pod("web"))
    cluster = open_cluster()
    cluster.evicting(evicted(api), _now_ns())
    until(lambda: api.store.get(("pods", "default", "web"))["status"]["phase"] == "Failed")
    assert relist(api, "web") == "Failed"
    until(lambda: cluster.statuses.tally.fates[TAKEN] == 1)
    until(lambda: reasons(api) == BOTH)
    until(lambda: list((tmp_path / "cluster").glob("*.json")) == [])


def test_what_a_daemon_did_not_get_through_the_next_one_writes(
    open_cluster: Callable[[], Cluster], api: FakeApiServer, tmp_path: Path
) -> None:
    api.store.create("pods", pod("web"))
    api.refuse()
    first = open_cluster()
    first.evicting(evicted(api), _now_ns() - int(11e9))  # too long ago for a status
    until(lambda: first.statuses.tally.fates[AWAY] == 1)
    until(lambda: len(list((tmp_path / "cluster").glob("*.json"))) == 1)
    first.close()
    api.listen()
    open_cluster()
    until(lambda: reasons(api) == BOTH)
    until(lambda: list((tmp_path / "cluster").glob("*.json")) == [])
    assert api.store.get(("pods", "default", "web"))["status"]["phase"] == "Running"


def test_a_static_pod_has_events_alone(open_cluster: Callable[[], Cluster], api: FakeApiServer) -> None:
    """Its status in the API is its kubelet's picture of it."""
    api.store.create("pods", pod("web"))
    found = evicted(api)
    object.__setattr__(found.pod, "annotations", {"kubernetes.io/config.mirror": "0123456789abcdef0123456789abcdef"})
    open_cluster().evicting(found, _now_ns())
    until(lambda: reasons(api) == BOTH)
    assert api.seen("PATCH", "/pods/") == []


def _now_ns() -> int:
    return time.monotonic_ns()


# node conditions


class Node:
    def __init__(self, client: ApiClient, api: FakeApiServer, holds: bool = False) -> None:
        self.clock, self.api = Clock(), api
        self.clock.now = 1_800_000_000.0
        self.holding: set[str] | None = None
        self.held = ""
        self.changes: list[tuple[str, bool]] = []
        back_off = BackOff(first_s=1.0, jitter=0.0, clock=self.clock)
        self.conditions = NodeConditions(
            client,
            "node-1",
            lambda: self.holding,
            Log(),
            lambda name, holds, _: self.changes.append((name, holds)),
            back_off,
            self.clock,
            (lambda: self.held) if holds else None,
        )

    def after(self, seconds: float) -> None:
        self.clock.now += seconds
        self.conditions.turn()

    @property
    def seen(self) -> dict[str, Any]:
        return {one["type"]: one for one in self.api.store.get(("nodes", "", "node-1"))["status"]["conditions"]}


@pytest.fixture
def node(client: ApiClient, api: FakeApiServer) -> Node:
    kubelets = {"type": "MemoryPressure", "status": "False", "reason": "KubeletHasSufficientMemory"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}, "status": {"conditions": [kubelets]}}
    api.store.create("nodes", node)
    return Node(client, api)


def test_the_conditions_have_types_of_their_own(node: Node) -> None:
    node.conditions.turn()
    assert list(node.seen) == ["MemoryPressure"]  # nothing is known yet
    node.holding = {"MemoryPressure"}
    node.conditions.turn()
    seen = node.seen
    assert {name: one["status"] for name, one in seen.items()} == {
        "MemoryPressure": "False",
        "outrace.io/MemoryPressure": "True",
        "outrace.io/DiskPressure": "False",
        "outrace.io/PIDPressure": "False",
    }
    assert seen["outrace.io/MemoryPressure"]["reason"] == "OutraceHasInsufficientMemory"
    assert seen["outrace.io/DiskPressure"]["message"] == "outrace has no disk pressure"


def test_a_change_is_written_at_once_and_the_rest_by_heartbeat(node: Node, api: FakeApiServer) -> None:
    node.holding = set()
    node.conditions.turn()
    for _ in range(10):
        node.after(1.0)
    assert len(api.seen("PATCH")) == 1
    node.holding = {"MemoryPressure"}
    node.after(1.0)
    assert node.changes == [("MemoryPressure", True)]
    assert node.seen["outrace.io/MemoryPressure"]["lastTransitionTime"] == "2027-01-15T08:00:11Z"
    node.after(HEARTBEAT_S)
    assert node.seen["outrace.io/MemoryPressure"]["lastHeartbeatTime"] == "2027-01-15T08:05:11Z"
    assert node.seen["outrace.io/MemoryPressure"]["lastTransitionTime"] == "2027-01-15T08:00:11Z"
    assert len(api.seen("PATCH")) == 3


def test_a_restart_keeps_the_time_of_the_transition(node: Node, client: ApiClient, api: FakeApiServer) -> None:
    node.holding = {"MemoryPressure"}
    node.conditions.turn()
    after = Node(client, api)
    after.clock.now += 1000
    after.holding = {"MemoryPressure"}
    after.conditions.turn()
    assert after.seen["outrace.io/MemoryPressure"]["lastTransitionTime"] == "2027-01-15T08:00:00Z"
    assert after.changes == []


def test_conditions_wait_for_a_server_that_fails(node: Node, api: FakeApiServer) -> None:
    node.holding = set()
    api.fail(faults.status(500, "InternalError"), path="/status", times=2)
    node.conditions.turn()
    node.after(0.5)
    assert len(api.seen("PATCH")) == 1
    node.after(0.6)
    node.after(2.1)
    assert "outrace.io/MemoryPressure" in node.seen
    node.after(1.0)
    assert len(api.seen("PATCH")) == 3


def test_stop_ends_the_threads(open_cluster: Callable[[], Cluster]) -> None:
    cluster = open_cluster()
    cluster.close()
    until(lambda: not any(one.name in ("statuses", "cluster") for one in threading.enumerate()))
