"""`outrace top` on real cgroups: its figures, where they come from, its options, and the live view on a terminal."""

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from monitor.actions.status import EvictedPod, StatusStore
from monitor.cli import top_frame, top_text
from monitor.kernel import cgroupfs, meminfo
from monitor.kernel.cgroupfs import MemoryReading
from monitor.pods.source import open_source
from monitor.policy.pods import pod_from_object
from monitor.policy.thresholds import kubelets
from monitor.settings.config import RunConfig
from monitor.settings.read import build
from monitor.side.endpoints import summary
from tests.pods.top_node import MI, common, top
from tests.pods.top_node import busy as busy
from tests.pods.top_node import folder as folder
from tests.pods.top_node import node as node
from tests.side.views import view as side_view


@pytest.mark.live
@pytest.mark.newest
@pytest.mark.usefixtures("busy")
def test_one_frame_of_a_small_node(folder: Path, tmp_path: Path, node: Path) -> None:
    hard = "memory.available<25%,nodefs.available<10%"
    done = top(*common(folder, tmp_path, node), "-o", "json", "--eviction-hard", hard)
    assert (done.returncode, done.stderr) == (0, "")
    frame = json.loads(done.stdout)
    assert frame["source"] == "cgroup files"
    assert frame["kubepods"] is None
    reading = frame["node"]
    assert (reading["cgroup"], reading["capacity"]) == (str(node), 128 * MI)
    assert reading["usage"] >= 8 * MI
    assert reading["working_set"] == reading["usage"] - reading["inactive_file"]
    assert reading["available"] == 128 * MI - reading["working_set"]
    [threshold] = frame["thresholds"]
    assert threshold == {
        "signal": "memory.available",
        "kind": "hard",
        "value": "25%",
        "quantity": 32 * MI,
        "available": reading["available"],
        "distance": reading["available"] - 32 * MI,
        "met": False,
        "compared": False,
    }
    cache = reading["inactive_file"] + reading["active_file"]
    assert frame["signals"]["memory.available"] == {"available": reading["available"], "capacity": 128 * MI}
    assert frame["signals"]["memory.reclaimable"]["available"] == 128 * MI - (reading["usage"] - cache)
    assert set(frame["signals"]) == {"memory.available", "memory.reclaimable", "memory.obtainable"}
    assert [p["name"] for p in frame["pods"]] == ["busy", "quiet"]  # the one over its request is first
    pod = frame["pods"][0]
    assert pod["working_set"] >= 8 * MI
    assert {k: pod[k] for k in ("namespace", "cgroup", "qos", "priority", "critical", "request")} == {
        "namespace": "default",
        "cgroup": f"{node}/busy",
        "qos": "Burstable",
        "priority": 5,
        "critical": False,
        "request": MI,
    }
    assert pod["over_request"] == pod["working_set"] - MI
    assert frame["memory_available_in_bytes"] == reading["available"]
    assert frame["memory_available_in_mb"] == reading["available"] // MI
    assert frame["memory_total_inactive_file"] == reading["inactive_file"]


