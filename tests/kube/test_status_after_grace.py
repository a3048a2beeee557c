"""A pod in its grace still writes: its status is Failed when it is over, not when it gets SIGTERM."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from monitor.kernel.cgroupfs import Hierarchy
from monitor.link.messages import Evicted, Killed
from monitor.pods.model import FoundPod
from monitor.policy.pods import Pod
from monitor.settings.config import RunConfig
from monitor.side.cluster.cluster import Cluster
from monitor.side.message_handler import MessageHandler
from monitor.side.worker import Worker
from tests.daemon.harness import DECISION
from tests.kube.fake_apiserver import FakeApiServer, pod
from tests.kube.test_cluster_records import BOTH, _now_ns, reasons, until
from tests.kube.test_cluster_records import open_cluster as open_cluster
from tests.kube.test_status_writer import evicted
from tests.side.views import view

SECOND = 1_000_000_000


def _phase(api: FakeApiServer) -> str:
    return str(api.store.get(("pods", "default", "web"))["status"]["phase"])


def _uid(api: FakeApiServer) -> str:
    return str(api.store.get(("pods", "default", "web"))["metadata"]["uid"])


def test_the_events_go_at_once_and_the_status_when_it_ended(
    open_cluster: Callable[[], Cluster], api: FakeApiServer, tmp_path: Path
) -> None:
    api.store.create("pods", pod("web"))
    cluster = open_cluster()
    cluster.evicting(evicted(api), _now_ns() - 25 * SECOND, True)  # asked to end so long ago, and it writes
    until(lambda: reasons(api) == BOTH)
    until(lambda: len(list((tmp_path / "cluster").glob("*.json"))) == 1)
    assert (_phase(api), api.seen("PATCH", "/pods/")) == ("Running", [])
    cluster.ended("of another pod", _now_ns())
    cluster.ended(_uid(api), _now_ns())
    until(lambda: _phase(api) == "Failed")
    cluster.ended(_uid(api), _now_ns())  # after its SIGKILL it is empty: that is the same end
    [patched] = api.seen("PATCH", "/pods/web/status")
    assert patched.json()["metadata"]["uid"] == _uid(api)


def test_a_daemon_that_was_started_in_the_grace_waits_for_its_end(
    open_cluster: Callable[[], Cluster], api: FakeApiServer, tmp_path: Path
) -> None:
    api.store.create("pods", pod("web"))
    first = open_cluster()
    first.evicting(evicted(api), _now_ns(), True)
    until(lambda: reasons(api) == BOTH)
    until(lambda: len(list((tmp_path / "cluster").glob("*.json"))) == 1)
    first.close()
    second = open_cluster()
    until(lambda: second.events.waiting == 0)
    assert api.seen("PATCH", "/pods/") == []
    second.ended(_uid(api), _now_ns())
    until(lambda: _phase(api) == "Failed")
    [path] = (tmp_path / "cluster").glob("*.json")
    until(lambda: json.loads(path.read_text())["in_grace"] is False)  # the next one does not wait for it again


def test_a_later_eviction_of_the_same_pod_takes_its_place(
    open_cluster: Callable[[], Cluster], api: FakeApiServer, tmp_path: Path
) -> None:
    api.store.create("pods", pod("web"))
    cluster, found = open_cluster(), evicted(api)
    cluster.evicting(found, _now_ns(), True)
    object.__setattr__(found, "decided", found.decided + 60)
    cluster.evicting(found, _now_ns(), True)
    until(lambda: len(api.store.all("events")) == 4)
    until(lambda: len(list((tmp_path / "cluster").glob("*.json"))) == 1)


@pytest.mark.parametrize("given_s", [0, 30])
def test_what_the_hot_process_reports_of_an_end(given_s: int, tmp_path: Path) -> None:
    known = view(RunConfig(enforce=True, state_dir=str(tmp_path)), Hierarchy(2, tmp_path), 512 << 20)
    known.pods["uid-a"] = FoundPod(Pod(name="a", namespace="default", uid="uid-a"), tmp_path / "pod", {})
    known.first_seen["uid-a"] = 1_800_000_000.0
    files = Worker("files")
    handler = MessageHandler(known, files, lambda _: None, lambda _: None)
    begun, ended = list[tuple[str, int, bool]](), list[tuple[str, int]]()
    handler.on_evicting = lambda eviction, ns, in_grace: begun.append((eviction.pod.uid, ns, in_grace))
    handler.on_ended = lambda uid, ns: ended.append((uid, ns))
    kind = "soft" if given_s else "hard"
    assert handler.handle(DECISION._replace(observed=False, kind=kind, given_s=given_s, signalled_ns=3))
    assert handler.handle(Killed(1, "uid-a", "default/a", 4))
    assert handler.handle(Evicted(1, "uid-a", 5, [], 0))
    assert begun == [("uid-a", 3, given_s > 0)]
    assert ended == [("uid-a", 4), ("uid-a", 5)]
    files.close(5.0)
