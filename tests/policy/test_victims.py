"""The order of eviction for every signal and layout of disks."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.errors import PolicyError
from monitor.policy.layout import SINGLE_DISK, DiskLayout
from monitor.policy.pods import Pod
from monitor.policy.signals import SIGNALS
from monitor.policy.stats import PodStats
from monitor.policy.victims import first_victims, rank_pods
from tests.policy.builders import IMAGEFS, SPLIT, crowds

LAYOUTS = (SINGLE_DISK, IMAGEFS, SPLIT, DiskLayout(False, True))


def test_odd_figures_are_read_as_carefully_as_the_usual_ones() -> None:
    """Numbers beyond 63 bits wrap, what is missing counts nothing, the first figures of a volume are its own."""
    usual = {"name": "a", "rootfs": {"usedBytes": 5}, "logs": {"usedBytes": 7, "inodesUsed": None}}
    wrapped = {"name": "b", "rootfs": {"usedBytes": 2**64 - 2}, "logs": None}
    volumes = [{"name": "v"}, {"name": "v", "usedBytes": 9}, {"name": "w", "usedBytes": 2**63}]
    own = PodStats({"containers": [usual, wrapped, {}], "volume": volumes})
    assert own.files_each(("rootfs", "logs"), "usedBytes") == [12, -2, 0]
    assert (own.files(("rootfs", "logs"), "usedBytes"), own.files(("logs",), "inodesUsed")) == (10, 0)
    assert own.volumes(["v", "w", "x"], "usedBytes") == -(2**63)
    assert own.volumes_used() == {"v": 9, "w": -(2**63)}
    assert PodStats({}).files(("rootfs",), "usedBytes") == PodStats({"containers": None}).volumes(["v"], "x") == 0
    for broken in ({}, "abc", 5, [5], [{"rootfs": []}], [{"rootfs": {"usedBytes": True}}]):
        with pytest.raises(PolicyError, match="must be a"):
            PodStats({"containers": broken}).files(("rootfs",), "usedBytes")


@given(crowds(), st.sampled_from(SIGNALS), st.sampled_from(LAYOUTS), st.booleans())
def test_a_pass_looks_at_the_order_as_far_as_the_first_pod_it_may_evict(
    crowd: tuple[list[Pod], list[dict[str, Any]]], signal: str, layout: DiskLayout, pod_level: bool
) -> None:
    pods, figures = crowd
    known = {one.uid: one for one in map(PodStats, figures)}
    order = [one.candidate for one in rank_pods(signal, pods, known, layout, pod_level)]
    willing = [i for i, one in enumerate(order) if not one.critical]
    assert first_victims(signal, pods, known, layout, pod_level) == order[: willing[0] + 1 if willing else len(order)]
