"""The node: conditions of pressure and of pods that are held; taints, of which ours alone are touched."""

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.kernel.cgroupfs import Hierarchy
from monitor.kube.client import ApiClient, Resource
from monitor.kube.cluster import ClusterConfig
from monitor.settings.config import RunConfig
from monitor.side.cluster.node import HEARTBEAT_S, HELD_S, LOOK_S, TRIES, NodeReport
from tests.daemon.harness import STATE
from tests.kube.clock import WaitedClock
from tests.kube.fake_apiserver import FakeApiServer
from tests.log_lines import LogLines
from tests.side.parts import Parts
from tests.waiting import until

KEY = ("nodes", "", "node-1")
MEMORY = {"key": "outrace.io/memory-pressure", "effect": "NoSchedule"}
DISK = {"key": "outrace.io/disk-pressure", "effect": "NoSchedule"}
#: With what no field of ours has, and one that only looks like ours.
FOREIGN = [
    {"effect": "NoExecute", "key": "node.kubernetes.io/not-ready", "timeAdded": "2026-11-24T12:00:00Z"},
    {"key": "outrace.io/memory-pressure", "value": "by-hand", "effect": "NoExecute"},
    {"key": "team", "value": "", "effect": "NoSchedule", "ofALaterRelease": {"b": 1, "a": [2]}},
]


class Node:
    """A report, and what the helper knows of the node: nothing before `holds` or `taints`."""

    def __init__(self, client: ApiClient, api: FakeApiServer, taints: str = "own") -> None:
        self.clock, self.wall, self.api = WaitedClock(1000.0), WaitedClock(1_800_000_000.0), api
        self.log, self.held = LogLines(), ""
        known = {"state": None, "conditions": set(), "config": RunConfig(node_taints=taints)}
        self.state: Any = SimpleNamespace(**known, held_names=lambda: self.held)
        self.report = NodeReport(client, "node-1", self.state, self.log, clock=self.clock, wall=self.wall)

    def holds(self, *conditions: str, after_s: float = 0.0) -> None:
        self.state.state, self.state.conditions = STATE, set(conditions)
        self.after(after_s)

    def after(self, seconds: float) -> None:
        self.clock.now += seconds
        self.wall.now += seconds
        self.report.write_conditions()

    def taints(self, *conditions: str, after_s: float = 1.0) -> list[dict[str, Any]]:
        """Those that the node has while these conditions hold."""
        self.clock.now += after_s
        self.state.state, self.state.conditions = STATE, set(conditions)
        self.report.write_taints()
        return seen(self.api)

    @property
    def conditions(self) -> dict[str, Any]:
        return {one["type"]: one for one in self.api.store.get(KEY)["status"]["conditions"]}

    @property
    def warnings(self) -> list[str]:
        return [f"{message} {fields}" for level, message, fields in self.log.lines if level == "warning"]


def seen(api: FakeApiServer) -> list[dict[str, Any]]:
    return api.store.get(KEY)["spec"].get("taints", [])


def taint(api: FakeApiServer, *taints: dict[str, Any]) -> None:
    """Another client writes the taints of the node."""
    api.store.update(KEY, lambda node: {**node, "spec": {**node["spec"], "taints": list(taints)}})


@pytest.fixture(autouse=True)
def made(api: FakeApiServer) -> None:
    kubelets = {"type": "MemoryPressure", "status": "False", "reason": "KubeletHasSufficientMemory"}
    spec, status = {"podCIDR": "10.244.0.0/24", "taints": FOREIGN}, {"conditions": [kubelets]}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}, "spec": spec, "status": status}
    api.store.create("nodes", node)


@pytest.fixture
def node(client: ApiClient, api: FakeApiServer) -> Node:
    return Node(client, api)


def test_the_conditions_have_types_of_their_own(node: Node) -> None:
    node.report.write_conditions()
    assert list(node.conditions) == ["MemoryPressure"]  # nothing is known yet
    node.holds("MemoryPressure")
    seen = node.conditions
    assert {name: one["status"] for name, one in seen.items()} == {
        "MemoryPressure": "False",
        "outrace.io/MemoryPressure": "True",
        "outrace.io/DiskPressure": "False",
        "outrace.io/PIDPressure": "False",
        "outrace.io/PodHeld": "False",
    }
    assert seen["outrace.io/MemoryPressure"]["reason"] == "OutraceHasInsufficientMemory"
    assert seen["outrace.io/DiskPressure"]["message"] == "outrace has no disk pressure"


