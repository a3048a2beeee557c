"""The helper's part in races, on the live kernel: names of cgroups, and kills while no daemon ran."""

import json
import os
import signal
from pathlib import Path

import pytest

from monitor.kernel import cgroupfs, loader
from monitor.lab.daemon import LabDaemon, Record
from monitor.lab.node import MIB, LabNode
from monitor.pods.model import FoundPod
from monitor.policy.pods import pod_from_object
from monitor.side.cgroup_names import CgroupNames, NamedCgroup
from tests import live

pytestmark = pytest.mark.kernel
HARD = ("--eviction-hard", "memory.available<16Mi")

node = live.fixture(LabNode, "test-races", 128 * MIB)


def stored(daemon: LabDaemon, incident: Record) -> Record:
    shown = live.outrace("incidents", "show", incident["id"], "--state-dir", str(daemon.state_dir), "-o", "json")
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)


def test_cgroup_names_give_what_a_cgroup_is() -> None:
    hierarchy = cgroupfs.detect()
    with live.cgroup("names") as top:
        node = cgroupfs.make(top / "node")
        slice_ = cgroupfs.make(node / "kubepods")
        middle = cgroupfs.make(slice_ / "burstable")
        pod, other = cgroupfs.make(middle / "podx"), cgroupfs.make(top / "other")
        container = cgroupfs.make(pod / "c")
        ids = {path: cgroupfs.cgroup_id(path) for path in (top, node, slice_, middle, pod, other, container)}
        made = pod_from_object({"metadata": {"name": "x", "namespace": "ns", "uid": "u"}, "spec": {"containers": []}})
        found = FoundPod(made, pod, {"c": container}, (ids[pod], ids[container]))
        names = CgroupNames(hierarchy, node)
        names.update({"u": found}, slice_)
        name = f"/{top.name}"
        assert names.of_cgroup(ids[node]) == NamedCgroup(f"{name}/node", "node")
        assert names.of_cgroup(ids[slice_]) == NamedCgroup(f"{name}/node/kubepods", "kubepods")
        assert names.of_cgroup(ids[middle]).kind == "pods"  # a class of pods: neither node nor kubepods nor a pod
        assert names.of_cgroup(ids[top]).kind == "outside"
        assert names.of_cgroup(ids[pod]) == NamedCgroup(f"{name}/node/kubepods/burstable/podx", "pod", "u", "ns/x")
        assert names.of_cgroup(ids[container]).kind == "container"
        assert names.of_cgroup(12345, "u").kind == "container"  # somewhere inside that pod
        assert names.of_cgroup(ids[other]) == NamedCgroup(f"#{ids[other]}", "outside")
        assert set(names.ids()) == {ids[node], ids[slice_], ids[pod]}
        again = FoundPod(made, pod, {"b": other, "c": container}, (ids[pod], ids[other], ids[container]))
        names.update({"u": again}, slice_)
        assert names.of_cgroup(ids[other]).path == f"/{top.name}/other"
        names.update({}, slice_)  # a kill is reported after its pod went
        assert names.of_cgroup(ids[container]).name == "ns/x"
        assert set(names.ids()) == {ids[node], ids[slice_]}  # ... and not measured any more


@pytest.mark.once  # the kernel's part in it is in test_oom.py: records outlive their reader
def test_a_kill_while_no_daemon_ran_is_an_incident(node: LabNode, tmp_path: Path) -> None:
    """What led to it was not observed; the limit and the victim are known."""
    pod = node.add_pod("hog", "Burstable", request=8 * MIB, limit=24 * MIB)
    state = tmp_path / "state"
    live.lend_pins(state)
    try:
        with LabDaemon(node, *HARD, state_dir=state, keep_pins=True):
            pass
        live.killed_hog(node, pod, 64)
        live.killed_hog(node, node.add_pod("big"), 400)
        with LabDaemon(node, *HARD, state_dir=state, keep_pins=True) as daemon:
            limit = live.message(daemon, "incident", final=True, verdict="own_limit")
            assert stored(daemon, limit)["oom_victims"][0]["pod"] == "lab/hog"
            race = live.message(daemon, "incident", final=True, verdict="undetermined")
            assert stored(daemon, race)["oom_victims"][0]["pod"] == "lab/big"
    finally:
        loader.unload(loader.instance_directory(state))


@pytest.mark.once
def test_a_pod_that_was_killed_before_it_was_found_is_named(node: LabNode) -> None:
    """The helper gets no CPU from before the pod is made until it was killed."""
    uid = "5c2b2da2-119f-4fa8-8801-c79f0fa869aa"
    with live.daemon(node, *HARD, "--pods", "cgroups") as daemon:
        (side,) = live.children(daemon.pid)
        os.kill(side, signal.SIGSTOP)
        try:
            hog = live.hog_at(node, f"kubepods/besteffort/pod{uid}/{'a' * 64}", mib=400)
            hog.go()
            assert hog.wait() == -signal.SIGKILL
        finally:
            os.kill(side, signal.SIGCONT)
        incident = stored(daemon, live.message(daemon, "incident", final=True))
        assert [victim["pod"].removeprefix("/") for victim in incident["oom_victims"]] == [uid]
