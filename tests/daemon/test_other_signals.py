"""The daemon on signals other than memory: real disks, process ids, limits of local storage; and on older policies."""

import itertools
import json
import os
import signal
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


def with_scratch(node: LabNode, name: str, disk: Path, mib: int, size_limit: str = "", **options: Any) -> LabPod:
    """A pod whose emptyDir `scratch` holds a file of so many MiB."""
    pod = node.add_pod(name, **options)
    directory = disk / name
    directory.mkdir()
    (directory / "file").write_bytes(bytes(mib * MIB))
    manifest = json.loads(pod.manifest.read_text())
    manifest["metadata"]["annotations"]["outrace/volume.scratch"] = str(directory)
    manifest["spec"]["volumes"] = [{"name": "scratch", "emptyDir": {"sizeLimit": size_limit} if size_limit else {}}]
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
        live.until(
            lambda: live.metric(daemon, 'signal_available_bytes{signal="nodefs.available"}') > 50 * MIB, "space again"
        )
        live.until(
            lambda: live.metric(daemon, 'threshold_met{kind="hard",signal="nodefs.available"}') == 0, "threshold clear"
        )
        assert live.metric(daemon, 'node_condition{condition="DiskPressure"}') == 1  # for the transition period
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


def test_what_an_evicted_pod_leaves_on_the_disk_costs_nobody_else(node: LabNode, disk: Path, tmp_path: Path) -> None:
    """Nobody removes its files: the next pod is not evicted at once, as if the first had done nothing."""
    small, big = with_scratch(node, "small", disk, 5), with_scratch(node, "big", disk, 30)
    small_process, big_process = node.start_hog(small, mib=1), node.start_hog(big, mib=1)
    options = on_disk(disk, "nodefs.available<40Mi", "--enforce")
    with live.daemon(node, *options, state_dir=tmp_path / "state") as daemon:
        live.message(daemon, "evicting", pod=name_of(big))
        live.ends(big_process.pid)
        begin = live.metric(daemon, "passes_total")
        live.until(lambda: live.metric(daemon, "passes_total") >= begin + 4, "passes on fresh numbers")
        live.ended(daemon)
        assert len(live.messages(daemon, "evicting")) == 1
    assert live.alive(small_process.pid)


def test_observing_a_short_disk_touches_nobody(node: LabNode, disk: Path) -> None:
    pod = with_scratch(node, "pod", disk, 30)
    process = node.start_hog(pod, mib=1)
    options = on_disk(disk, "nodefs.available<40Mi", "--reclaim-images", f"rm {disk}/pod/file")
    with live.daemon(node, *options) as daemon:
        decision = live.message(daemon, "would evict", signal="nodefs.available", pod=name_of(pod))
        assert decision["cleanup"] == ["DeleteUnusedImages"]  # it would be run first
    assert live.alive(process.pid)
    assert (disk / "pod" / "file").exists()


@pytest.mark.parametrize("enough", [True, False])
def test_the_node_is_cleaned_up_before_a_pod_goes(node: LabNode, disk: Path, tmp_path: Path, enough: bool) -> None:
    pod = with_scratch(node, "pod", disk, 15 if enough else 25)  # of 64 MiB, of which 45 are to be free
    process = node.start_hog(pod, mib=1)
    (disk / "image").write_bytes(bytes(10 * MIB))
    command = f"rm -f {disk}/image"
    options = on_disk(disk, "nodefs.available<45Mi", "--enforce", "--reclaim-images", command)
    with live.daemon(node, *options, state_dir=tmp_path / "state") as daemon:
        asked = live.message(daemon, "cleaning up the node before a pod is evicted")
        assert asked["actions"] == ["DeleteUnusedImages"]
        live.until(lambda: not (disk / "image").exists(), "the clean-up")
        if enough:
            live.until(
                lambda: live.metric(daemon, 'threshold_met{kind="hard",signal="nodefs.available"}') == 0, "clear"
            )
            live.ended(daemon)
            assert live.messages(daemon, "evicting") == []
            assert live.alive(process.pid)
        else:
            live.message(daemon, "evicting", pod=name_of(pod))
            live.ends(process.pid)


def test_a_pod_over_a_limit_of_its_own_goes_without_any_threshold(node: LabNode, disk: Path, tmp_path: Path) -> None:
    fair = with_scratch(node, "fair", disk, 1, size_limit="8Mi")
    over = with_scratch(node, "over", disk, 3, size_limit="2Mi")
    critical = with_scratch(node, "critical", disk, 3, size_limit="2Mi", priority=2_000_000_000)
    spared = [node.start_hog(pod, mib=1) for pod in (fair, critical)]
    process = node.start_hog(over, mib=1)
    options = on_disk(disk, "memory.available<1Mi", "--enforce")
    with live.daemon(node, *options, state_dir=tmp_path / "state") as daemon:
        decision = live.message(daemon, "evicting", kind="limit")
        assert decision["pod"] == name_of(over)
        live.ends(process.pid)
        status = left(daemon, over, "pods")["status"]
        assert status["message"] == 'Usage of EmptyDir volume "scratch" exceeds the limit "2Mi". '
        assert [c["type"] for c in status["conditions"]] == ["Ready", "ContainersReady"]
        live.ended(daemon)
        assert len(live.messages(daemon, "evicting")) == 1
    assert all(live.alive(hog.pid) for hog in spared)


