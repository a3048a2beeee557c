"""`outrace explain POD` on limits of its memory cgroups and on swap: what each has to do with eviction."""

import os
from pathlib import Path

import pytest

from monitor.cli.explain_limits import limit_text, limits_of
from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.lab.node import LabNode
from monitor.pods.model import FoundPod
from monitor.policy.pods import pod_from_object
from tests.cli.explain_node import explain, text
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


def test_high_is_where_throttling_begins(tmp_path: Path) -> None:
    (line,) = named(tmp_path, {"memory.high": 54 * MIB, "memory.max": 64 * MIB})
    assert line.startswith("memory.high 54.0Mi (the pod): reclaim and throttling begin there, 10.0Mi below the limit; ")
    assert "neither counts as eviction" in line
    for without in ({"memory.max": "max"}, {"memory.max": 54 * MIB}):  # there is nothing between it and the limit
        (line,) = named(tmp_path, {"memory.high": 54 * MIB, **without})
        assert "below the limit" not in line


def test_protection_is_none_from_eviction_and_no_more_than_is_granted(tmp_path: Path) -> None:
    least, low = named(tmp_path, {"memory.min": 8 * MIB, "memory.low": "max"})
    assert least.startswith("memory.min 8.0Mi (the pod): ")
    assert low.startswith("memory.low everything (the pod): ")
    for line, granted in ((least, "2.0Mi"), (low, "0")):
        assert "no protection from eviction or from the OOM killer" in line
        assert line.endswith(f"; when what is short lies above kubepods, only the {granted} that has count")
    (line,) = named(tmp_path, {"memory.min": 2 * MIB, "memory.low": 0})
    assert line.endswith("from the OOM killer")  # all of it is granted


def test_swap_in_use_is_shown_once_and_not_at_all_without(tmp_path: Path) -> None:
    swapped: dict[str, int | str] = {"memory.swap.current": 3 * MIB}
    (line,) = named(tmp_path, swapped, c0=swapped)
    assert line.startswith("swap in use 3.0Mi (the pod): no part of the working set: ")
    assert "badness does" in line
    assert named(tmp_path, {"memory.swap.current": 0, "memory.max": MIB}) == []


def test_a_soft_limit_protects_nothing(tmp_path: Path) -> None:
    (line,) = named(tmp_path, {"memory.soft_limit_in_bytes": MIB}, version=1)
    assert line.endswith("is reclaimed first; it protects nothing below it")