def test_the_table_has_the_scripts_lines_and_problems_go_to_stderr(folder: Path, tmp_path: Path, node: Path) -> None:
    (folder / "bad.yaml").write_text("kind: Service")
    done = top(*common(folder, tmp_path, node), "--eviction-soft", "memory.available<100Gi")
    assert done.returncode == 0
    assert done.stderr.startswith(f"outrace: {folder}/bad.yaml: document 1: kind: not a v1 Pod")
    assert done.stderr.count("\n") == 1
    rows = [line.split() for line in done.stdout.splitlines()]
    values = {row[0]: row[1] for row in rows if row and row[0].startswith("memory.") and len(row) == 2}
    assert len(values) == 7
    assert int(values["memory.capacity_in_bytes"]) == 128 * MI
    (soft,) = (row for row in rows if "soft" in row)
    assert (soft[0], soft[-1]) == ("memory.available", "yes"), "100Gi of a node of 128 MiB"
    assert any(row[:1] == ["default/busy"] for row in rows)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--eviction-hard", "memory.free<1Mi"], "--eviction-hard: .*unsupported eviction signal memory.free"),
        (["--eviction-soft", "memory.available"], "--eviction-soft: malformed pair"),
        (["--node-cgroup", "../.."], "leads outside"),
        (["--pods", "kubelet:x"], "names no http or https URL"),
        (["--listen", "127.0.0.1:9469"], "No such option '--listen'"),
    ],
)
def test_bad_options_are_one_line_and_exit_code_2(arguments: list[str], expected: str) -> None:
    done = top("--once", *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert re.search(expected, done.stderr), done.stderr


# --- with a daemon -------------------------------------------------------------------------------------------------


class _Daemon:
    """Answers every path with one body, as `monitor.cli.daemons.Daemon` does."""

    def __init__(self, body: str) -> None:
        self.get = lambda _path: body

    def __str__(self) -> str:
        return "node-7"


def _frame(node: Path, folder: Path, tmp_path: Path, daemon: _Daemon | None, port: int = 9) -> dict[str, Any]:
    where = {"node_cgroup": str(node), "pods": f"manifests:{folder}", "state_dir": str(tmp_path / "state")}
    config = RunConfig(**where, listen_port=port)  # type: ignore[arg-type]
    source = open_source(config.pods, cgroupfs.detect(), meminfo.mem_total())
    try:
        return top_frame.Node(config, daemon).frame(source)  # type: ignore[arg-type]
    finally:
        source.close()


def _summary(node: Path, folder: Path) -> dict[str, Any]:
    """What the daemon's side answers for this node, made by its own code."""
    hierarchy = cgroupfs.detect()
    config = RunConfig(node_cgroup=str(node), pods=f"manifests:{folder}")
    view = side_view(config, hierarchy, cgroupfs.limit(node) or 0)
    source = open_source(config.pods, hierarchy, meminfo.mem_total())
    source.poll()
    view.pods = dict(source.pods)
    source.close()
    return summary(view)


def test_a_daemons_figures_are_used(folder: Path, tmp_path: Path, node: Path) -> None:
    served = _summary(node, folder)
    memory = served["node"]["memory"]
    memory.update(usageBytes=100 * MI, inactiveFileBytes=30 * MI, activeFileBytes=3 * MI)
    memory.update(workingSetBytes=70 * MI, availableBytes=58 * MI)
    served["node"]["systemContainers"] = [{"name": "pods", "memory": memory}]
    stranger = {"name": "x", "namespace": "ns", "uid": "not-ours"}
    served["pods"].append({"podRef": stranger, "memory": memory, "containers": []})
    frame = _frame(node, folder, tmp_path, _Daemon(json.dumps(served)))
    assert frame["source"] == "daemon node-7"
    expected = {
        "usage": 100 * MI,
        "inactive_file": 30 * MI,
        "active_file": 3 * MI,
        "working_set": 70 * MI,
        "capacity": 128 * MI,
        "available": 58 * MI,
    }
    assert {key: frame["node"][key] for key in ("cgroup", *expected)} == {"cgroup": str(node), **expected}
    assert {key: frame["kubepods"][key] for key in expected} == expected
    pods = {p["uid"]: p for p in frame["pods"]}
    assert len(pods) == 3
    assert (pods["not-ours"]["request"], pods["not-ours"]["over_request"]) == (None, None)
    assert {p["request"] for p in pods.values()} == {None, MI, 32 * MI}


@pytest.mark.parametrize("body", ["hello", "[]", "{}", "[" * 1_000_000])
def test_an_answer_of_no_use_is_one_line(folder: Path, tmp_path: Path, node: Path, body: str) -> None:
    frame = _frame(node, folder, tmp_path, _Daemon(body))
    assert frame["source"].startswith("cgroup files (the daemon node-7 gave no usable answer: ")
    assert len(frame["pods"]) == 2


def test_what_listens_on_the_port_is_not_asked(folder: Path, tmp_path: Path, node: Path) -> None:
    """Its answer was read whole, 300 MiB into 629 MiB: any user can listen on a TCP port while no daemon does."""
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        foreign.setblocking(False)
        assert _frame(node, folder, tmp_path, None, foreign.getsockname()[1])["source"] == "cgroup files"
        with pytest.raises(BlockingIOError):
            foreign.accept()


def test_evicted_pods_are_listed(folder: Path, tmp_path: Path, node: Path) -> None:
    pod = pod_from_object({"metadata": {"name": "gone", "namespace": "ns", "uid": "u-1"}})
    eviction = EvictedPod("e1", pod, "BestEffort", "The node was low on resource: memory. ", {}, 0.0, 1.0, "n")
    StatusStore(tmp_path / "state").write(eviction)
    done = top(*common(folder, tmp_path, node))
    assert "evicted ns/gone: The node was low on resource: memory." in done.stdout
    (tmp_path / "state/pods/odd.json").write_text("{}")
    done = top(*common(folder, tmp_path, node))
    assert done.returncode == 1
    assert "odd.json: not the status of an evicted pod; remove the file" in done.stderr


def test_the_scripts_divide_like_the_shell() -> None:
    figures = top_frame.script_figures(MemoryReading.of(5000, 0, 0, 1000))
    assert (figures["memory_available_in_bytes"], figures["memory_available_in_kb"]) == (-4000, -3)
    assert figures["memory_available_in_mb"] == 0


def test_where_only_a_kubelet_would_evict_it_is_shown() -> None:
    """By hand: 100 MiB in use, 70 of them active page cache, 20 of that dirty; lines at 10 MiB of 105."""
    config = build({"eviction-hard": "memory.reclaimable<10Mi,memory.obtainable<10Mi"})
    mine = [t for t in config.thresholds() if t.signal.startswith("memory.")]
    compared = [t for t in kubelets(mine) if t not in mine]
    left = {"memory.available": 5, "memory.reclaimable": 75, "memory.obtainable": 55}
    signals = {name: top_frame.Available(n * MI, 105 * MI) for name, n in left.items()}
    rows = top_frame._distances([*compared, *mine], signals, compared)
    assert [(r["signal"], r["met"], r["compared"]) for r in rows] == [
        ("memory.available", True, True),
        ("memory.reclaimable", False, False),
        ("memory.obtainable", False, False),
    ]
    (said,) = top_text._compared(rows)
    assert said == (
        "a kubelet would evict now (memory.available); nothing is wrong: available are 75.0Mi by memory.reclaimable, "
        "55.0Mi by memory.obtainable"
    )
    rows[1]["met"] = True
    assert list(top_text._compared(rows)) == [], "something is short"
