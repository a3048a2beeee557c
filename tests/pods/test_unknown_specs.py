"""Pods known by their cgroups alone: what is not known is never taken for 0, and who may be critical is critical."""

import dataclasses
import os
import select
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.procfs import Process
from monitor.pods import containers
from monitor.pods.source import FoundPod
from monitor.pods.tree import TreeSource
from monitor.policy.layout import SINGLE_DISK
from monitor.policy.oom_score import oom_score_adj
from monitor.policy.pods import Pod, pod_from_object
from monitor.policy.ranking import candidate, memory_order
from monitor.policy.releases import ERAS, era
from monitor.policy.resources import pod_request
from monitor.policy.signals import MEMORY, PID
from monitor.policy.stats import PodStats
from monitor.policy.victims import rank_pods
from monitor.side.pod_watch import pod_message
from tests.puppet import TIMEOUT_S, cgroup

GI = 1 << 30
UID = "5c2b2da2-119f-4fa8-8801-c79f0fa869aa"
CID = "46b4aeed75e56ab25c5594354174633fcf23ad7ea81cedc27c339fdc2a300e95"
STATIC = "e228a63249ca746e753e7532f763b21a"

Start = Callable[..., int]
Score = Callable[[int, int], None]
Tree = tuple[Hierarchy, Path]


@pytest.fixture
def tree() -> Iterator[Tree]:
    if os.geteuid() != 0:
        pytest.skip("not root: cannot make a cgroup")
    with cgroup("unknown") as path:
        yield cgroupfs.detect(), path


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process: in a cgroup, of a program of this name, with this oom_score_adj (500: any may have that)."""
    running: list[subprocess.Popen[bytes]] = []

    def run(cgroup: Path, program: str = "main", comm: str = "", adj: int = 500) -> int:
        if not (tmp_path / program).exists():
            shutil.copy("/bin/dash", tmp_path / program)
        script = f"echo {adj} > /proc/$$/oom_score_adj; echo $$ > {cgroup}/cgroup.procs; "
        script += f"printf '{comm or program}' > /proc/$$/comm; echo; read line"
        running.append(
            subprocess.Popen([tmp_path / program, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        assert running[-1].stdout
        running[-1].stdout.readline()
        return running[-1].pid

    yield run
    for process in running:
        with process:
            process.kill()


@pytest.fixture
def score(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Gives a process a low oom_score_adj. Without CAP_SYS_RESOURCE that it has it is the one fake."""
    known: dict[int, int] = {}
    real = Process.oom_score_adj
    monkeypatch.setattr(Process, "oom_score_adj", lambda self: known.get(self.pid, real(self)))

    def give(pid: int, adj: int) -> None:
        try:
            Path(f"/proc/{pid}/oom_score_adj").write_text(str(adj))
        except PermissionError:
            known[pid] = adj

    return give


def opened(tree: Tree) -> closing[TreeSource]:
    return closing(TreeSource(tree[0], 16 * GI, tree[1]))


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


#: Places of a pod and scores of its processes, by why it is critical or may be evicted. The uid of a static pod is the
#: hash of its configuration, not one of the API server's; of Guaranteed pods all have -997, and any may raise its own.
CRITICAL = {
    "an ordinary pod": (f"burstable/pod{UID}", (500, 500), False),
    **{f"a static pod {uid}": (f"besteffort/pod{uid}", (500,), True) for uid in (STATIC, "abc", f"{UID}0", UID[1:])},
    **{f"a score in {qos}": (f"{qos}pod{UID}", (500, -997), True) for qos in ("burstable/", "besteffort/", "")},
    "a Guaranteed pod": (f"pod{UID}", (900,), True),
}


@pytest.mark.live
@pytest.mark.parametrize(("place", "scores", "expected"), CRITICAL.values(), ids=CRITICAL)
def test_who_is_critical(
    tree: Tree, start: Start, score: Score, place: str, scores: tuple[int, ...], expected: bool
) -> None:
    for number, adj in enumerate(scores):
        pid = start(cgroupfs.make(tree[1] / "kubepods" / place / f"c{number}"), adj=max(adj, 0))
        if adj < 0:
            score(pid, adj)
    found = only(tree)
    assert critical(found) == expected
    message = pod_message(found)
    assert (message.priority, message.spec_known) == (None, False)
    if not expected:
        assert message.request == 16 * GI


@pytest.mark.live
def test_once_critical_always_critical(tree: Tree, start: Start, score: Score) -> None:
    container = cgroupfs.make(tree[1] / f"kubepods/burstable/pod{UID}/main")
    pid = start(container)
    score(pid, -997)
    with opened(tree) as source:
        [found] = source.poll().updated
        assert critical(found)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        cgroupfs.remove(container)
        start(cgroupfs.make(container.with_name("again")))
        [found] = source.poll().updated
        assert list(found.containers) == ["again"]
        assert critical(found)


