"""Limits and swap in a frame of `outrace top`."""

import json
import os
from pathlib import Path

import pytest

from monitor.cli.top_frame import limit_fields, pod_fields
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.limits import Limits
from monitor.lab.node import LabNode
from tests.cli.called import called
from tests.limited import MIB, limit


@pytest.mark.live
@pytest.mark.newest
@pytest.mark.skipif(os.geteuid() != 0, reason="not root: cannot make a cgroup")
def test_a_frame_of_real_cgroups() -> None:
    with LabNode("test-top-limits", 128 * MIB) as node:
        node.add_pod("plain")
        node.add_pod("limited", containers=2)
        pod = node.pods["limited"]
        whole, part = limit(pod.cgroup, 64), limit(pod.containers["c1"], 32)
        options = ("--node-cgroup", node.cgroup.name, "--pods", f"manifests:{node.manifests}")
        done = called("top", "--once", *options, "--state-dir", str(node.manifests / "state"), "-o", "json")
        assert (done.returncode, done.stderr) == (0, "")
        found = json.loads(done.stdout)
    pods = {p["name"]: p for p in found["pods"]}
    limited, plain = pods["limited"], pods["plain"]
    assert (limited["limits"], limited["containers"]["c1"]["limits"]) == (whole.named(), part.named())
    assert limited["oom_group"] == whole.oom_group
    none = Limits().named()
    assert limited["containers"]["c0"]["limits"] == plain["limits"] == plain["containers"]["c0"]["limits"] == none
    assert found["node"]["limits"]["max"] == limited["limits"]["max"] * 2 == 128 * MIB
    assert found["node"]["limits"]["high"] is None
    assert (limited["capacity"], plain["capacity"]) == (64 * MIB, None)  # as before
    for one in (found["node"], limited, plain):
        assert one["swap"] in (0, None)


def test_of_a_pod_known_to_the_daemon_alone_nothing_is_shown(tmp_path: Path) -> None:
    nothing = {"swap": None, "limits": Limits().named(), "oom_group": None}
    assert pod_fields(Hierarchy(2, tmp_path), None, {}) == {**nothing, "containers": {}}
    assert limit_fields(Hierarchy(2, tmp_path), tmp_path / "gone") == nothing
