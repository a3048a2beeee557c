"""Real daemons whose API server is away: the limit of an evicted pod comes back, whoever is killed."""

import os
import signal
from pathlib import Path

import pytest

from monitor.actions.changes import RESTORED, ChangeJournal
from monitor.kernel import cgroupfs
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import LabNode
from monitor.side.cluster.status_writer import AWAY, FATES
from tests import live
from tests.daemon.hot_node import hard, hot_node
from tests.daemon.test_cluster_live import KEY, started_hog
from tests.daemon.test_cluster_live import api as api
from tests.daemon.test_cluster_live import kubeconfig as kubeconfig
from tests.kube.fake_apiserver import FakeApiServer

pytestmark = [pytest.mark.kernel, pytest.mark.previous]

node = live.fixture(hot_node)
FILE = "memory.max" if cgroupfs.detect().version == 2 else "memory.limit_in_bytes"
LIMITED = (
    "the memory of an evicted pod is limited until the API server answers: a container that grows is OOM-killed in "
    "its pod"
)
UNDONE = "a change of an earlier daemon is undone"


def options(kubeconfig: Path) -> tuple[str, ...]:
    of_cluster = ("--pods", "apiserver", "--kubeconfig", str(kubeconfig), "--node-name", "node-1")
    return (*of_cluster, "--enforce", *hard(48))


def limited(node: LabNode, api: FakeApiServer, daemon: LabDaemon) -> Path:
    """A hog is evicted while the server is away; the pod's cgroup, with its limit."""
    hog = started_hog(node, api)
    live.until(lambda: live.metric(daemon, "pods") == 1, "the pod of the API server")
    api.refuse()
    hog.go()
    live.message(daemon, "evicted", pod="shop/hog")
    logged = live.message(daemon, LIMITED, pod="shop/hog")
    cgroup = Path(logged["cgroup"])
    assert value(cgroup) == str(32 << 20) == str(logged["bytes"])
    return cgroup


def value(cgroup: Path) -> str:
    return (cgroup / FILE).read_text().strip()


def reasons(api: FakeApiServer) -> list[str]:
    """Of the events on the pod. (The state dir of all tests may hold events of an earlier test's pod of that name.)"""
    uid = api.store.get(KEY)["metadata"]["uid"]
    return sorted(one["reason"] for one in api.store.all("events") if one["involvedObject"].get("uid") == uid)


def unlimited(node: LabNode) -> str:
    return value(cgroupfs.make(node.cgroup / "unlimited"))


def test_it_is_lifted_when_the_server_answers(node: LabNode, api: FakeApiServer, kubeconfig: Path) -> None:
    before = unlimited(node)
    with live.daemon(node, *options(kubeconfig)) as daemon:
        cgroup = limited(node, api, daemon)
        assert live.metric(daemon, "pods_capped") == 1
        live.message(daemon, FATES[AWAY][1])
        api.listen()
        live.until(lambda: value(cgroup) == before, "the limit to be lifted")
        live.until(lambda: live.metric(daemon, "pods_capped") == 0, "the metric")
        live.until(lambda: reasons(api) == ["Evicted", "MemoryLimited"], lambda: f"its events, once: {reasons(api)}")
        live.ended(daemon)


@pytest.mark.parametrize(
    "killed", ["nobody", *(pytest.param(one, marks=pytest.mark.once) for one in ("side", "hot")), "both"]
)
def test_it_is_lifted_whoever_is_killed(node: LabNode, api: FakeApiServer, kubeconfig: Path, killed: str) -> None:
    before = unlimited(node)
    with live.daemon(node, *options(kubeconfig)) as daemon:
        cgroup = limited(node, api, daemon)
        (side,) = live.children(daemon.pid)
        if killed == "side":
            os.kill(side, signal.SIGKILL)
            live.message(daemon, UNDONE, outcome=RESTORED)
        if killed == "both":
            os.kill(side, signal.SIGSTOP)  # else it would end in order when the other is gone
        if killed in ("hot", "both"):
            os.kill(daemon.pid, signal.SIGKILL)
            live.ends(daemon.pid)
        if killed == "both":
            os.kill(side, signal.SIGKILL)
            live.ends(side)
        if killed == "hot":
            live.until(lambda: value(cgroup) == before, "the side to end in order")
        if killed in ("nobody", "side"):
            live.ended(daemon)
    if killed == "both":
        assert value(cgroup) != before
    # The side has 2 s for it as it ends, which an emulated guest may not have: then the next start does it.
    if value(cgroup) != before:
        with live.daemon(node, *options(kubeconfig)) as again:
            live.message(again, UNDONE, outcome=RESTORED)
            live.ended(again)
    assert value(cgroup) == before
    assert ChangeJournal(live.state_dir()).load() == []


def test_unload_sets_back_what_a_killed_daemon_left(node: LabNode, tmp_path: Path) -> None:
    cgroup = cgroupfs.make(node.cgroup / "pod")
    before = value(cgroup)
    ChangeJournal(tmp_path).change(cgroup, FILE, str(32 << 20), "uid", "test")
    assert value(cgroup) == str(32 << 20)
    undone = live.outrace("unload", "--state-dir", str(tmp_path))
    assert undone.returncode == 0, undone.stderr
    assert f"{cgroup}/{FILE} (test): restored" in undone.stderr
    assert value(cgroup) == before
