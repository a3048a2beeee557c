"""A real daemon whose pods are a cluster's: by the fake API server, in cgroups laid out as a kubelet's."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from monitor.kernel import cgroupfs
from monitor.lab.child import Hog
from monitor.lab.node import LabNode
from tests import live
from tests.daemon.hot_node import decided, evicted, hard, hot_node
from tests.kube.fake_apiserver import FakeApiServer
from tests.pods.cluster import NODE, Object, a_pod, uid_of

pytestmark = [pytest.mark.kernel, pytest.mark.once]

node = live.fixture(hot_node)


@pytest.fixture
def api() -> Iterator[FakeApiServer]:
    server = FakeApiServer()
    yield server
    server.close()


@pytest.fixture
def cluster(api: FakeApiServer, tmp_path: Path) -> tuple[str, ...]:
    """Options that lead to it. (What earlier daemons on the same state dir had stored is another cluster's.)"""
    (live.state_dir() / "pods-cache.json").unlink(missing_ok=True)
    made = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": api.url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(made))
    path.chmod(0o600)
    return ("--pods", "apiserver", "--kubeconfig", str(path), "--node-name", NODE)


def hog(node: LabNode, pod: Object, mib: int, qos: str = "burstable") -> Hog:
    """A process that takes so much, in the cgroup of this pod."""
    uid = uid_of(pod)
    path = cgroupfs.make(node.cgroup / "kubepods" / qos / f"pod{uid}" / uid.replace("-", ""))
    made = Hog(path, mib=mib, rate=100)
    node.children.append(made)
    return made


def grown(one: Hog) -> Hog:
    one.go()
    one.expect("grown")
    return one


def test_the_pod_of_low_priority_goes_and_it_has_a_name(
    node: LabNode, api: FakeApiServer, cluster: tuple[str, ...]
) -> None:
    """By the cgroups alone it was db, whose priority was not known. What is not listed is never evicted."""
    batch, db = a_pod("batch", priority=-10, memory="1Mi"), a_pod("db", priority=1_000_000, memory="1Mi")
    critical = a_pod("critical", priority=2_000_001_000, namespace="kube-system", memory="1Mi")
    for pod in (batch, db, critical):
        api.store.create("pods", pod)
    low, high, highest = grown(hog(node, batch, 12)), hog(node, db, 55), grown(hog(node, critical, 15))
    new = a_pod("new", priority=-20, memory="1Mi")
    unlisted = grown(hog(node, new, 20))
    with live.daemon(node, *hard(32), "--enforce", *cluster) as daemon:
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
    node: LabNode, api: FakeApiServer, cluster: tuple[str, ...], tmp_path: Path
) -> None:
    batch, db = a_pod("batch", priority=-10, memory="1Mi"), a_pod("db", priority=1_000_000, memory="1Mi")
    for pod in (batch, db):
        api.store.create("pods", pod)
    low, high = grown(hog(node, batch, 20)), hog(node, db, 80)
    state = tmp_path / "state"
    state.mkdir()
    with live.daemon(node, *hard(32), *cluster, state_dir=state):
        live.until((state / "pods-cache.json").exists, "it is stored")
    api.refuse()
    with live.daemon(node, *hard(32), "--enforce", *cluster, state_dir=state) as daemon:
        high.go()
        decision, _ = evicted(daemon, "shop/batch")
        assert decision["uid"] == uid_of(batch)
        assert any("its last pods stay in use" in str(record.get("msg")) for record in daemon.log)
    assert low.wait() == -signal.SIGKILL