def test_a_change_is_written_at_once_and_the_rest_by_heartbeat(
    node: Node, client: ApiClient, api: FakeApiServer
) -> None:
    node.holds()
    for _ in range(10):
        node.after(1.0)
    assert len(api.seen("PATCH")) == 1
    node.holds("MemoryPressure", after_s=1.0)
    assert node.conditions["outrace.io/MemoryPressure"]["lastTransitionTime"] == "2027-01-15T08:00:11Z"
    node.after(HEARTBEAT_S)
    assert node.conditions["outrace.io/MemoryPressure"]["lastHeartbeatTime"] == "2027-01-15T08:05:11Z"
    assert node.conditions["outrace.io/MemoryPressure"]["lastTransitionTime"] == "2027-01-15T08:00:11Z"
    node.wall.now -= 3600.0  # it was set back
    node.after(HEARTBEAT_S)
    assert len(api.seen("PATCH")) == 4
    Node(client, api).holds("MemoryPressure")  # after a restart
    assert node.conditions["outrace.io/MemoryPressure"]["lastTransitionTime"] == "2027-01-15T08:00:11Z"


@pytest.mark.parametrize("bad", [None, {"conditions": 7}, {"conditions": ["x"]}])
def test_conditions_are_written_also_where_there_are_none_to_read(node: Node, api: FakeApiServer, bad: object) -> None:
    api.fail(lambda _, reply: reply.json(200, {"status": bad}), method="GET")
    node.holds()
    assert node.conditions["outrace.io/MemoryPressure"]["status"] == "False"


def test_pods_that_are_held_are_a_condition_of_the_node(node: Node, client: ApiClient, api: FakeApiServer) -> None:
    node.holds()
    assert node.conditions["outrace.io/PodHeld"]["status"] == "False"
    node.held = "shop/hog"
    node.after(1.0)
    seen = node.conditions["outrace.io/PodHeld"]
    assert (seen["status"], seen["reason"], seen["message"]) == ("True", "OutraceHoldsPod", "outrace holds shop/hog")
    node.held = "shop/cart, shop/hog"
    node.after(HELD_S)
    assert node.conditions["outrace.io/PodHeld"]["message"] == "outrace holds shop/cart, shop/hog"
    next_one = Node(client, api)  # a daemon after it, in another mode
    next_one.holds()
    seen = next_one.conditions["outrace.io/PodHeld"]
    assert (seen["status"], seen["message"]) == ("False", "outrace holds no pod")


def test_a_pod_held_again_and_again_is_six_writes_a_minute(node: Node, api: FakeApiServer) -> None:
    node.holds()
    for number in range(60):
        node.held = "shop/hog" if number % 2 else ""
        node.after(1.0)
    assert 5 <= len(api.seen("PATCH")) <= 8
    node.held = ""
    node.after(HELD_S)
    assert node.conditions["outrace.io/PodHeld"]["status"] == "False", "how it is in the end is written"


# taints


def test_a_condition_has_its_taint_while_it_holds(node: Node, api: FakeApiServer) -> None:
    assert node.taints() == FOREIGN
    assert node.taints("MemoryPressure") == [*FOREIGN, MEMORY]
    assert node.taints("MemoryPressure", "DiskPressure") == [*FOREIGN, MEMORY, DISK]
    assert node.taints("DiskPressure") == [*FOREIGN, DISK]
    assert node.taints("PIDPressure") == [*FOREIGN, {"key": "outrace.io/pid-pressure", "effect": "NoSchedule"}]
    assert json.dumps(node.taints()) == json.dumps(FOREIGN)
    assert api.store.get(KEY)["spec"]["podCIDR"] == "10.244.0.0/24"
    assert node.warnings == []


