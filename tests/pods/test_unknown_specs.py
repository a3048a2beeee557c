"""Pods known by their cgroups alone: what is not known is never taken for 0, and a static pod is critical."""

import dataclasses
import os
import select
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.kernel import cgroupfs
from monitor.pods.model import FoundPod, Within
from monitor.pods.tree import TreeSource
from monitor.policy.layout import SINGLE_DISK
from monitor.policy.pods import Pod, pod_from_object
from monitor.policy.qos import oom_score_adj
from monitor.policy.ranking import candidate, memory_key
from monitor.policy.releases import ERAS, era
from monitor.policy.resources import pod_request
from monitor.policy.signals import MEMORY, PID
from monitor.policy.stats import PodStats
from monitor.policy.victims import rank_pods
from monitor.side.pod_watch import pod_message
from tests.pods.test_cgroup_tree import CID, UID
from tests.pods.unit_tree import Tree
from tests.pods.unit_tree import tree as tree
from tests.puppet import TIMEOUT_S

GI = 1 << 30
STATIC = "e228a63249ca746e753e7532f763b21a"

Start = Callable[..., int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process in a cgroup with this oom_score_adj (500: any may have that)."""
    running: list[subprocess.Popen[bytes]] = []

    def run(cgroup: Path, adj: int = 500) -> int:
        script = f"echo {adj} > /proc/$$/oom_score_adj; echo $$ > {cgroup}/cgroup.procs; echo; read line"
        running.append(subprocess.Popen(["/bin/sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        running[-1].stdout.readline()
        return running[-1].pid

    yield run
    for process in running:
        with process:
            process.kill()


def opened(tree: Tree) -> closing[TreeSource]:
    return closing(TreeSource(16 * GI, Within(*tree)))


def only(tree: Tree) -> FoundPod:
    """The one pod that a new look finds."""
    with opened(tree) as source:
        [found] = source.poll().updated
        return found


def critical(found: FoundPod) -> bool:
    """What the hot process is sent; the same by the policy of every era."""
    known = {bool(pod_message(found, era(name)).critical) for name in ERAS}
    assert len(known) == 1
    return known.pop()


@pytest.mark.live
@pytest.mark.parametrize(
    ("place", "request_", "expected"),
    [
        (f"burstable/pod{UID}", 8 * GI, False),
        (f"besteffort/pod{UID}", 0, False),
        # The uid of a static pod is the hash of its configuration, not one of the API server's.
        *((f"besteffort/pod{uid}", 0, True) for uid in (STATIC, "abc", f"{UID}0", UID[1:])),
    ],
)
def test_who_is_critical(tree: Tree, start: Start, place: str, request_: int, expected: bool) -> None:
    start(cgroupfs.make(tree[1] / "kubepods" / place / "main"))
    found = only(tree)
    assert critical(found) == expected
    message = pod_message(found)
    assert (message.priority, message.spec_known, message.request) == (None, False, request_)


@pytest.mark.live
def test_a_request_is_what_most_processes_have_and_of_equals_the_lowest(tree: Tree, start: Start) -> None:
    """A process may raise its own value. Others are no Burstable container's: a runtime's, while it sets it up."""
    container = cgroupfs.make(tree[1] / f"kubepods/burstable/pod{UID}/main")
    with opened(tree) as source:
        for adjs, request in (((1000, 0), 0), ((500, 600), -(-400 * 16 * GI // 1000)), ((500,), 8 * GI)):
            for adj in adjs:
                start(container, adj=adj)
            assert pod_message(only(tree)).request == request
        assert pod_message(source.poll().updated[0]).request == 8 * GI
        for _ in range(4):
            start(container, adj=900)
        source._next_scan = 0.0
        assert source.poll().updated == [], "it is not guessed anew"


@pytest.mark.live
@pytest.mark.parametrize(
    ("kubepods", "below", "name"),
    [
        ("kubepods", f"burstable/pod{UID}", CID),
        (
            "kubepods.slice",
            f"kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice",
            f"cri-containerd-{CID}.scope",
        ),
    ],
    ids=["cgroupfs", "systemd"],
)
def test_pods_come_change_and_go_on_the_kernel(tree: Tree, start: Start, kubepods: str, below: str, name: str) -> None:
    path = tree[1]
    pod = path / kubepods / below
    cgroupfs.make(pod.parent)
    with opened(tree) as source:
        assert source.poll().updated == []
        container = cgroupfs.make(pod / name)
        [found] = source.poll().updated  # inotify reports mkdir in a cgroup file system
        assert (found.pod.uid, found.cgroup, found.containers) == (UID, pod, {CID: container})
        assert (pod_message(found).qos, pod_message(found).request) == ("Burstable", 0)
        pid = start(container, adj=937)
        assert select.select([source.fileno()], [], [], TIMEOUT_S)[0]  # a process that moves in writes cgroup.procs
        [found] = source.poll().updated
        assert pod_message(found).request == -(-63 * 16 * GI // 1000)
        assert oom_score_adj(found.pod, CID, 16 * GI) == 937
        assert source.poll().updated == []
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        for gone in (container, pod):
            gone.rmdir()
        change = source.poll()
        assert (change.updated, change.removed) == ([], [UID])
        cgroupfs.make(pod)
        [again] = source.poll().updated
        assert again.cgroup_ids != found.cgroup_ids
        for gone in (pod, pod.parent, path / kubepods):
            gone.rmdir()
        change = source.poll()
        assert (change.removed, len(change.problems)) == ([UID], 1)


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
