"""The node seen from outside: admission, taints, reservations, the kernel notification, and reading its stats."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.admission import MEMORY_TAINT, admit, tolerates
from monitor.policy.conformance.steps import notification
from monitor.policy.errors import PolicyError
from monitor.policy.pods import Toleration, pod_from_object
from monitor.policy.quantity import Quantity
from monitor.policy.reservation import reserve
from monitor.policy.signals import SIGNALS, Observation
from monitor.policy.stats import Memory, PodStats, Summary
from monitor.policy.thresholds import parse_thresholds
from tests.policy.builders import container, pod, stats, summary

MEMORY, DISK, PIDS = "MemoryPressure", "DiskPressure", "PIDPressure"
TAINT = "node.kubernetes.io/memory-pressure"


@pytest.mark.parametrize(
    ("conditions", "best_effort", "burstable", "tolerating", "critical"),
    [
        ([], True, True, True, True),
        ([MEMORY], False, True, True, True),
        ([DISK], False, False, False, True),
        ([PIDS], False, False, False, True),
        ([MEMORY, DISK], False, False, False, True),
    ],
)
def test_who_is_admitted(
    conditions: list[str], best_effort: bool, burstable: bool, tolerating: bool, critical: bool
) -> None:
    everything = [{"operator": "Exists"}]
    pods = [pod("a"), pod("b", container(memory="1")), pod("c", tolerations=everything), pod("d", priority=2 * 10**9)]
    answers = [admit(one, conditions) for one in pods]
    assert [answer.admitted for answer in answers] == [best_effort, burstable, tolerating, critical]
    for answer in answers:
        assert (answer.reason == "Evicted") is not answer.admitted


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        (Toleration(), True),
        (Toleration(key=TAINT), True),
        (Toleration(key=TAINT, operator="Exists", value="x"), True),
        (Toleration(key=TAINT, operator="Equal", value="x"), False),
        (Toleration(key=TAINT, operator="Equal", effect="NoSchedule"), True),
        (Toleration(key=TAINT, operator="Exists", effect="NoExecute"), False),
        (Toleration(key="node.kubernetes.io/disk-pressure", operator="Exists"), False),
        (Toleration(key=TAINT, operator="Lt"), False),
    ],
)
def test_tolerations(toleration: Toleration, covers: bool) -> None:
    assert tolerates(toleration, MEMORY_TAINT) is covers


# ---- reservations


def amounts(**texts: str) -> dict[str, Quantity]:
    return {name.replace("_", "-"): Quantity.parse(text) for name, text in texts.items()}


def test_ninety_five_percent_of_ten_gibibytes() -> None:
    """The example of the guides: keep 1Gi for the system and evict at 95 % use, so reserve 1.5Gi and evict at 500Mi."""
    capacity = amounts(memory="10Gi")
    hard = parse_thresholds({"memory.available": "500Mi"})
    kept = reserve(capacity, amounts(memory="1536Mi"), {}, hard)
    assert (str(kept.pods_limit["memory"]), str(kept.reserved["memory"])) == ("8704Mi", "2036Mi")
    assert str(capacity["memory"] - kept.reserved["memory"]) == "8204Mi"
    assert kept.exceeded == ()
    # 95 % of 10Gi in use leaves 512Mi: not yet met; 500Mi and a byte less is.
    assert not hard[0].met(512 * 2**20, 10 * 2**30)
    assert hard[0].met(500 * 2**20 - 1, 10 * 2**30)


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100), st.integers(1, 100))
def test_reservations_add_up(total: int, system: int, kube: int, evicted_for: int) -> None:
    def memory(n: int) -> dict[str, Quantity]:
        return {"memory": Quantity.of_bytes(n)}

    kept = reserve(
        memory(total), memory(system), memory(kube), parse_thresholds({"memory.available": str(evicted_for)})
    )
    assert kept.pods_limit["memory"].value == max(0, total - system - kube)
    assert kept.reserved["memory"].value == system + kube + evicted_for
    assert bool(kept.exceeded) == (system + kube + evicted_for > total)


# ---- the kernel notification


def test_where_a_notification_is_armed() -> None:
    hard, allocatable = parse_thresholds({"memory.available": "100"}, enforce_node_allocatable=["pods"])
    found = notification(hard, Memory(available=400, working_set=600, usage=650, stamp_ns=0))
    assert found == ("hard memory eviction threshold", "memory.usage_in_bytes", 950)
    assert notification(allocatable, Memory(400, 600, 650, 0)).description == (
        "hard allocatable memory eviction threshold"
    )
    (soft,) = parse_thresholds(None, {"memory.available": "1500m"}, {"memory.available": "1s"})
    assert notification(soft, Memory(400, 600, 600, 0)).usage == 999  # of 998.5 and up
    for incomplete in (None, Memory(None, 1, 1, 0), Memory(1, None, 1, 0), Memory(1, 1, None, 0)):
        assert notification(soft, incomplete) == ("soft memory eviction threshold", "memory.usage_in_bytes", None)


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_notification_fires_where_the_threshold_is_met(
    value: int, available: int, working_set: int, inactive: int
) -> None:
    """With the cache as it is, using up to the armed level leaves exactly the threshold's value."""
    (hard,) = parse_thresholds({"memory.available": str(value)})
    armed = notification(hard, Memory(available, working_set, working_set + inactive, 0)).usage
    assert armed is not None
    capacity = available + working_set
    left = capacity - (armed - inactive)
    assert not hard.met(left, capacity)
    assert hard.met(left - 1, capacity)


