"""Limits and swap: in a frame of `outrace top`, and what `outrace explain POD` says of them."""

import json
import os
from pathlib import Path

import pytest

from monitor.cli.explain_limits import limit_text, limits_of
from monitor.cli.top_frame import limit_fields, pod_fields
from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.limits import Limits
from monitor.lab.node import LabNode
from monitor.pods.model import FoundPod
from monitor.policy.pods import pod_from_object
from tests.cli.called import called
from tests.cli.test_explain_cli import explain, text
from tests.limited import MIB, limit, write


@pytest.mark.live
@pytest.mark.newest
@pytest.mark.skipif(os.geteuid() != 0, reason="not root: cannot make a cgroup")
def test_a_real_pod() -> None:
    with LabNode("test-explain-limits", 128 * MIB) as node:
        node.add_pod("plain", limit=64 * MIB)
        limit(node.add_pod("limited").containers["c0"], 64)
        facts = explain(node, "limited")["pod"]["memory_limits"]
        found = [(fact["name"], fact["of"], fact["value"] // MIB) for fact in facts]
        v1 = [("soft_limit_in_bytes", 32)]
        expected = v1 if cgroupfs.detect().version == 1 else [("min", 8), ("low", 16), ("high", 32)]
        assert found == [(f"memory.{name}", "container c0", mib) for name, mib in expected]
        shown = text(node, "limited")
        for fact in facts:
            assert f"(container c0): {fact['why']}\n" in shown
        # A limit alone is what every pod has; nothing is added for it.
        assert explain(node, "plain")["pod"]["memory_limits"] == []


def named(root: Path, files: dict[str, int | str], version: int = 2, **containers: dict[str, int | str]) -> list[str]:
    """The lines about a pod with these files, below a kubepods that protects 2 MiB."""
    kubepods = write(root / "kubepods", {"memory.min": 2 * MIB, "memory.low": 0})
    path = write(kubepods / "pod", files)
    found = FoundPod(pod_from_object({"metadata": {"name": "p"}}), path, {n: path / n for n in containers})
    for name, own in containers.items():
        write(path / name, own)
    found.containers["ended"] = path / "gone"  # is left out
    facts = limits_of(Hierarchy(version, root), found)
    return [f"{fact['name']} {limit_text(fact)}" for fact in facts]


def test_what_limits_and_swap_have_to_do_with_eviction(tmp_path: Path) -> None:
    (line,) = named(tmp_path, {"memory.high": 54 * MIB, "memory.max": 64 * MIB})
    assert line.startswith("memory.high 54.0Mi (the pod): reclaim and throttling begin there, 10.0Mi below the limit; ")
    for without in ({"memory.max": "max"}, {"memory.max": 54 * MIB}):  # there is nothing between it and the limit
        (line,) = named(tmp_path, {"memory.high": 54 * MIB, **without})
        assert "below the limit" not in line
    (line,) = named(tmp_path, {"memory.soft_limit_in_bytes": MIB}, version=1)
    assert line.endswith("is reclaimed first; it protects nothing below it")
    swapped: dict[str, int | str] = {"memory.swap.current": 3 * MIB}
    (line,) = named(tmp_path / "swap", swapped, c0=swapped)
    assert line.startswith("swap in use 3.0Mi (the pod): no part of the working set: ")
    assert named(tmp_path / "none", {"memory.swap.current": 0, "memory.max": MIB}) == []


def test_protection_is_none_from_eviction_and_no_more_than_is_granted(tmp_path: Path) -> None:
    least, low = named(tmp_path, {"memory.min": 8 * MIB, "memory.low": "max"})
    assert least.startswith("memory.min 8.0Mi (the pod): ")
    assert low.startswith("memory.low everything (the pod): ")
    for line, granted in ((least, "2.0Mi"), (low, "0")):
        assert line.endswith(f"; when what is short lies above kubepods, only the {granted} that has count")
    (line,) = named(tmp_path, {"memory.min": 2 * MIB, "memory.low": 0})
    assert line.endswith("from the OOM killer")  # all of it is granted


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
