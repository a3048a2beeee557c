"""The order of eviction for every signal and layout of disks."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.errors import PolicyError
from monitor.policy.layout import SINGLE_DISK, DiskLayout, measured
from monitor.policy.pods import Pod
from monitor.policy.resources import pod_request
from monitor.policy.signals import MEMORY_SIGNALS, PID, RESOURCE, SIGNALS
from monitor.policy.stats import PodStats
from monitor.policy.victims import DECIDING, disk_usage, first_victims, rank_pods, tie_groups
from tests.policy.builders import container, pod, stats
from tests.policy.test_kubelet_pass import IMAGEFS, SPLIT, crowds

LAYOUTS = (SINGLE_DISK, IMAGEFS, SPLIT, DiskLayout(False, True))


def order(signal: str, pods: list[Pod], figures: list[dict[str, Any]], layout: DiskLayout = SINGLE_DISK) -> str:
    """The names in order, groups of equal pods in brackets."""
    known = {one.uid: one for one in map(PodStats, figures)}
    groups = tie_groups(rank_pods(signal, pods, known, layout))
    return " ".join(g[0].pod.name if len(g) == 1 else f"[{''.join(r.pod.name for r in g)}]" for g in groups)


def test_process_ids_go_by_priority_then_count() -> None:
    pods = [pod("a", priority=5), pod("b"), pod("c", priority=0), pod("d", priority=0), pod("e", priority=-1)]
    figures = [stats("a", processes=1000), stats("b", processes=3), stats("c", processes=4), stats("e", processes=1)]
    assert order(PID, pods, figures) == "e d c b a"  # d has no stats
    assert order(PID, pods[:2], [stats("a"), stats("b")]) == "b a"


def test_inodes_are_held_against_the_request_for_bytes() -> None:
    """Any use of inodes is above a request for inodes nobody makes; the excess is a count less bytes."""
    pods = [pod("a", container(ephemeral_storage="1Gi")), pod("b", container(ephemeral_storage="2Gi")), pod("c")]
    figures = [stats(name, rootfs=(0, used)) for name, used in (("a", 10), ("b", 10**6), ("c", 0))]
    assert order("nodefs.inodesFree", pods, figures) == "a b c"


@pytest.mark.parametrize(
    ("layout", "nodefs", "imagefs", "containerfs"),
    [
        (SINGLE_DISK, 1 + 2 + 4, 1 + 2 + 4, 1 + 2 + 4),
        (DiskLayout(False, True), 1 + 2 + 4, 1 + 2 + 4, 1 + 2 + 4),
        (IMAGEFS, 2 + 4, 1, 1),
        (SPLIT, 1 + 2 + 4, 0, 1 + 2 + 4),
    ],
)
def test_what_counts_as_usage(layout: DiskLayout, nodefs: int, imagefs: int, containerfs: int) -> None:
    volumes = [
        {"name": "v", "hostPath": {"path": "/x"}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "secret", "secret": {"secretName": "x"}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "x"}},
    ]
    one = pod("a", volumes=volumes)
    own = PodStats(
        stats(
            "a",
            rootfs=(1, 10),
            logs=(2, 20),
            volumes={"v": (4, 40), "memory": (8, 80), "secret": (16, 160), "claim": (32, 320)},
        )
    )
    for fs, used in (("nodefs", nodefs), ("imagefs", imagefs), ("containerfs", containerfs)):
        assert disk_usage(one, own, f"{fs}.available", layout) == used
        assert disk_usage(one, own, f"{fs}.inodesFree", layout) == 10 * used


@pytest.mark.parametrize(
    ("source", "local"),
    [
        ({"hostPath": {"path": "/"}}, True),
        ({"emptyDir": {}}, True),
        ({"emptyDir": {"medium": ""}}, True),
        ({"emptyDir": {"medium": "Memory"}}, False),
        ({"emptyDir": {"medium": "HugePages"}}, False),
        ({"emptyDir": None, "configMap": {"name": "x"}}, True),
        ({"gitRepo": {"repository": "x"}}, True),
        ({"secret": {}}, False),
        ({"downwardAPI": {}}, False),
        ({"projected": {}}, False),
        ({}, False),
    ],
)
def test_which_volumes_are_local(source: dict[str, Any], local: bool) -> None:
    (volume,) = pod("a", volumes=[{"name": "v", **source}]).volumes
    assert volume.local is local


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


def compare(a: Pod, b: Pod, known: dict[str, PodStats], signal: str, layout: DiskLayout) -> int:
    """The rules one after the other as the specification has them; negative: ``a`` first, 0: left to chance."""
    mine, theirs = known.get(a.uid), known.get(b.uid)
    priority = (a.priority or 0) - (b.priority or 0)
    missing = (mine is not None) - (theirs is not None)
    if signal == PID:
        if priority or missing or mine is None or theirs is None:
            return priority or missing
        return theirs.processes() - mine.processes()
    if missing:
        return missing
    if mine is None or theirs is None:
        return priority

    def used(one: Pod, own: PodStats) -> int:
        return own.memory() or 0 if signal in MEMORY_SIGNALS else disk_usage(one, own, signal, layout)

    def asked(one: Pod, resource: str) -> Fraction:
        return Fraction(pod_request(one, resource).nanos, 10**9)

    starved = RESOURCE[signal]
    over = (used(b, theirs) > asked(b, starved)) - (used(a, mine) > asked(a, starved))
    against = "memory" if signal in MEMORY_SIGNALS else "ephemeral-storage"
    excess = (used(b, theirs) - asked(b, against)) - (used(a, mine) - asked(a, against))
    return over or priority or (excess > 0) - (excess < 0)


@given(crowds(), st.sampled_from(SIGNALS), st.sampled_from(LAYOUTS))
def test_ranking_is_a_total_preorder_and_that_of_the_rules(
    crowd: tuple[list[Pod], list[dict[str, Any]]], signal: str, layout: DiskLayout
) -> None:
    pods, figures = crowd
    known = {one.uid: one for one in map(PodStats, figures)}
    ranked = rank_pods(signal, pods, known, layout)
    assert sorted(r.pod.uid for r in ranked) == sorted(p.uid for p in pods)
    for i, first in enumerate(ranked):
        for second in ranked[i + 1 :]:
            verdict = compare(first.pod, second.pod, known, signal, layout)
            assert verdict <= 0
            assert (verdict == 0) == (first.key[:DECIDING] == second.key[:DECIDING])
            assert compare(second.pod, first.pod, known, signal, layout) == -verdict
    assert [r.key for r in ranked] == [r.key for r in rank_pods(signal, pods[::-1], known, layout)]


@given(crowds(), st.sampled_from(SIGNALS), st.sampled_from(LAYOUTS), st.booleans())
def test_a_pass_looks_at_the_order_as_far_as_the_first_pod_it_may_evict(
    crowd: tuple[list[Pod], list[dict[str, Any]]], signal: str, layout: DiskLayout, pod_level: bool
) -> None:
    pods, figures = crowd
    known = {one.uid: one for one in map(PodStats, figures)}
    order = [one.candidate for one in rank_pods(signal, pods, known, layout, pod_level)]
    willing = [i for i, one in enumerate(order) if not one.critical]
    assert first_victims(signal, pods, known, layout, pod_level) == order[: willing[0] + 1 if willing else len(order)]


@given(crowds(), st.sampled_from([s for s in SIGNALS if "fs" in s]), st.sampled_from(LAYOUTS))
def test_every_part_of_the_usage_is_measured_somewhere(
    crowd: tuple[list[Pod], list[dict[str, Any]]], signal: str, layout: DiskLayout
) -> None:
    """Usage falls when a part is no longer measured, and is zero when none is."""
    pods, figures = crowd
    known = {one.uid: one for one in map(PodStats, figures)}
    for one in pods:
        own = known.get(one.uid)
        if own is None:
            continue
        whole = disk_usage(one, own, signal, SINGLE_DISK)
        part = disk_usage(one, own, signal, layout)
        assert 0 <= part <= whole
        if not measured(signal, layout):
            assert part == 0
