"""Limits and swap in `outrace top`: as JSON from real cgroups, and the columns that appear where somebody has one."""

import json
import os
from pathlib import Path

import pytest

from monitor.cli.top_frame import limit_fields, pod_fields
from monitor.cli.top_text import lines
from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.limits import Limits
from monitor.lab.node import LabNode
from tests.cli.called import called
from tests.limited import MIB, limit, write
from tests.pods import top_frames

NOTHING: dict[str, int | str] = {"memory.min": 0, "memory.low": 0, "memory.high": "max", "memory.max": "max"}


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
    # On a terminal: the columns there are, by the version of this machine.
    text = "\n".join(lines(found))
    (header,) = (line.split() for line in text.splitlines() if line.startswith("POD "))
    columns = ["SOFT", "SWAP_MAX"] if cgroupfs.detect().version == 1 else ["MIN", "LOW", "HIGH", "SWAP_MAX"]
    if whole.swap_max is None:
        columns.pop()
    assert header[-len(columns) - 1 :] == ["AVAILABLE", *columns]
    assert "lab/limited/c1 " in text
    assert "lab/limited/c0 " not in text


# -- what is shown of files --------------------------------------------------------------------------------------------

FIGURES = dict.fromkeys(
    ("usage", "active_file", "inactive_file", "working_set", "capacity", "available", "request", "over_request"), 0
)


def shown(root: Path, *pods: dict[str, int | str], container: dict[str, int | str] = NOTHING) -> str:
    """The table of a v2 node with these pods, p0 and so on; the first has one container."""
    hierarchy = Hierarchy(2, root)
    rows = []
    for i, files in enumerate(pods):
        path = write(root / f"p{i}", {**NOTHING, **files})
        containers = {} if i else {"c0": write(path / "c0", {**NOTHING, **container})}
        who = {"namespace": "ns", "name": f"p{i}", "qos": "Burstable", "priority": 0}
        rows.append({**who, **FIGURES, **pod_fields(hierarchy, str(path), containers)})
    node = {**FIGURES, **limit_fields(hierarchy, write(root / "node", {"memory.max": MIB}))}
    kubepods = {**FIGURES, **limit_fields(hierarchy, write(root / "kubepods", {"memory.min": 2 * MIB}))}
    return "\n".join(lines(top_frames.frame(rows, node=node, kubepods=kubepods)))


def header(text: str, first: str) -> list[str]:
    """The columns behind those that are always there."""
    row = next(line.split() for line in text.splitlines() if line.startswith(f"{first} "))
    always = max((row.index(name) for name in ("AVAILABLE", "OBTAINABLE") if name in row), default=0)
    return row[always + 1 :]


def test_nothing_is_added_where_nobody_uses_them(tmp_path: Path) -> None:
    text = shown(tmp_path, {"memory.max": MIB}, {"memory.swap.max": 0, "memory.swap.current": 0}, container={})
    assert header(text, "POD") == []
    assert "CONTAINER" not in text
    assert header(text, "DOMAIN") == ["MIN"]  # kubepods has one


def test_a_column_appears_for_whoever_has_one(tmp_path: Path) -> None:
    text = shown(tmp_path, {"memory.high": 3 * MIB}, {"memory.swap.current": 5 * MIB, "memory.swap.max": 0})
    assert header(text, "POD") == ["HIGH", "SWAP", "SWAP_MAX"]
    rows = {line.split()[0]: line.split()[-3:] for line in text.splitlines() if line.startswith("ns/")}
    assert rows == {"ns/p0": ["3.0Mi", "-", "-"], "ns/p1": ["-", "5.0Mi", "0"]}


def test_a_limit_of_a_container_alone_is_shown(tmp_path: Path) -> None:
    """Where the kubelet sets memory.high."""
    text = shown(tmp_path, {}, {}, container={"memory.high": 3 * MIB, "memory.max": 4 * MIB})
    assert (header(text, "POD"), header(text, "CONTAINER")) == ([], ["HIGH", "MAX"])
    assert next(line.split() for line in text.splitlines() if line.startswith("ns/p0/c0")) == [
        "ns/p0/c0",
        "3.0Mi",
        "4.0Mi",
    ]


def test_of_a_pod_known_to_the_daemon_alone_nothing_is_shown(tmp_path: Path) -> None:
    nothing = {"swap": None, "limits": Limits().named(), "oom_group": None}
    assert pod_fields(Hierarchy(2, tmp_path), None, {}) == {**nothing, "containers": {}}
    assert limit_fields(Hierarchy(2, tmp_path), tmp_path / "gone") == nothing
