"""A pod in its grace still writes: its status is Failed when it is over; a status that nothing takes is an alert."""

import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kube.cluster import ClusterConfig
from monitor.link.messages import Gone, Signalled
from monitor.pods.model import FoundPod
from monitor.policy.pods import Pod
from monitor.settings.config import RunConfig
from monitor.side.alerts.rules import STATUS_NOT_TAKEN
from monitor.side.cluster.cluster import Cluster, Place
from monitor.side.cluster.reports import AWAY, TAKEN
from tests.alerts.services import StandIn
from tests.daemon.harness import DECISION
from tests.kube.fake_apiserver import FakeApiServer, pod, relist
from tests.kube.test_cluster_records import BOTH, _phase, reasons, until
from tests.kube.test_cluster_records import in_time as in_time
from tests.kube.test_cluster_records import open_cluster as open_cluster
from tests.kube.test_status_writer import evicted
from tests.side.parts import Parts


def test_the_events_go_at_once_and_the_status_when_it_ended(
    open_cluster: Callable[[], Cluster], api: FakeApiServer, in_time: None
) -> None:
    cluster = open_cluster()
    cluster.evicting(evicted(api), time.monotonic_ns() - int(25e9), True)  # asked to end so long ago, and it writes
    until(lambda: reasons(api) == BOTH)
    assert (_phase(api), api.seen("PATCH", "/pods/")) == ("Running", [])
    cluster.ended("of another pod", time.monotonic_ns())
    cluster.ended(evicted(api).pod.uid, time.monotonic_ns())
    until(lambda: _phase(api) == "Failed")
    cluster.ended(evicted(api).pod.uid, time.monotonic_ns())  # after its SIGKILL it is empty: that is the same end
    [patched] = api.seen("PATCH", "/pods/web/status")
    assert patched.json()["metadata"]["uid"] == evicted(api).pod.uid


@pytest.mark.parametrize("given_s", [0, 30])
def test_what_the_hot_process_reports_of_an_end(given_s: int, tmp_path: Path) -> None:
    known = Parts(RunConfig(enforce=True, state_dir=str(tmp_path)), Hierarchy(2, tmp_path), 512 << 20)
    known.node.pods["uid-a"] = FoundPod(Pod(name="a", namespace="default", uid="uid-a"), tmp_path / "pod", {})
    begun, ended = list[tuple[str, int, bool]](), list[tuple[str, int]]()
    cluster = create_autospec(Cluster, instance=True)
    cluster.name = "node-1"
    cluster.evicting = lambda eviction, ns, in_grace: begun.append((eviction.pod.uid, ns, in_grace))
    cluster.ended = lambda uid, ns: ended.append((uid, ns))
    handler = known.handler(cluster=cluster)
    kind = "soft" if given_s else "hard"
    assert handler.handle(DECISION._replace(observed=False, kind=kind, given_s=given_s, signalled_ns=3))
    assert handler.handle(Signalled(4, "uid-a", "default/a", 9))
    assert handler.handle(Gone(5, "uid-a", "shop/a", id=1))
    assert begun == [("uid-a", 3, given_s > 0)]
    assert ended == [("uid-a", 4), ("uid-a", 5)]


def test_a_status_that_is_not_taken_is_an_alert_with_the_name_of_its_pod(
    config: ClusterConfig, api: FakeApiServer, tmp_path: Path, in_time: None
) -> None:
    """One that is taken is none."""
    receiver = StandIn()
    settings = RunConfig(state_dir=str(tmp_path / "state"), alertmanagers=(receiver.url,), node_name="node-1")
    known = Parts(settings, cgroupfs.detect(), 1 << 30)
    races = known.races()
    cluster = known.cluster(Place(config, "node-1"), races.status_not_taken)
    with receiver.running():
        cluster.start()
        try:
            api.store.create("pods", pod("web"))
            cluster.evicting(evicted(api), time.monotonic_ns())
            until(lambda: _phase(api) == "Failed")
            assert relist(api, "web") == "Failed"
            until(lambda: cluster.reports.fates[TAKEN] == 1)
            api.store.create("pods", pod("db"))
            cluster.evicting(evicted(api, "db"), time.monotonic_ns() - int(700e9))  # too long ago for a status
            until(lambda: len(receiver.got()) == 1)
        finally:
            cluster.close()
            races.close(10.0, 10.0)
    (alert,) = receiver.got()
    assert alert["labels"]["alertname"] == STATUS_NOT_TAKEN
    labels = {key: alert["labels"][key] for key in ("node", "namespace", "pod", "outcome", "severity")}
    assert labels == {"node": "node-1", "namespace": "default", "pod": "db", "outcome": AWAY, "severity": "warning"}
    assert alert["annotations"]["summary"].startswith("default/db: the API server took no status")