# ---- reading the stats


def test_every_signal_is_observed() -> None:
    figures = {"memory": 1, "kubepods": 2, "nodefs": 3, "nodefs_inodes": 4, "imagefs": 5, "imagefs_inodes": 6}
    found = Summary(summary(second=5, pids=-7, containerfs=8, containerfs_inodes=9, **figures)).observations
    assert {signal: seen.available for signal, seen in found.items()} == dict(
        zip(SIGNALS, (1, 2, 3, 4, 5, 6, 8, 9, -7), strict=True)
    )
    stamp = int(datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC).timestamp()) * 10**9
    assert {seen.stamp_ns for seen in found.values()} == {stamp}
    assert found["memory.available"].capacity == 16 * 2**30
    assert found["pid.available"] == Observation(-7, 32768, stamp)


def test_pods_are_found_by_uid_or_by_name() -> None:
    found = Summary({"pods": [stats("a"), {"podRef": {"name": "b", "namespace": "ns"}}]}).pods
    nameless = {"metadata": {"name": "b", "namespace": "ns"}, "spec": {"containers": []}}
    assert found.keys() == {"uid-a", pod_from_object(nameless).uid}


@given(st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)), st.integers(-14 * 60, 14 * 60))
def test_times_are_read_to_the_nanosecond(when: datetime, zone: int) -> None:
    sign = "-" if zone < 0 else "+"
    text = f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond:06d}789{sign}{abs(zone) // 60:02d}:{abs(zone) % 60:02d}"
    seconds = (when.replace(microsecond=0, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    answer = {"node": {"memory": {"availableBytes": 1, "workingSetBytes": 1, "time": text}}}
    stamp = Summary(answer).observations["memory.available"].stamp_ns
    assert stamp == (int(seconds) - zone * 60) * 10**9 + when.microsecond * 1000 + 789


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ([], "summary: must be a map"),
        ({"node": 5}, r"summary\.node: must be a map"),
        ({"node": {"memory": {"availableBytes": "5"}}}, "availableBytes: must be a whole number"),
        ({"node": {"fs": {"availableBytes": True}}}, "availableBytes: must be a whole number"),
        ({"node": {"memory": {"availableBytes": 1, "workingSetBytes": 1, "time": "now"}}}, r"time: .* not 'now'"),
        ({"pods": {}}, r"pods: must be a list of maps"),
        ({"pods": [5]}, r"pods: must be a list of maps"),
    ],
)
def test_wrong_figures_are_named(answer: Any, complaint: str) -> None:
    with pytest.raises(PolicyError, match=complaint):
        Summary(answer)


def test_wrong_figures_of_a_pod_are_named_when_they_are_needed() -> None:
    own = PodStats({"memory": {"workingSetBytes": 1.5}, "containers": [{"rootfs": 3}, {"logs": {"usedBytes": "x"}}]})
    with pytest.raises(PolicyError, match="workingSetBytes: must be a whole number"):
        own.memory()
    for kinds in (["rootfs"], ["logs"]):
        with pytest.raises(PolicyError, match="must be a"):
            own.files_each(kinds, "usedBytes")
