"""Reading the stats of a node and its pods."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.errors import PolicyError
from monitor.policy.kubelet_pass import MEMORY_TAINT, tolerates
from monitor.policy.pods import Toleration, pod_from_object
from monitor.policy.stats import PodStats, Summary
from tests.policy.builders import stats


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
    assert (own.files(("rootfs", "logs"), "usedBytes"), own.files(("logs",), "inodesUsed")) == (10, 0)
    assert own.volumes(["v", "w", "x"], "usedBytes") == -(2**63)
    assert own.volumes_used() == {"v": 9, "w": -(2**63)}
    assert PodStats({}).files(("rootfs",), "usedBytes") == PodStats({"containers": None}).volumes(["v"], "x") == 0
    for broken in ({}, "abc", 5, [5], [{"rootfs": []}], [{"rootfs": {"usedBytes": True}}]):
        with pytest.raises(PolicyError, match="must be a"):
            PodStats({"containers": broken}).files(("rootfs",), "usedBytes")
