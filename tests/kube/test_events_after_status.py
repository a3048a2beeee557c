"""Events of an eviction go when its status is accepted, late or given up: the status does not wait for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.kube.cluster import ClusterConfig
from monitor.side.cluster.cluster import Cluster
from monitor.side.export.log import Log
from monitor.side.worker import Worker
from tests.kube import faults
from tests.kube.fake_apiserver import FakeApiServer, pod
from tests.kube.test_status_writer import evicted
from tests.waiting import until

STATUS = "/pods/web/status"


@pytest.fixture
def cluster(config: ClusterConfig, api: FakeApiServer, tmp_path: Path) -> Iterator[Cluster]:
    api.store.create("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}, "status": {}})
    api.store.create("pods", pod("web"))
    files = Worker("files")
    made = Cluster(config, "node-1", tmp_path, files, Log())
    made.start()
    yield made
    made.close()
    files.close(1.0)


def evict(cluster: Cluster, api: FakeApiServer, age_s: float = 0.0) -> None:
    cluster.evicting(evicted(api), time.monotonic_ns() - int(age_s * 1e9))


def order(api: FakeApiServer) -> list[str]:
    """Statuses and events, as they were asked for."""
    return [
        "status" if one.path.endswith("/status") else "event"
        for one in api.seen()
        if one.method in ("PATCH", "POST") and "/nodes/" not in one.path
    ]


def reasons(api: FakeApiServer) -> set[str]:
    return {one["reason"] for one in api.store.all("events")}


def test_the_status_goes_first(cluster: Cluster, api: FakeApiServer) -> None:
    evict(cluster, api)
    until(lambda: "Evicted" in reasons(api), "the event")
    assert order(api)[0] == "status"
    assert api.store.get(("pods", "default", "web"))["status"]["reason"] == "Evicted"


def test_a_status_that_is_late_or_refused_holds_up_no_event(cluster: Cluster, api: FakeApiServer) -> None:
    api.fail(faults.status(500, "InternalError", "no leader"), times=1000, method="PATCH", path=STATUS)
    evict(cluster, api, age_s=1.5)
    until(lambda: "Evicted" in reasons(api), "the event")
    assert "reason" not in api.store.get(("pods", "default", "web"))["status"]


def test_a_pod_that_is_gone_has_its_event_all_the_same(cluster: Cluster, api: FakeApiServer) -> None:
    made = evicted(api)
    api.store.delete(("pods", "default", "web"))
    cluster.evicting(made, time.monotonic_ns())
    until(lambda: "Evicted" in reasons(api), "the event")
