"""Metrics about limits and swap, on trees of cgroup v2 files: this machine may have neither v2 nor swap."""

from pathlib import Path

import pytest

from monitor.kernel import meminfo
from monitor.kernel.cgroupfs import Hierarchy
from monitor.pods.model import FoundPod
from monitor.policy.pods import pod_from_object
from monitor.settings.config import RunConfig
from monitor.side.export.metrics import limit_metrics
from monitor.side.node_state import NodeState
from tests.limited import MIB, write
from tests.side.parts import Parts

Samples = dict[tuple[str, tuple[str, ...]], float]


def view_of(root: Path, node: str = "") -> NodeState:
    return Parts(RunConfig(node_cgroup=node or None), Hierarchy(2, root), 512 * MIB).node


def found(name: str, cgroup: Path, uid: str = "") -> FoundPod:
    return FoundPod(pod_from_object({"metadata": {"name": name, "namespace": "ns", "uid": uid or name}}), cgroup, {})


def samples(view: NodeState) -> Samples:
    """(name without prefix and unit, values of the labels) -> value."""
    rows = [s for family in limit_metrics(view) for s in family.samples]
    keys = [(s.name.removeprefix("outrace_").removesuffix("_bytes"), tuple(s.labels.values())) for s in rows]
    assert len(keys) == len(set(keys)), "a series that appears twice makes the whole scrape invalid"
    return {key: s.value for key, s in zip(keys, rows, strict=True)}


@pytest.fixture
def swap(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    values = {"MemTotal": 16 << 30, "SwapTotal": 64 * MIB, "SwapFree": 60 * MIB}
    monkeypatch.setattr(meminfo, "read", lambda: values)
    return values


def test_what_is_set_is_there_and_nothing_else(tmp_path: Path, swap: dict[str, int]) -> None:
    kubepods = write(tmp_path / "kubepods", {"memory.max": 400 * MIB, "memory.min": MIB, "memory.swap.current": 3})
    limited = {"memory.min": 0, "memory.low": 8, "memory.high": 7, "memory.max": 9, "memory.swap.max": 0}
    view = view_of(tmp_path)
    view.kubepods = kubepods
    view.pods = {
        "gone": found("gone", kubepods / "gone"),
        "a": found("a", write(kubepods / "a", {**limited, "memory.swap.current": 2})),
        "b": found("b", write(kubepods / "b", {"memory.max": "max", "memory.oom.group": 1, "memory.swap.current": 0})),
    }
    assert samples(view) == {
        ("memory_swap", ("node",)): 4 * MIB,
        ("memory_swap", ("kubepods",)): 3,
        ("memory_limit", ("kubepods", "min")): MIB,
        ("memory_limit", ("kubepods", "max")): 400 * MIB,
        ("pod_memory_swap", ("ns", "a")): 2,
        ("pod_memory_swap", ("ns", "b")): 0,
        ("pod_memory_limit", ("ns", "a", "low")): 8,
        ("pod_memory_limit", ("ns", "a", "high")): 7,
        ("pod_memory_limit", ("ns", "a", "max")): 9,
        ("pod_memory_limit", ("ns", "a", "swap_max")): 0,
    }


def test_a_cgroup_as_the_node_on_a_machine_without_swap(tmp_path: Path, swap: dict[str, int]) -> None:
    swap["SwapTotal"] = 0
    node = write(tmp_path / "node", {"memory.high": 5, "memory.swap.current": 0})
    assert samples(view_of(tmp_path, str(node))) == {("memory_limit", ("node", "high")): 5}


def test_of_two_pods_with_one_name_the_older_is_shown_with_its_uid(tmp_path: Path, swap: dict[str, int]) -> None:
    view = view_of(tmp_path)
    view.pods = {
        uid: found("a", write(tmp_path / uid, {"memory.max": size}), uid) for uid, size in (("old", 1), ("young", 2))
    }
    shown = samples(view)
    assert shown["pod_memory_limit", ("ns", "a", "max")] == 2
    assert shown["pod_memory_limit", ("ns", "a~old", "max")] == 1, "never one lost"
