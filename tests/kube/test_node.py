"""The node: conditions of pressure and of pods that are held; taints, of which ours alone are touched."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monitor.kernel.cgroupfs import Hierarchy
from monitor.kube.client import ApiClient, Resource
from monitor.kube.cluster import ClusterConfig
from monitor.settings.config import RunConfig
from monitor.side.cluster.node import HEARTBEAT_S, HELD_S, LOOK_S, TRIES, NodeReport
from monitor.side.export.log import Log
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


class State:
    """What the helper knows of the node; nothing before ``holds``."""

    def __init__(self, own: bool) -> None:
        self.state, self.conditions, self.held = None, set[str](), ""
        self.config = RunConfig(node_taints="own" if own else "none")

    def holds(self, *conditions: str) -> None:
        self.state, self.conditions = STATE, set(conditions)

    def held_names(self) -> str:
        return self.held


class Node:
    def __init__(self, client: ApiClient, api: FakeApiServer) -> None:
        self.clock, self.wall, self.api = WaitedClock(1000.0), WaitedClock(1_800_000_000.0), api
        self.state: Any = State(own=False)
        self.report = NodeReport(client, "node-1", self.state, Log(), clock=self.clock, wall=self.wall)

    def holds(self, *conditions: str, after_s: float = 0.0) -> None:
        self.state.holds(*conditions)
        self.after(after_s)

    def after(self, seconds: float) -> None:
        self.clock.now += seconds
        self.wall.now += seconds
        self.report.write_conditions()

    @property
    def seen(self) -> dict[str, Any]:
        return {one["type"]: one for one in self.api.store.get(("nodes", "", "node-1"))["status"]["conditions"]}


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


@pytest.mark.parametrize("bad", [None, {"conditions": 7}, {"conditions": ["x"]}])
def test_conditions_are_written_also_where_there_are_none_to_read(node: Node, api: FakeApiServer, bad: object) -> None:
    api.fail(lambda _, reply: reply.json(200, {"status": bad}), method="GET")
    node.holds()
    assert node.seen["outrace.io/MemoryPressure"]["status"] == "False"


def test_a_restart_keeps_the_time_of_the_transition(node: Node, client: ApiClient, api: FakeApiServer) -> None:
    node.holds("MemoryPressure")
    after = Node(client, api)
    after.wall.now += 1000
    after.holds("MemoryPressure")
    assert after.seen["outrace.io/MemoryPressure"]["lastTransitionTime"] == "2027-01-15T08:00:00Z"


def test_pods_that_are_held_are_a_condition_of_the_node(node: Node, client: ApiClient, api: FakeApiServer) -> None:
    node.holds()
    assert node.seen["outrace.io/PodHeld"]["status"] == "False"
    node.state.held = "shop/hog"
    node.after(1.0)
    seen = node.seen["outrace.io/PodHeld"]
    assert (seen["status"], seen["reason"], seen["message"]) == ("True", "OutraceHoldsPod", "outrace holds shop/hog")
    node.state.held = "shop/cart, shop/hog"
    node.after(HELD_S)
    assert node.seen["outrace.io/PodHeld"]["message"] == "outrace holds shop/cart, shop/hog"
    next_one = Node(client, api)  # a daemon after it, in another mode
    next_one.holds()
    seen = next_one.seen["outrace.io/PodHeld"]
    assert (seen["status"], seen["message"]) == ("False", "outrace holds no pod")


def test_a_pod_held_again_and_again_is_six_writes_a_minute(node: Node, api: FakeApiServer) -> None:
    node.holds()
    for number in range(60):
        node.state.held = "shop/hog" if number % 2 else ""
        node.after(1.0)
    assert 5 <= len(api.seen("PATCH")) <= 8
    node.state.held = ""
    node.after(HELD_S)
    assert node.seen["outrace.io/PodHeld"]["status"] == "False", "how it is in the end is written"


# taints


def warnings(log: LogLines) -> list[str]:
    return [f"{message} {fields}" for level, message, fields in log.lines if level == "warning"]


class Tainted:
    def __init__(self, client: ApiClient, api: FakeApiServer, own: bool = True) -> None:
        self.clock, self.api, self.log = WaitedClock(), api, LogLines()
        self.state: Any = State(own)
        self.report = NodeReport(client, "node-1", self.state, self.log, clock=self.clock)

    def holds(self, *conditions: str, after_s: float = 1.0) -> list[dict[str, Any]]:
        """The taints of the node when that is known."""
        self.clock.now += after_s
        self.state.holds(*conditions)
        self.report.write_taints()
        return seen(self.api)


def seen(api: FakeApiServer) -> list[dict[str, Any]]:
    return api.store.get(KEY)["spec"].get("taints", [])


def taint(api: FakeApiServer, *taints: dict[str, Any]) -> None:
    """Another client writes the taints of the node."""
    api.store.update(KEY, lambda node: {**node, "spec": {**node["spec"], "taints": list(taints)}})


@pytest.fixture
def tainted(client: ApiClient, api: FakeApiServer) -> Tainted:
    return Tainted(client, api)


def test_a_condition_has_its_taint_while_it_holds(tainted: Tainted, api: FakeApiServer) -> None:
    assert tainted.holds() == FOREIGN
    assert tainted.holds("MemoryPressure") == [*FOREIGN, MEMORY]
    assert tainted.holds("MemoryPressure", "DiskPressure") == [*FOREIGN, MEMORY, DISK]
    assert tainted.holds("DiskPressure") == [*FOREIGN, DISK]
    assert tainted.holds("PIDPressure") == [*FOREIGN, {"key": "outrace.io/pid-pressure", "effect": "NoSchedule"}]
    assert json.dumps(tainted.holds()) == json.dumps(FOREIGN)
    assert api.store.get(KEY)["spec"]["podCIDR"] == "10.244.0.0/24"
    assert warnings(tainted.log) == []


def test_nothing_is_asked_while_nothing_changes(tainted: Tainted, api: FakeApiServer) -> None:
    tainted.holds("MemoryPressure")
    asked = len(api.seen())
    for _ in range(10):
        tainted.holds("MemoryPressure")
    assert len(api.seen()) == asked
    taint(api)  # and a taint that another client removed is looked for later
    assert tainted.holds("MemoryPressure", after_s=LOOK_S) == [MEMORY]
    tainted.holds()
    assert "taints" not in api.store.get(KEY)["spec"], "the last one leaves no list"


def test_what_is_not_known_changes_nothing(tainted: Tainted, api: FakeApiServer) -> None:
    taint(api, MEMORY)
    tainted.report.write_taints()
    assert api.seen() == []
    assert seen(api) == [MEMORY]


def meanwhile(client: ApiClient, monkeypatch: pytest.MonkeyPatch, write: Callable[[], object], times: int) -> None:
    """Another client writes the node after outrace read it."""
    get, left = client.get, [None] * times

    def read(resource: Resource, name: str) -> dict[str, Any]:
        found = get(resource, name)
        if left:
            left.pop()
            write()
        return found

    monkeypatch.setattr(client, "get", read)


def test_conflicts_are_tried_again_a_few_times_then_later(
    tainted: Tainted, client: ApiClient, api: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = iter(range(100))
    meanwhile(
        client, monkeypatch, lambda: taint(api, {"key": f"n{next(counter)}", "effect": "NoSchedule"}), times=TRIES
    )
    assert MEMORY not in tainted.holds("MemoryPressure")
    assert len(api.seen("PATCH")) == TRIES
    assert len(warnings(tainted.log)) == 1
    assert MEMORY not in tainted.holds("MemoryPressure", after_s=0.5)
    assert len(api.seen("PATCH")) == TRIES
    others = tainted.holds("MemoryPressure", after_s=0.6)  # what was written meanwhile stays
    assert others == [{"key": f"n{TRIES - 1}", "effect": "NoSchedule"}, MEMORY]


def test_the_server_is_away_comes_back_and_wants_a_right(tainted: Tainted, api: FakeApiServer) -> None:
    api.refuse()
    for _ in range(100):
        tainted.holds("MemoryPressure")
    assert len(warnings(tainted.log)) == 1
    api.listen()
    assert tainted.holds("MemoryPressure", after_s=100.0) == [*FOREIGN, MEMORY]
    assert "written again" in tainted.log.lines[-1][1]
    api.forbidden.add(("patch", "nodes"))
    tainted.holds()
    assert '{apiGroups: [""], resources: ["nodes"], verbs: ["patch"]}' in warnings(tainted.log)[-1]


@pytest.mark.parametrize(("own", "kept"), [(True, [DISK]), (False, [])])
def test_what_a_killed_daemon_left_is_removed(
    own: bool, kept: list[dict[str, Any]], client: ApiClient, api: FakeApiServer
) -> None:
    taint(api, MEMORY, *FOREIGN, DISK)
    assert Tainted(client, api, own).holds("DiskPressure") == [*FOREIGN, *kept]


def test_without_the_option_the_node_is_read_once(client: ApiClient, api: FakeApiServer) -> None:
    node = Tainted(client, api, own=False)
    node.holds("MemoryPressure")
    node.holds(after_s=LOOK_S)
    node.holds("MemoryPressure", after_s=LOOK_S)
    assert ([one.method for one in api.seen()], node.log.lines) == (["GET"], [])


@pytest.mark.parametrize("bad", [{"spec": {"taints": "x"}}, {"spec": []}, {"metadata": None}])
def test_an_answer_of_another_shape_writes_nothing(tainted: Tainted, api: FakeApiServer, bad: dict[str, Any]) -> None:
    whole = {**api.store.get(KEY), **bad}
    api.fail(lambda _, reply: reply.json(200, whole), method="GET")
    tainted.holds("MemoryPressure")
    assert api.seen("PATCH") == []
    assert len(warnings(tainted.log)) == 1


# with the threads of the cluster


def tainting(state_dir: Path, log: Log, *conditions: str) -> Parts:
    """A helper, while these conditions hold."""
    settings = RunConfig(state_dir=str(state_dir), node_taints="own")
    return Parts(settings, Hierarchy(2, state_dir), 1 << 30, log=log, state=STATE._replace(conditions=conditions))


def test_an_end_without_a_server_waits_for_nobody(config: ClusterConfig, api: FakeApiServer, tmp_path: Path) -> None:
    cluster = tainting(tmp_path, Log(), "MemoryPressure").cluster(config)
    cluster.start()
    until(lambda: MEMORY in seen(api), "the taint")
    api.refuse()
    cluster.close()
    until(lambda: not cluster._thread.is_alive(), "the thread ended")
    assert seen(api) == [*FOREIGN, MEMORY]
