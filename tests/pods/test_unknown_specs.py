"""Pods known by their cgroups alone: what is not known is never taken for 0, and a static pod is critical."""

import dataclasses
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.kernel import cgroupfs
from monitor.pods.model import FoundPod, Within
from monitor.pods.tree import TreeSource
from monitor.policy.layout import SINGLE_DISK
from monitor.policy.pods import Pod, pod_from_object
from monitor.policy.ranking import candidate, memory_key
from monitor.policy.releases import ERAS, era
from monitor.policy.resources import pod_request
from monitor.policy.signals import MEMORY, PID
from monitor.policy.stats import PodStats
from monitor.policy.victims import rank_pods
from monitor.side.pod_watch import pod_message
from tests.pods.test_cgroup_tree import UID
from tests.pods.unit_tree import Machine

STATIC = "e228a63249ca746e753e7532f763b21a"


def only(machine: Machine) -> FoundPod:
    """The one pod that a new look finds."""
    with closing(TreeSource(Within(machine.hierarchy, machine.path))) as source:
        [found] = source.poll().updated
        return found


def critical(found: FoundPod) -> bool:
    """What the hot process is sent; the same by the policy of every era."""
    known = {bool(pod_message(found, era(name)).critical) for name in ERAS}
    assert len(known) == 1
    return known.pop()


@pytest.mark.live
@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (f"burstable/pod{UID}", False),
        # The uid of a static pod is the hash of its configuration, not one of the API server's.
        *((f"besteffort/pod{uid}", True) for uid in (STATIC, "abc", f"{UID}0", UID[1:])),
    ],
)
def test_who_is_critical(machine: Machine, place: str, expected: bool) -> None:
    cgroupfs.make(machine.path / "kubepods" / place / "main")
    found = only(machine)
    assert critical(found) == expected
    message = pod_message(found)
    assert (message.priority, message.spec_known, message.request) == (None, False, 0)


def pod(name: str, known: bool, priority: int | None) -> Pod:
    found = pod_from_object({"metadata": {"name": name, "uid": name}, "spec": {"priority": priority, "containers": []}})
    return dataclasses.replace(found, spec_known=known)


@given(st.integers(-(2**31), 10**9), st.sampled_from([MEMORY, PID, "nodefs.available"]))
def test_an_unknown_priority_ranks_behind_every_known_one(priority: int, signal: str) -> None:
    """It was taken for 0, before every pod of a positive priority."""
    pods = [pod("a-unknown", False, None), pod("known", True, priority)]
    for rules in (era("kubelet-1.36"), era("kubelet-1.17")):
        figures = {p.uid: PodStats({"memory": {"workingSetBytes": 7}}) for p in pods}
        order = rank_pods(signal, pods, figures, SINGLE_DISK, rules)
        assert [one.pod.name for one in order] == ["known", "a-unknown"]
    candidates = [candidate(one, pod_request(one, "memory"), 7) for one in pods]
    assert [c.name for c in sorted(candidates, key=memory_key)] == ["known", "a-unknown"]
    assert [c.priority for c in candidates] == [None, priority]
