"""`outrace top` on real cgroups: its figures, where they come from, its options, and the live view on a terminal."""

import json
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.cli import top_frame
from monitor.cli.top_frame import Trends
from monitor.errors import MonitorError
from monitor.kernel import cgroupfs, meminfo
from monitor.kernel.cgroupfs import Reading
from monitor.pods.source import open_for
from monitor.settings.config import RunConfig
from tests.commands import called
from tests.pods.top_node import MI, SmallNode
from tests.side.parts import Parts

#: What makes cgroups is live.
pytestmark = pytest.mark.newest


@pytest.mark.live
def test_one_frame_of_a_small_node(small: SmallNode) -> None:
    hard = "memory.available<25%,nodefs.available<10%"
    done = called("top", "--once", *small.options, "-o", "json", "--eviction-hard", hard)
    assert (done.returncode, done.stderr) == (0, "")
    frame = json.loads(done.stdout)
    assert (frame["source"], frame["kubepods"]) == ("cgroup files", None)
    reading = frame["node"]
    assert (reading["cgroup"], reading["capacity"]) == (str(small.path), 128 * MI)
    assert reading["usage"] >= 8 * MI
    assert reading["working_set"] == reading["usage"] - reading["inactive_file"]
    left = reading["available"]
    assert left == 128 * MI - reading["working_set"]
    [threshold] = frame["thresholds"]
    keys = ("signal", "kind", "value", "quantity", "available", "distance", "met", "compared")
    expected = ("memory.available", "hard", "25%", 32 * MI, left, left - 32 * MI, False, False)
    assert threshold == dict(zip(keys, expected, strict=True))
    cache = reading["inactive_file"] + reading["active_file"]
    assert frame["signals"]["memory.available"] == {"available": left, "capacity": 128 * MI}
    assert frame["signals"]["memory.reclaimable"]["available"] == 128 * MI - (reading["usage"] - cache)
    assert set(frame["signals"]) == {"memory.available", "memory.reclaimable"}
    assert [p["name"] for p in frame["pods"]] == ["busy", "quiet"]  # the one over its request is first
    pod = frame["pods"][0]
    assert pod["working_set"] >= 8 * MI
    known = [pod[key] for key in ("namespace", "cgroup", "qos", "priority", "critical", "request")]
    assert known == ["default", f"{small.path}/busy", "Burstable", 7, False, MI]
    assert pod["over_request"] == pod["working_set"] - MI
    assert (frame["memory_available_in_bytes"], frame["memory_available_in_mb"]) == (left, left // MI)
    assert frame["memory_total_inactive_file"] == reading["inactive_file"]
    assert frame["daemon"] is None
    assert (frame["kernel_victim"], reading["growth_bytes_per_s"]) == (None, None)


@pytest.mark.live
def test_the_table_has_the_scripts_lines_and_problems_go_to_stderr(small: SmallNode) -> None:
    (small.folder / "bad.yaml").write_text("kind: Service")
    soft = ("--eviction-soft", "memory.available<100Gi", "--eviction-soft-grace-period", "memory.available=1s")
    done = called("top", "--once", *small.options, *soft)
    assert done.returncode == 0
    assert done.stderr.startswith(f"outrace: {small.folder}/bad.yaml: document 1: kind: not a v1 Pod")
    assert done.stderr.count("\n") == 1
    rows = [line.split() for line in done.stdout.splitlines()]
    values = {row[0]: row[1] for row in rows if row and row[0].startswith("memory.") and len(row) == 2}
    assert len(values) == 7
    assert int(values["memory.capacity_in_bytes"]) == 128 * MI
    (soft,) = (line for line in done.stdout.splitlines() if "soft" in line)
    assert soft.startswith("B memory.available<100Gi soft: met, 99.9Gi short"), "of a node of 128 MiB"
    assert any("default/busy" in row for row in rows)


class _Daemon:
    """Answers every path with one body, as `monitor.cli.daemons.Daemon` does."""

    name, info = "node-7", SimpleNamespace(hot_pid=1, version="0")

    def __init__(self, body: str) -> None:
        self.get = lambda _path: body

    def __str__(self) -> str:
        return "node-7"


def _config(small: SmallNode) -> RunConfig:
    return RunConfig(node_cgroup=str(small.path), pods=f"manifests:{small.folder}")


def _frame(small: SmallNode, daemon: _Daemon) -> dict[str, Any]:
    with closing(top_frame.Node(_config(small), daemon)) as made:  # type: ignore[arg-type]
        return made.frame()


def _summary(small: SmallNode) -> dict[str, Any]:
    """What the daemon's side answers for this node, made by its own code."""
    hierarchy, config = cgroupfs.detect(), _config(small)
    parts = Parts(config, hierarchy, cgroupfs.limit(small.path) or 0)
    with closing(open_for(config, hierarchy, meminfo.mem_total())) as source:
        source.poll()
        parts.node.pods = dict(source.pods)
    return parts.summary.made()


@pytest.mark.live
def test_a_daemons_figures_are_used(small: SmallNode) -> None:
    served = _summary(small)
    memory = served["node"]["memory"]
    memory.update(usageBytes=100 * MI, inactiveFileBytes=30 * MI, activeFileBytes=3 * MI)
    memory.update(workingSetBytes=70 * MI, availableBytes=58 * MI)
    served["node"]["systemContainers"] = [{"name": "pods", "memory": memory}]
    stranger = {"name": "x", "namespace": "ns", "uid": "not-ours"}
    served["pods"].append({"podRef": stranger, "memory": memory, "containers": []})
    served["outrace"] |= {"stalls": {"not-ours": 0.5}, "kernel_victim": {"pid": 7}}
    frame = _frame(small, _Daemon(json.dumps(served)))
    assert (frame["source"], frame["node"]["cgroup"]) == ("daemon node-7", str(small.path))
    assert (frame["kernel_victim"], frame["daemon"]["name"]) == ({"pid": 7}, "node-7")
    figures = ("usage", "inactive_file", "active_file", "working_set", "capacity", "available")
    for found in (frame["node"], frame["kubepods"]):
        assert [found[name] // MI for name in figures] == [100, 30, 3, 70, 128, 58]
    pods = {p["uid"]: p for p in frame["pods"]}
    assert len(pods) == 3
    assert (pods["not-ours"]["request"], pods["not-ours"]["over_request"]) == (None, None)
    assert {p["request"] for p in pods.values()} == {None, MI, 32 * MI}
    assert {uid: p["stall_ratio"] for uid, p in pods.items() if p["stall_ratio"] is not None} == {"not-ours": 0.5}


@pytest.mark.live
@pytest.mark.parametrize("body", ["hello", "[]", "{}", "[" * 1_000_000])
def test_an_answer_of_no_use_is_one_line(small: SmallNode, body: str) -> None:
    with pytest.raises(MonitorError, match="the daemon node-7 gave no usable answer: "):
        _frame(small, _Daemon(body))


def test_the_scripts_divide_like_the_shell() -> None:
    figures = top_frame.script_figures(Reading(5000, 0, 0, capacity=1000))
    assert (figures["memory_available_in_bytes"], figures["memory_available_in_kb"]) == (-4000, -3)
    assert figures["memory_available_in_mb"] == 0


def test_growth_is_over_the_last_ten_seconds() -> None:
    trends = Trends()
    assert trends.growth(100.0, {"a": 50 * MI}) == {"a": None}, "of one look nothing is known"
    assert trends.growth(100.1, {"a": 90 * MI}) == {"a": None}, "nor of two that are too near"
    for second in range(1, 31):
        found = trends.growth(100.0 + second, {"a": 50 * MI + second * 2 * MI, "b": 5 * MI})
    assert found == {"a": pytest.approx(2 * MI), "b": 0}
    for second in range(31, 42):
        found = trends.growth(100.0 + second, {"a": 110 * MI})
    assert found == {"a": 0}, "b is gone"