def test_nothing_is_asked_while_nothing_changes(node: Node, api: FakeApiServer) -> None:
    node.taints("MemoryPressure")
    asked = len(api.seen())
    for _ in range(10):
        node.taints("MemoryPressure")
    assert len(api.seen()) == asked
    taint(api)  # and a taint that another client removed is looked for later
    assert node.taints("MemoryPressure", after_s=LOOK_S) == [MEMORY]
    node.taints()
    assert "taints" not in api.store.get(KEY)["spec"], "the last one leaves no list"


def test_conflicts_are_tried_again_a_few_times_then_later(
    node: Node, client: ApiClient, api: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, get = iter(range(100)), client.get

    def read(resource: Resource, name: str) -> dict[str, Any]:
        found = get(resource, name)
        if (number := next(reads)) < TRIES:  # another client writes the node after outrace read it
            taint(api, {"key": f"n{number}", "effect": "NoSchedule"})
        return found

    monkeypatch.setattr(client, "get", read)
    assert MEMORY not in node.taints("MemoryPressure")
    assert len(api.seen("PATCH")) == TRIES
    assert len(node.warnings) == 1
    assert MEMORY not in node.taints("MemoryPressure", after_s=0.5)
    assert len(api.seen("PATCH")) == TRIES
    others = node.taints("MemoryPressure", after_s=0.6)  # what was written meanwhile stays
    assert others == [{"key": f"n{TRIES - 1}", "effect": "NoSchedule"}, MEMORY]


def test_the_server_is_away_comes_back_and_wants_a_right(node: Node, api: FakeApiServer) -> None:
    api.refuse()
    for _ in range(100):
        node.taints("MemoryPressure")
    assert len(node.warnings) == 1
    api.listen()
    assert node.taints("MemoryPressure", after_s=100.0) == [*FOREIGN, MEMORY]
    assert "written again" in node.log.lines[-1][1]
    api.forbidden.add(("patch", "nodes"))
    node.taints()
    assert '{apiGroups: [""], resources: ["nodes"], verbs: ["patch"]}' in node.warnings[-1]


@pytest.mark.parametrize(("taints", "kept"), [("own", [DISK]), ("none", [])])
def test_what_a_killed_daemon_left_is_removed(
    taints: str, kept: list[dict[str, Any]], client: ApiClient, api: FakeApiServer
) -> None:
    taint(api, MEMORY, *FOREIGN, DISK)
    node = Node(client, api, taints)
    node.report.write_taints()
    assert api.seen() == [], "what is not known changes nothing"
    assert node.taints("DiskPressure") == [*FOREIGN, *kept]


def test_without_the_option_the_node_is_read_once(client: ApiClient, api: FakeApiServer) -> None:
    node = Node(client, api, "none")
    node.taints("MemoryPressure")
    node.taints(after_s=LOOK_S)
    node.taints("MemoryPressure", after_s=LOOK_S)
    assert ([one.method for one in api.seen()], node.log.lines) == (["GET"], [])


@pytest.mark.parametrize("bad", [{"spec": {"taints": "x"}}, {"spec": []}, {"metadata": None}])
def test_an_answer_of_another_shape_writes_nothing(node: Node, api: FakeApiServer, bad: dict[str, Any]) -> None:
    whole = {**api.store.get(KEY), **bad}
    api.fail(lambda _, reply: reply.json(200, whole), method="GET")
    node.taints("MemoryPressure")
    assert api.seen("PATCH") == []
    assert len(node.warnings) == 1


def test_an_end_without_a_server_ends_its_threads(config: ClusterConfig, api: FakeApiServer, tmp_path: Path) -> None:
    settings = RunConfig(state_dir=str(tmp_path), node_taints="own")
    known = Parts(settings, Hierarchy(2, tmp_path), 1 << 30, state=STATE._replace(conditions=("MemoryPressure",)))
    cluster = known.cluster(config)
    cluster.start()
    until(lambda: MEMORY in seen(api), "the taint")
    api.refuse()
    cluster.close()
    until(lambda: not any(one.name in ("statuses", "cluster") for one in threading.enumerate()), "their end")
    assert seen(api) == [*FOREIGN, MEMORY]
