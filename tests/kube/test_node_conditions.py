"""Conditions of the node: pressure, and pods that are held."""

from typing import Any

import pytest

from monitor.kube.client import ApiClient
from monitor.side.cluster.node import HEARTBEAT_S, HELD_S, NodeReport
from monitor.side.export.log import Log
from tests.kube import faults
from tests.kube.clock import WaitedClock
from tests.kube.fake_apiserver import FakeApiServer


class Node:
    def __init__(self, client: ApiClient, api: FakeApiServer) -> None:
        self.clock, self.wall, self.api = WaitedClock(1000.0), WaitedClock(1_800_000_000.0), api
        self.holding: set[str] | None = None
        self.held = ""
        self.report = NodeReport(
            client,
            "node-1",
            lambda: self.holding,
            Log(),
            lambda: self.held,
            clock=self.clock,
            wall=self.wall,
        )

    def holds(self, *conditions: str, after_s: float = 0.0) -> None:
        self.holding = set(conditions)
        self.after(after_s)

    def after(self, seconds: float) -> None:
        self.clock.now += seconds
        self.wall.now += seconds
        self.report.write_conditions()

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
    node.report.write_conditions()
    assert list(node.seen) == ["MemoryPressure"]  # nothing is known yet
    node.holds("MemoryPressure")
    seen = node.seen
    assert {name: one["status"] for name, one in seen.items()} == {
        "MemoryPressure": "False",
        "outrace.io/MemoryPressure": "True",
        "outrace.io/DiskPressure": "False",
        "outrace.io/PIDPressure": "False",
        "outrace.io/PodHeld": "False",
    }
    assert seen["outrace.io/MemoryPressure"]["reason"] == "OutraceHasInsufficientMemory"
    assert seen["outrace.io/DiskPressure"]["message"] == "outrace has no disk pressure"


def test_a_change_is_written_at_once_and_the_rest_by_heartbeat(node: Node, api: FakeApiServer) -> None:
    node.holds()
    for _ in range(10):
        node.after(1.0)
    assert len(api.seen("PATCH")) == 1
    node.holds("MemoryPressure", after_s=1.0)
    assert node.seen["outrace.io/MemoryPressure"]["lastTransitionTime"] == "2027-01-15T08:00:11Z"
    node.after(HEARTBEAT_S)
    assert node.seen["outrace.io/MemoryPressure"]["lastHeartbeatTime"] == "2027-01-15T08:05:11Z"
    assert node.seen["outrace.io/MemoryPressure"]["lastTransitionTime"] == "2027-01-15T08:00:11Z"
    node.wall.now -= 3600.0  # it was set back
    node.after(HEARTBEAT_S)
    assert len(api.seen("PATCH")) == 4


def test_a_restart_keeps_the_time_of_the_transition(node: Node, client: ApiClient, api: FakeApiServer) -> None:
    node.holds("MemoryPressure")
    after = Node(client, api)
    after.wall.now += 1000
    after.holds("MemoryPressure")
    assert after.seen["outrace.io/MemoryPressure"]["lastTransitionTime"] == "2027-01-15T08:00:00Z"


def test_conditions_wait_for_a_server_that_fails(node: Node, api: FakeApiServer) -> None:
    node.holding = set()
    api.fail(faults.status(500, "InternalError"), path="/status", times=2)
    node.report.write_conditions()
    node.after(0.5)
    assert len(api.seen("PATCH")) == 1
    node.after(0.6)
    node.after(2.1)
    assert "outrace.io/MemoryPressure" in node.seen
    node.after(1.0)
    assert len(api.seen("PATCH")) == 3


def test_pods_that_are_held_are_a_condition_of_the_node(node: Node, client: ApiClient, api: FakeApiServer) -> None:
    node.holds()
    assert node.seen["outrace.io/PodHeld"]["status"] == "False"
    node.held = "shop/hog"
    node.after(1.0)
    seen = node.seen["outrace.io/PodHeld"]
    assert (seen["status"], seen["reason"], seen["message"]) == ("True", "OutraceHoldsPod", "outrace holds shop/hog")
    node.held = "shop/cart, shop/hog"
    node.after(HELD_S)
    assert node.seen["outrace.io/PodHeld"]["message"] == "outrace holds shop/cart, shop/hog"
    next_one = Node(client, api)  # a daemon after it, in another mode
    next_one.holds()
    seen = next_one.seen["outrace.io/PodHeld"]
    assert (seen["status"], seen["message"]) == ("False", "outrace holds no pod")


def test_a_pod_held_again_and_again_is_six_writes_a_minute(node: Node, api: FakeApiServer) -> None:
    node.holds()
    for number in range(60):
        node.held = "shop/hog" if number % 2 else ""
        node.after(1.0)
    assert 5 <= len(api.seen("PATCH")) <= 8
    node.held = ""
    node.after(HELD_S)
    assert node.seen["outrace.io/PodHeld"]["status"] == "False", "how it is in the end is written"
