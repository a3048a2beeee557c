"""The whole daemon on a live node of a cluster: a real hog in a kubepods tree, and a fake API server."""

import json
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.kernel import cgroupfs
from monitor.lab.child import Hog
from monitor.lab.node import LabNode
from tests import live
from tests.daemon.config_files import kubeconfig
from tests.daemon.hot_node import decided, evicted, hard, hot_node
from tests.kube.fake_apiserver import FakeApiServer, pod
from tests.kube.fake_node import relist
from tests.pods.cluster import Object, a_pod, uid_of

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


def started_hog(node: LabNode, api: FakeApiServer, name: str = "hog", mib: int = 100) -> Hog:
    """A pod in the API server and its hog in the kubelet's cgroup of it."""
    uid = str(uuid.uuid4())
    made = pod(name, namespace="shop", containerStatuses=[{"name": "main", "containerID": f"containerd://{'a' * 64}"}])
    made["metadata"]["uid"] = uid
    api.store.create("pods", made)
    container = cgroupfs.make(node.cgroup / f"kubepods/besteffort/pod{uid}" / ("a" * 64))
    hog = Hog(container, mib=mib, rate=200)
    node.children.append(hog)
    return hog


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
            live.until(lambda: live.metric(daemon, "cluster_statuses_erased_total") >= 1, "the status written again")
        assert relist(api, "hog", "shop") == "Failed"
        live.message(daemon, "the kubelet has taken the status of an evicted pod", pod="shop/hog")
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
    """The request goes out; who ends the pod is its kubelet, here the test."""
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
    """Observing: 100 MiB of 128 are held until it is killed. A start without a cluster removes the taint too."""
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
        (side,) = live.children(daemon.pid)
        os.kill(side, signal.SIGSTOP)  # or it would see the other's end, and take the taint away
        daemon.process.kill()
        daemon.process.wait()
        os.kill(side, signal.SIGKILL)
        live.ends(side)
    hog.process.kill()
    hog.wait()
    assert taints() == [theirs, ours]
    with live.daemon(node, "--pods", "cgroups", *hard(48), state_dir=state) as daemon:
        live.until(lambda: taints() == [theirs], "the taint of the killed daemon removed")
        live.until(lambda: not list((state / "taints").iterdir()), "its record gone")
        live.ended(daemon)


def hog_of(node: LabNode, pod: Object, mib: int) -> Hog:
    """A process that takes so much, in the cgroup of this pod."""
    uid = uid_of(pod)
    path = cgroupfs.make(node.cgroup / "kubepods/burstable" / f"pod{uid}" / uid.replace("-", ""))
    made = Hog(path, mib=mib, rate=100)
    node.children.append(made)
    return made


def grown(one: Hog) -> Hog:
    one.go()
    one.expect("grown")
    return one


def test_the_pod_of_low_priority_goes_and_it_has_a_name(
    node: LabNode, api: FakeApiServer, options: tuple[str, ...]
) -> None:
    """By the cgroups alone it was db, whose priority was not known. What is not listed is never evicted."""
    batch, db = a_pod("batch", priority=-10, memory="1Mi"), a_pod("db", priority=1_000_000, memory="1Mi")
    critical = a_pod("critical", priority=2_000_001_000, namespace="kube-system", memory="1Mi")
    for each in (batch, db, critical):
        api.store.create("pods", each)
    low, high, highest = grown(hog_of(node, batch, 12)), hog_of(node, db, 55), grown(hog_of(node, critical, 15))
    new = a_pod("new", priority=-20, memory="1Mi")
    unlisted = grown(hog_of(node, new, 20))
    with live.daemon(node, *hard(32), "--enforce", *options) as daemon:
        live.until(lambda: live.metric(daemon, "pods_unlisted") == 1, "it to be counted")
        high.go()
        decision, _ = evicted(daemon, "shop/batch")
        assert low.wait() == -signal.SIGKILL
        assert decision["uid"] == uid_of(batch)
        incident = live.message(daemon, "incident")
        assert "shop/batch" in json.dumps(incident)
        assert all(name in ("batch", "db") for name in decided(daemon))
        assert 'outrace_pod_memory_request_bytes{namespace="shop",pod="db"}' in daemon.get("/metrics")[1]
        assert (highest.process.poll(), unlisted.process.poll()) == (None, None)
        api.store.create("pods", new)
        live.message(daemon, "pod found", pod="shop/new")
        live.until(lambda: live.metric(daemon, "pods_unlisted") == 0, "it to be known")


def test_with_the_api_server_away_what_is_stored_is_in_force(
    node: LabNode, api: FakeApiServer, options: tuple[str, ...], tmp_path: Path
) -> None:
    batch, db = a_pod("batch", priority=-10, memory="1Mi"), a_pod("db", priority=1_000_000, memory="1Mi")
    for each in (batch, db):
        api.store.create("pods", each)
    low, high = grown(hog_of(node, batch, 20)), hog_of(node, db, 80)
    state = tmp_path / "state"
    state.mkdir()
    with live.daemon(node, *hard(32), *options, state_dir=state):
        live.until((state / "pods-cache.json").exists, "it is stored")
    api.refuse()
    with live.daemon(node, *hard(32), "--enforce", *options, state_dir=state) as daemon:
        high.go()
        decision, _ = evicted(daemon, "shop/batch")
        assert decision["uid"] == uid_of(batch)
        assert any("its last pods stay in use" in str(record.get("msg")) for record in daemon.log)
    assert low.wait() == -signal.SIGKILL
