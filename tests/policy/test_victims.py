"""The figures of pods that pods are ranked by."""

import pytest

from monitor.policy.errors import PolicyError
from monitor.policy.stats import PodStats


def test_odd_figures_are_read_as_carefully_as_the_usual_ones() -> None:
    """Numbers beyond 63 bits wrap, what is missing counts nothing, the first figures of a volume are its own."""
    usual = {"name": "a", "rootfs": {"usedBytes": 5}, "logs": {"usedBytes": 7, "inodesUsed": None}}
    wrapped = {"name": "b", "rootfs": {"usedBytes": 2**64 - 2}, "logs": None}
    volumes = [{"name": "v"}, {"name": "v", "usedBytes": 9}, {"name": "w", "usedBytes": 2**63}]
    own = PodStats({"containers": [usual, wrapped, {}], "volume": volumes})
    assert own.files_each(("rootfs", "logs"), "usedBytes") == [("a", 12), ("b", -2), ("", 0)]
    assert (own.files(("rootfs", "logs"), "usedBytes"), own.files(("logs",), "inodesUsed")) == (10, 0)
    assert own.volumes(["v", "w", "x"], "usedBytes") == -(2**63)
    assert own.volumes_used() == {"v": 9, "w": -(2**63)}
    assert PodStats({}).files(("rootfs",), "usedBytes") == PodStats({"containers": None}).volumes(["v"], "x") == 0
    for broken in ({}, "abc", 5, [5], [{"rootfs": []}], [{"rootfs": {"usedBytes": True}}]):
        with pytest.raises(PolicyError, match="must be a"):
            PodStats({"containers": broken}).files(("rootfs",), "usedBytes")
