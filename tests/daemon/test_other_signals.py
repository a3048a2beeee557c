"""The daemon on a signal other than memory: a real disk (what is decided, and process ids: test_decide.py)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode, LabPod
from tests import live
from tests.filesystems import Mounts

pytestmark = [pytest.mark.kernel, pytest.mark.once]


@pytest.fixture
def node() -> Iterator[LabNode]:
    with LabNode("test-other", 128 * MIB) as made:
        yield made
        assert made.oom_kills() == 0


@pytest.fixture
def disk() -> Iterator[Path]:
    """A disk of 64 MiB for the node and everything on it."""
    with Mounts() as mounts:
        yield mounts.tmpfs("nodefs", 64 * MIB)


def with_scratch(node: LabNode, name: str, disk: Path, mib: int, **options: Any) -> LabPod:
    """A pod whose emptyDir `scratch` holds a file of so many MiB."""
    pod = node.add_pod(name, **options)
    directory = disk / name
    directory.mkdir()
    (directory / "file").write_bytes(bytes(mib * MIB))
    manifest = json.loads(pod.manifest.read_text())
    manifest["metadata"]["annotations"]["outrace/volume.scratch"] = str(directory)
    manifest["spec"]["volumes"] = [{"name": "scratch", "emptyDir": {}}]
    unfinished = pod.manifest.with_name(f".{pod.manifest.name}.new")
    unfinished.write_text(json.dumps(manifest))
    unfinished.rename(pod.manifest)
    return pod


def on_disk(disk: Path, threshold: str, *more: str) -> tuple[str, ...]:
    return ("--nodefs", str(disk), "--imagefs", str(disk), "--eviction-hard", threshold, *more)


def left(daemon: LabDaemon, pod: LabPod, kind: str) -> dict[str, Any]:
    """What an eviction of this pod left in the state dir."""
    path = daemon.state_dir / kind / f"{pod.namespace}_{pod.name}_{pod.uid}.json"
    found: dict[str, Any] = json.loads(live.until(lambda: path.exists() and path.read_text(), str(path)))
    return found


def name_of(pod: LabPod) -> str:
    return f"{pod.namespace}/{pod.name}"


def test_a_short_disk_costs_the_pod_that_uses_most_of_it(node: LabNode, disk: Path, tmp_path: Path) -> None:
    small, big = with_scratch(node, "small", disk, 5), with_scratch(node, "big", disk, 30)
    small_process, big_process = node.start_hog(small, mib=1), node.start_hog(big, mib=1)
    options = on_disk(disk, "nodefs.available<40Mi", "--enforce")
    with live.daemon(node, *options, state_dir=tmp_path / "state") as daemon:
        decision = live.message(daemon, "evicting", signal="nodefs.available")
        assert decision["pod"] == name_of(big)
        assert (decision["domain"], decision["kind"], decision["grace_s"]) == ("nodefs", "hard", 1)
        assert decision["quantity"] == 40 * MIB
        assert decision["available"] <= 29 * MIB
        live.ends(big_process.pid)
        (disk / "big" / "file").unlink()  # the kubelet removes an evicted pod's volumes; here its owner does
        live.message(daemon, "evicted", id=decision["id"])
        live.until(lambda: live.metric(daemon, 'node_condition{condition="DiskPressure"}'), "the condition")
        assert live.metric(daemon, 'node_condition{condition="MemoryPressure"}') == 0
        assert live.metric(daemon, 'threshold_bytes{kind="hard",signal="nodefs.available"}') == 40 * MIB
        status = left(daemon, big, "pods")["status"]
        assert status["message"].startswith("The node was low on resource: ephemeral-storage. Threshold quantity: 40Mi")
        assert status["conditions"][0]["type"] == "DisruptionTarget"
        event = left(daemon, big, "node-events")
        assert (event["reason"], event["message"]) == (
            "EvictionThresholdMet",
            "Attempting to reclaim ephemeral-storage",
        )
        live.ended(daemon)
        assert [record["pod"] for record in live.messages(daemon, "evicting")] == [name_of(big)]
    assert live.alive(small_process.pid)
