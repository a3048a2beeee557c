"""Reading the stats of a node and its pods."""

from monitor.policy.kubelet_pass import MEMORY_TAINT, tolerates
from monitor.policy.pods import Toleration
from monitor.policy.stats import PodStats


def test_an_operator_that_is_not_known_covers_no_taint() -> None:
    operators = {op: tolerates(Toleration(key=MEMORY_TAINT, operator=op), MEMORY_TAINT) for op in ("", "Equal", "Lt")}
    assert operators == {"": True, "Equal": True, "Lt": False}


def test_odd_figures_are_read_as_carefully_as_the_usual_ones() -> None:
    """Numbers beyond 63 bits wrap, what is missing counts nothing, the first figures of a volume are its own."""
    usual = {"name": "a", "rootfs": {"usedBytes": 5}, "logs": {"usedBytes": 7, "inodesUsed": None}}
    wrapped = {"name": "b", "rootfs": {"usedBytes": 2**64 - 2}, "logs": None}
    volumes = [{"name": "v"}, {"name": "v", "usedBytes": 9}, {"name": "w", "usedBytes": 2**63}]
    own = PodStats({"containers": [usual, wrapped, {}], "volume": volumes})
    assert own.files_each(("rootfs", "logs"), "usedBytes") == [("a", 12), ("b", -2), ("", 0)]
    assert own.files_each(("logs",), "inodesUsed") == [("a", 0), ("b", 0), ("", 0)]
    assert own.volumes(["v", "w", "x"], "usedBytes") == -(2**63)
    assert own.volumes_used() == {"v": 9, "w": -(2**63)}
    assert PodStats({"containers": None}).files_each(("rootfs",), "usedBytes") == []
    assert PodStats({}).volumes(["v"], "x") == 0
