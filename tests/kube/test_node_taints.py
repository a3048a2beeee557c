"""Taints of the node: ours alone are touched, whatever else writes it; what a killed daemon left is removed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monitor.kernel.cgroupfs import Hierarchy
from monitor.kube.client import ApiClient, Resource
from monitor.kube.cluster import ClusterConfig
from monitor.settings.config import RunConfig
from monitor.side.cluster.cluster import Place
from monitor.side.cluster.node import LOOK_S, TRIES, NodeReport
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


def warnings(log: LogLines) -> list[str]:
    return [f"{message} {fields}" for level, message, fields in log.lines if level == "warning"]


class Node:
    def __init__(self, client: ApiClient, api: FakeApiServer, own: bool = True) -> None:
        self.clock, self.api, self.log = WaitedClock(), api, LogLines()
        self.holding: set[str] | None = set()
        how: dict[str, Any] = {"own_taints": own, "clock": self.clock}
        self.report = NodeReport(client, "node-1", lambda: self.holding, self.log, **how)

    def holds(self, *conditions: str, after_s: float = 1.0) -> list[dict[str, Any]]:
        """The taints of the node when that is known."""
        self.clock.now += after_s
        self.holding = set(conditions)
        self.report.write_taints()
        return seen(self.api)


def seen(api: FakeApiServer) -> list[dict[str, Any]]:
    return api.store.get(KEY)["spec"].get("taints", [])


def taint(api: FakeApiServer, *taints: dict[str, Any]) -> None:
    """Another client writes the taints of the node."""
    api.store.update(KEY, lambda node: {**node, "spec": {**node["spec"], "taints": list(taints)}})


@pytest.fixture(autouse=True)
def made(api: FakeApiServer) -> None:
    spec = {"podCIDR": "10.244.0.0/24", "taints": FOREIGN}
    api.store.create("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}, "spec": spec})


@pytest.fixture
def node(client: ApiClient, api: FakeApiServer) -> Node:
    return Node(client, api)


def test_a_condition_has_its_taint_while_it_holds(node: Node, api: FakeApiServer) -> None:
    assert node.holds() == FOREIGN
    assert node.holds("MemoryPressure") == [*FOREIGN, MEMORY]
    assert node.holds("MemoryPressure", "DiskPressure") == [*FOREIGN, MEMORY, DISK]
    assert node.holds("DiskPressure") == [*FOREIGN, DISK]
    assert node.holds("PIDPressure") == [*FOREIGN, {"key": "outrace.io/pid-pressure", "effect": "NoSchedule"}]
    assert json.dumps(node.holds()) == json.dumps(FOREIGN)
    assert api.store.get(KEY)["spec"]["podCIDR"] == "10.244.0.0/24"
    assert warnings(node.log) == []


def test_nothing_is_asked_while_nothing_changes(node: Node, api: FakeApiServer) -> None:
    node.holds("MemoryPressure")
    asked = len(api.seen())
    for _ in range(10):
        node.holds("MemoryPressure")
    assert len(api.seen()) == asked
    taint(api)  # and a taint that another client removed is looked for later
    assert node.holds("MemoryPressure", after_s=LOOK_S) == [MEMORY]
    node.holds()
    assert "taints" not in api.store.get(KEY)["spec"], "the last one leaves no list"


def test_what_is_not_known_changes_nothing(node: Node, api: FakeApiServer) -> None:
    taint(api, MEMORY)
    node.holding = None
    node.report.write_taints()
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


def test_who_writes_meanwhile_loses_nothing(
    node: Node, client: ApiClient, api: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"key": "drain", "effect": "NoExecute"}
    meanwhile(client, monkeypatch, lambda: taint(api, other, *FOREIGN[1:]), times=1)
    assert node.holds("MemoryPressure") == [other, *FOREIGN[1:], MEMORY]
    assert len(api.seen("PATCH")) == 2
    assert warnings(node.log) == []


def test_conflicts_are_tried_again_a_few_times_then_later(
    node: Node, client: ApiClient, api: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = iter(range(100))
    meanwhile(
        client, monkeypatch, lambda: taint(api, {"key": f"n{next(counter)}", "effect": "NoSchedule"}), times=TRIES
    )
    assert MEMORY not in node.holds("MemoryPressure")
    assert len(api.seen("PATCH")) == TRIES
    assert len(warnings(node.log)) == 1
    assert MEMORY not in node.holds("MemoryPressure", after_s=0.5)
    assert len(api.seen("PATCH")) == TRIES
    assert MEMORY in node.holds("MemoryPressure", after_s=0.6)


def test_the_server_is_away_and_comes_back(node: Node, api: FakeApiServer) -> None:
    api.refuse()
    for _ in range(100):
        node.holds("MemoryPressure")
    assert len(warnings(node.log)) == 1
    api.listen()
    assert node.holds("MemoryPressure", after_s=100.0) == [*FOREIGN, MEMORY]
    assert "written again" in node.log.lines[-1][1]


def test_a_missing_right_is_named(node: Node, api: FakeApiServer) -> None:
    api.forbidden.add(("patch", "nodes"))
    assert node.holds("MemoryPressure") == FOREIGN
    (line,) = warnings(node.log)
    assert '{apiGroups: [""], resources: ["nodes"], verbs: ["patch"]}' in line
    api.forbidden.clear()
    assert node.holds("MemoryPressure", after_s=2.0) == [*FOREIGN, MEMORY]


@pytest.mark.parametrize(("own", "kept"), [(True, [DISK]), (False, [])])
def test_what_a_killed_daemon_left_is_removed(
    own: bool, kept: list[dict[str, Any]], client: ApiClient, api: FakeApiServer
) -> None:
    taint(api, MEMORY, *FOREIGN, DISK)
    assert Node(client, api, own).holds("DiskPressure") == [*FOREIGN, *kept]


def test_without_the_option_the_node_is_read_once(client: ApiClient, api: FakeApiServer) -> None:
    node = Node(client, api, own=False)
    node.holds("MemoryPressure")
    node.holds(after_s=LOOK_S)
    node.holds("MemoryPressure", after_s=LOOK_S)
    assert ([one.method for one in api.seen()], node.log.lines) == (["GET"], [])


@pytest.mark.parametrize("bad", [{"spec": {"taints": "x"}}, {"spec": []}, {"metadata": None}])
def test_an_answer_of_another_shape_writes_nothing(node: Node, api: FakeApiServer, bad: dict[str, Any]) -> None:
    whole = {**api.store.get(KEY), **bad}
    api.fail(lambda _, reply: reply.json(200, whole), method="GET")
    node.holds("MemoryPressure")
    assert api.seen("PATCH") == []
    assert len(warnings(node.log)) == 1


# with the threads of the cluster


def tainting(state_dir: Path, log: Log, *conditions: str) -> Parts:
    """A helper, while these conditions hold."""
    settings = RunConfig(state_dir=str(state_dir), node_taints="own")
    return Parts(settings, Hierarchy(2, state_dir), 1 << 30, log=log, state=STATE._replace(conditions=conditions))


def test_an_end_without_a_server_waits_for_nobody(config: ClusterConfig, api: FakeApiServer, tmp_path: Path) -> None:
    cluster = tainting(tmp_path, Log(), "MemoryPressure").cluster(Place(config, "node-1"))
    cluster.start()
    until(lambda: MEMORY in seen(api), "the taint")
    api.refuse()
    cluster.close()
    until(lambda: not cluster._thread.is_alive(), "the thread ended")
    assert seen(api) == [*FOREIGN, MEMORY]
