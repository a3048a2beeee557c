"""The whole daemon on a live node of a cluster: a real hog in a kubepods tree, and a fake API server."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.lab.child import Child
from monitor.lab.node import LabNode
from tests import live
from tests.daemon.config_files import kubeconfig
from tests.daemon.hot_node import hard, hot_node
from tests.kube.fake_apiserver import FakeApiServer, pod, relist

pytestmark = [pytest.mark.kernel, pytest.mark.once]

node = live.fixture(hot_node)
NODE = ("nodes", "", "node-1")
KEY = ("pods", "shop", "hog")


@pytest.fixture
def api() -> Iterator[FakeApiServer]:
    server = FakeApiServer()
    server.store.create("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}, "status": {}})
    yield server
    server.close()


@pytest.fixture
def options(api: FakeApiServer, tmp_path: Path) -> tuple[str, ...]:
    """That lead to it. (What earlier daemons on the same state dir had stored is another cluster's.)"""
    (live.state_dir() / "pods-cache.json").unlink(missing_ok=True)
    credentials = kubeconfig(tmp_path / "kubeconfig", api.url, token="good")
    return ("--pods", "apiserver", "--kubeconfig", str(credentials), "--node-name", "node-1")


def started_hog(node: LabNode, api: FakeApiServer) -> Child:
    """A pod in the API server and its hog in the kubelet's cgroup of it."""
    uid = str(uuid.uuid4())
    made = pod("hog", namespace="shop", containerStatuses=[{"name": "main", "containerID": f"containerd://{'a' * 64}"}])
    made["metadata"]["uid"] = uid
    api.store.create("pods", made)
    return live.hog_at(node, f"kubepods/besteffort/pod{uid}/{'a' * 64}", mib=100, rate=200)


@pytest.mark.parametrize("is_late", [False, True])
def test_an_evicted_pod_ends_failed_and_evicted_in_the_api(
    node: LabNode, api: FakeApiServer, options: tuple[str, ...], is_late: bool
) -> None:
    hog = started_hog(node, api)
    with live.daemon(node, *options, "--enforce", *hard(48)) as daemon:
        live.until(lambda: live.metric(daemon, "pods") == 1, "the pod of the API server")
        hog.go()
        live.message(daemon, "status of an evicted pod written", pod="shop/hog")
        live.message(daemon, "evicted", pod="shop/hog")
        if is_late:  # this kubelet had looked just before, and starts the pod again, as it believes
            assert relist(api, "hog", "shop", relisted_before=True) == "Running"
            live.until(lambda: api.store.get(KEY)["status"]["phase"] == "Failed", "the status written again")
            assert live.metric(daemon, "cluster_statuses_erased_total") >= 1
        assert relist(api, "hog", "shop") == "Failed"
        live.message(daemon, "the kubelet has accepted the status of an evicted pod", pod="shop/hog")
        status = api.store.get(KEY)["status"]
        assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
        assert "The node was low on resource: memory. Threshold quantity: 48Mi" in status["message"]
        live.until(
            lambda: (
                sorted(one["reason"] for one in api.store.all("events") if one["source"]["component"] == "outrace")[:2]
                == ["Evicted", "EvictionThresholdMet"]
            ),
            "both events",
        )
        made = "outrace.io/MemoryPressure"
        live.until(lambda: made in json.dumps(api.store.get(NODE)["status"]), "the conditions of the node")
        assert live.metric(daemon, 'cluster_statuses_total{outcome="taken"}') == 1
        live.ended(daemon)


def test_by_the_api_nobody_is_killed_and_the_incident_has_the_end(
    node: LabNode, api: FakeApiServer, options: tuple[str, ...]
) -> None:
    """The daemon sends the request; the kubelet, here the test, ends the pod."""
    hog = started_hog(node, api)
    with live.daemon(node, *options, "--enforce", *hard(48), "--evict-by", "api") as daemon:
        live.until(lambda: live.metric(daemon, "pods") == 1, "the pod of the API server")
        hog.go()
        live.message(daemon, "evicted by the API server", pod="shop/hog")
        assert hog.process.poll() is None
        assert api.store.get(KEY)["metadata"]["deletionTimestamp"]
        hog.process.kill()
        hog.wait()
        live.message(daemon, "an evicted pod has ended", pod="shop/hog")
        assert live.metric(daemon, 'cluster_evictions_total{outcome="accepted"}') == 1
        incident = live.message(daemon, "incident")
        assert "shop/hog" in json.dumps(incident)
        live.ended(daemon)


def test_a_taint_is_there_while_the_condition_holds_over_restarts_and_outlives_no_sigkill(
    node: LabNode, api: FakeApiServer, options: tuple[str, ...], tmp_path: Path
) -> None:
    """Observing: 100 MiB of 128 are held until it is killed. A start without the option removes the taint too."""
    theirs = {"key": "team", "effect": "NoSchedule"}
    api.store.update(NODE, lambda found: {**found, "spec": {"taints": [theirs]}})
    ours = {"key": "outrace.io/memory-pressure", "effect": "NoSchedule"}

    def taints() -> object:
        return api.store.get(NODE)["spec"]["taints"]

    hog = started_hog(node, api)
    state = tmp_path / "state"
    with live.daemon(node, *options, "--node-taints", "own", *hard(48), state_dir=state) as daemon:
        hog.go()
        live.until(lambda: taints() == [theirs, ours], "the taint")
        live.ended(daemon)  # which has 2 s for it, and no more: on a slow machine the next start removes it
        daemon.start()
        live.until(lambda: taints() == [theirs, ours], "the taint")
        live.kill_both(daemon)
    hog.process.kill()
    hog.wait()
    assert taints() == [theirs, ours]
    with live.daemon(node, *options, *hard(48), state_dir=state) as daemon:
        live.until(lambda: taints() == [theirs], "the taint of the killed daemon removed")
        live.ended(daemon)