def test_process_ids_cost_the_pod_that_has_most_of_them(node: LabNode, tmp_path: Path) -> None:
    few, many = node.add_pod("few"), node.add_pod("many")
    others = [node.start_hog(many, mib=1) for _ in range(4)]
    one = node.start_hog(few, mib=1)
    options = ("--eviction-hard", "pid.available<99.999%", "--enforce")
    with live.daemon(node, *options, state_dir=tmp_path / "state") as daemon:
        decision = live.message(daemon, "evicting", signal="pid.available")
        assert decision["pod"] == name_of(many)
        for hog in others:
            live.ends(hog.pid)
        status = left(daemon, many, "pods")["status"]
        assert status["message"].startswith("The node was low on resource: pids. Threshold quantity: ")
        live.message(daemon, "evicting", pod=name_of(few))  # the threshold is still met
        live.ends(one.pid)
        assert live.metric(daemon, 'node_condition{condition="PIDPressure"}') == 1


def test_an_older_policy_decides_in_its_own_order(node: LabNode) -> None:
    """1.8 takes BestEffort first, however little it uses; today the larger excess over the request counts."""
    large = node.add_pod("large", "Burstable", request=MIB)
    small = node.add_pod("small", "BestEffort")
    for policy, expected in (("kubelet-1.36", large), ("kubelet-1.8", small)):
        hogs = [live.filled(node, large, 60), live.filled(node, small, 10)]
        with live.daemon(node, "--policy", policy, "--eviction-hard", "memory.available<80Mi") as daemon:
            assert live.message(daemon, "would evict")["pod"] == name_of(expected)
        for hog in hogs:
            hog.process.kill()
            hog.process.wait()


def test_a_kubelet_would_not_admit_a_pod_under_pressure(node: LabNode, disk: Path) -> None:
    with_scratch(node, "pod", disk, 30)
    with live.daemon(node, *on_disk(disk, "nodefs.available<40Mi")) as daemon:
        live.message(daemon, "node conditions changed", conditions=["DiskPressure"])
        node.add_pod("late")
        logged = live.message(daemon, "a kubelet would not have admitted this pod now", pod="lab/late")
        assert logged["message"] == "The node had condition: [DiskPressure]. "


def side_of(daemon: LabDaemon) -> int:
    (side,) = live.children(daemon.pid)
    return side


def test_a_condition_ends_although_the_side_that_reported_it_died(node: LabNode, disk: Path, tmp_path: Path) -> None:
    with_scratch(node, "pod", disk, 30)
    options = on_disk(disk, "nodefs.available<40Mi", "--eviction-pressure-transition-period", "1s")
    with live.daemon(node, *options, state_dir=tmp_path / "state") as daemon:
        live.message(daemon, "node conditions changed", conditions=["DiskPressure"])
        os.kill(side_of(daemon), signal.SIGSTOP)  # it measures nothing any more
        (disk / "pod" / "file").unlink()
        os.kill(side_of(daemon), signal.SIGKILL)
        live.until(lambda: daemon.get("/readyz")[0] == 200, "another side")
        live.until(lambda: live.metric(daemon, 'node_condition{condition="DiskPressure"}') == 0, "the condition's end")


def test_a_clean_up_that_nobody_will_report_is_not_waited_for(node: LabNode, disk: Path, tmp_path: Path) -> None:
    pod = with_scratch(node, "pod", disk, 30)
    process = node.start_hog(pod, mib=1)
    once = tmp_path / "once"
    # The first one never ends by itself, the second at once.
    script = tmp_path / "clean"
    script.write_text(f"#!/bin/sh\n[ -e {once} ] && exit 0\ntouch {once}\necho $$ > {once}\nexec sleep 1000\n")
    script.chmod(0o755)
    options = on_disk(disk, "nodefs.available<40Mi", "--enforce", "--reclaim-images", str(script))
    with live.daemon(node, *options, state_dir=tmp_path / "state") as daemon:
        sleeper = int(live.until(lambda: once.exists() and once.read_text().strip(), "the clean-up"))
        os.kill(side_of(daemon), signal.SIGKILL)
        try:
            live.message(daemon, "evicting", pod=name_of(pod))
            live.ends(process.pid)
        finally:
            os.kill(sleeper, signal.SIGKILL)


def test_process_ids_have_their_turn_while_a_disk_settles(node: LabNode, disk: Path, tmp_path: Path) -> None:
    """Nobody frees the disk after the first eviction; that keeps nobody from acting on another signal."""
    big, other = with_scratch(node, "big", disk, 30), node.add_pod("other")
    hogs = [node.start_hog(big, mib=1), node.start_hog(other, mib=1)]
    options = on_disk(disk, "nodefs.available<40Mi,pid.available<99.999%", "--enforce")
    with live.daemon(node, *options, state_dir=tmp_path / "state") as daemon:
        live.message(daemon, "evicting", signal="nodefs.available", pod=name_of(big))
        live.message(daemon, "evicting", signal="pid.available", pod=name_of(other))
        for hog in hogs:
            live.ends(hog.pid)


def test_every_pod_over_its_limit_goes_one_after_the_other(node: LabNode, disk: Path, tmp_path: Path) -> None:
    pods = [with_scratch(node, f"over{i}", disk, 3, size_limit="1Mi") for i in range(4)]
    hogs = [node.start_hog(pod, mib=1, ignore_term=1) for pod in pods]
    options = on_disk(disk, "memory.available<1Mi", "--enforce")
    with live.daemon(node, *options, state_dir=tmp_path / "state") as daemon:
        for hog in hogs:
            live.ends(hog.pid)
        live.until(lambda: len(live.messages(daemon, "evicted")) == 4, "all of them")
        decisions = live.messages(daemon, "evicting")
        assert [record["kind"] for record in decisions] == ["limit"] * 4
        assert {record["given_s"] for record in decisions} == {1}
        times = [record["decided_ns"] for record in decisions]
        # A second of grace each, and no measurement (10 s at least, mostly a minute) in between.
        assert max(b - a for a, b in itertools.pairwise(times)) < 8_000_000_000