@pytest.mark.live
def test_a_score_that_comes_later_counts_too(
    tree: Tree, start: Start, score: Score, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runtime that is not known may set it when the container has long been judged."""
    pid = start(cgroupfs.make(tree[1] / f"kubepods/burstable/pod{UID}/main"))
    with opened(tree) as source:
        assert not critical(source.poll().updated[0])
        score(pid, -997)
        monkeypatch.setattr("monitor.pods.tree.RESCAN_S", 0.0)
        source._next_scan = 0.0
        [found] = source.poll().updated
        assert critical(found)
        assert pod_message(found).request == 8 * GI  # what it asked for is not guessed anew


@pytest.mark.live
def test_a_pod_whose_processes_are_not_known_yet_is_critical_until_they_are(tree: Tree, start: Start) -> None:
    container = cgroupfs.make(tree[1] / f"kubepods/burstable/pod{UID}/main")
    with opened(tree) as source:
        [found] = source.poll().updated
        assert critical(found)
        start(container)
        [found] = source.poll().updated
        assert not critical(found)


@pytest.mark.live
def test_who_calls_itself_runc_is_being_started_only_for_a_while(
    tree: Tree, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime's process is in the cgroup before the container's is, with its own score. By that name alone a pod
    stayed unjudged for ever.
    """
    start(cgroupfs.make(tree[1] / f"kubepods/burstable/pod{UID}/main"), comm="runc:[2:INIT]")
    found = only(tree)
    assert critical(found)
    assert pod_message(found).request == 0
    with opened(tree) as source:
        source.poll()
        with monkeypatch.context() as executed:
            executed.setattr(Process, "comm", lambda _: "main")
            [found] = source.poll().updated  # what is unsettled is looked at again in the next poll
            assert pod_message(found).request == 8 * GI
    monkeypatch.setattr(containers, "STARTING_S", 0.0)
    found = only(tree)
    assert not critical(found)
    assert pod_message(found).request == 8 * GI


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
        fd = source.fileno()
        assert fd is not None
        assert select.select([fd], [], [], TIMEOUT_S)[0]  # a process that moves in writes cgroup.procs
        [found] = source.poll().updated
        assert pod_message(found).request == -(-63 * 16 * GI // 1000)
        assert oom_score_adj(found.pod, CID, 16 * GI) == 937
        assert source.poll().updated == []
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        cgroupfs.remove(pod)
        change = source.poll()
        assert (change.updated, change.removed) == ([], [UID])
        cgroupfs.make(pod)
        [again] = source.poll().updated
        assert again.cgroup_ids != found.cgroup_ids
        cgroupfs.remove(path / kubepods)
        change = source.poll()
        assert (change.removed, len(change.problems)) == ([UID], 1)


@pytest.mark.live
def test_a_changed_limit_is_reported(tree: Tree) -> None:
    pod = cgroupfs.make(tree[1] / f"kubepods/pod{UID}")
    with opened(tree) as source:
        for limit in (64 << 20, 96 << 20):
            cgroupfs.set_limit(pod, limit)
            assert pod_message(source.poll().updated[0]).request == limit


@pytest.mark.live
@pytest.mark.parametrize(
    ("processes", "is_sandbox"),
    [
        ([("pause", "pause", -998)], True),
        ([("main", "pause", 500)], False),  # the name alone
        ([("pause", "pause", 500)], False),  # and the program's: what a container may bring along
        ([("main", "pause", -998)], False),  # the score, but another program
        ([("pause", "pause", -998), ("pause", "pause", -998)], False),  # not alone
    ],
    ids=["sandbox", "comm", "program", "score", "two"],
)
def test_pause_alone_is_no_sandbox(
    tree: Tree, start: Start, score: Score, processes: list[tuple[str, str, int]], is_sandbox: bool
) -> None:
    """A container whose processes all called themselves pause was none: with its request the pod lost its place."""
    path = tree[1] / f"kubepods/burstable/pod{UID}"
    start(cgroupfs.make(path / "main"))
    other = cgroupfs.make(path / "other")
    for program, comm, adj in processes:
        score(start(other, program, comm), adj)
    found = only(tree)
    assert sorted(found.containers) == (["main"] if is_sandbox else ["main", "other"])
    if is_sandbox:
        assert found.pod.containers[0].requests["memory"].value == 8 * GI
        assert not critical(found)  # the sandbox of every pod has that score


@pytest.mark.live
def test_a_sandbox_is_started_from_outside_the_pod(tree: Tree, score: Score, tmp_path: Path) -> None:
    path = tree[1] / f"kubepods/burstable/pod{UID}"
    main, other = cgroupfs.make(path / "main"), cgroupfs.make(path / "other")
    shutil.copy("/bin/dash", tmp_path / "pause")
    child = f"echo $$ > {other}/cgroup.procs; echo $$; read line"
    script = f"echo $$ > {main}/cgroup.procs; {tmp_path}/pause -c '{child}'; true"
    with subprocess.Popen(["/bin/sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        assert shell.stdout
        pid = int(shell.stdout.readline())
        score(pid, -998)
        assert sorted(only(tree).containers) == ["main", "other"]
        os.kill(pid, 9)
        shell.kill()


def pod(name: str, known: bool, priority: int | None) -> Pod:
    found = pod_from_object({"metadata": {"name": name, "uid": name}, "spec": {"priority": priority, "containers": []}})
    return dataclasses.replace(found, spec_known=known)


@given(st.integers(-(2**31), 10**9), st.sampled_from([MEMORY, PID, "nodefs.available"]))
def test_an_unknown_priority_ranks_behind_every_known_one(priority: int, signal: str) -> None:
    """It was taken for 0, before every pod of a positive priority."""
    pods = [pod("a-unknown", False, None), pod("known", True, priority)]
    for rules in (era("kubelet-1.36"), era("kubelet-1.17")):
        figures = {p.uid: PodStats({"memory": {"workingSetBytes": 7}}) for p in pods}
        order = rank_pods(signal, pods, figures, SINGLE_DISK, True, rules.ranker)
        assert [one.pod.name for one in order] == ["known", "a-unknown"]
    candidates = [candidate(one, pod_request(one, "memory"), 7) for one in pods]
    assert [c.name for c in memory_order(candidates)] == ["known", "a-unknown"]
    assert [c.priority for c in candidates] == [None, priority]
