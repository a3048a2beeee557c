"""What no recorded case shows: clean-up and min reclaim, limits of local storage, odd taints and figures."""

from collections.abc import Sequence
from typing import Any

from monitor.policy.eviction_pass import PassConfig, State
from monitor.policy.kubelet_pass import MEMORY_TAINT, KubeletResult, kubelet_pass, tolerates
from monitor.policy.pods import Pod, Toleration
from monitor.policy.stats import PodStats, Summary
from monitor.policy.thresholds import parse_thresholds
from tests.policy.builders import GI, IMAGEFS, MI, pod, stats, summary

S = 10**9
EMPTY_DIR: dict[str, Any] = {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]}


def passed(policy: PassConfig, pods: Sequence[Pod], answer: dict[str, Any], **after: int) -> KubeletResult:
    """A pass on this answer; ``after`` is what a clean-up leaves."""
    left = Summary(summary(**after))
    return kubelet_pass(policy, State(), pods, lambda: Summary(answer), 0, lambda _: left)


def test_a_clean_up_must_clear_min_reclaim_too() -> None:
    policy = PassConfig(
        parse_thresholds({"nodefs.available": "10%"}, None, None, {"nodefs.available": "5Gi"}), 300 * S,
        local_storage=False,
    )  # fmt: skip
    short = summary(stats("a", MI), nodefs=0)
    evicted = [len(passed(policy, [pod("a")], short, nodefs=left).evictions) for left in (11 * GI, 15 * GI + 200)]
    assert evicted == [1, 0]


def test_where_there_is_nothing_to_clean_up_a_pod_goes_whatever_a_clean_up_leaves() -> None:
    policy = PassConfig(parse_thresholds({"nodefs.available": "10%"}), 300 * S, layout=IMAGEFS, local_storage=False)
    found = passed(policy, [pod("a")], summary(stats("a", MI), nodefs=0), nodefs=100 * GI)
    assert (found.reclaimed, found.summary_reads, len(found.evictions)) == ((), 1, 1)


def test_limits_of_local_storage_come_first_and_spare_critical_pods() -> None:
    pods = [pod("a", **EMPTY_DIR), pod("b"), pod("c", **EMPTY_DIR), pod("k", priority=2 * 10**9, **EMPTY_DIR)]
    figures = [stats(name, MI, volumes={"v": (2 * MI, 0)}) for name in "abck"]
    found = passed(
        PassConfig(parse_thresholds({"memory.available": "1Gi"}), 300 * S, local_storage=True), pods,
        summary(*figures, memory=0),
    )  # fmt: skip
    assert [one.pod.name for one in found.evictions] == ["a", "c"]
    assert {(one.grace_s, one.disrupted) for one in found.evictions} == {(1, False)}
    assert found.warning is None


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
