"""Pods made of cgroups on the live kernel: they come, change and go."""

import os
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.pods.tree import TreeSource
from monitor.policy.oom_score import oom_score_adj
from monitor.side.pod_watch import pod_message
from tests.puppet import cgroup

DATA = Path(__file__).parent.parent / "data" / "pods"
GI = 1 << 30
UID = "5c2b2da2-119f-4fa8-8801-c79f0fa869aa"
SLICE = UID.replace("-", "_")
CID = "46b4aeed75e56ab25c5594354174633fcf23ad7ea81cedc27c339fdc2a300e95"


@pytest.fixture
def real() -> Iterator[tuple[Hierarchy, Path]]:
    if os.geteuid() != 0:
        pytest.skip("not root: cannot make a cgroup")
    with cgroup("tree") as path:
        yield Hierarchy(cgroupfs.detect().version, path), path


def _process(cgroup: Path, adj: int) -> subprocess.Popen[bytes]:
    """A process in ``cgroup`` with an oom_score_adj, that waits on its standard input."""
    process = subprocess.Popen(
        ["sh", "-c", f"echo {adj} > /proc/$$/oom_score_adj; echo $$ > {cgroup}/cgroup.procs; echo; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    process.stdout.readline()
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    assert process.stdin
    assert process.stdout
    process.stdin.close()
    process.stdout.close()


@pytest.mark.live
@pytest.mark.parametrize(
    ("kubepods", "below", "name"),
    [
        ("kubepods", f"burstable/pod{UID}", CID),
        (
            "kubepods.slice",
            f"kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice",
            f"cri-containerd-{CID}.scope",
        ),
    ],
    ids=["cgroupfs", "systemd"],
)
def test_pods_come_change_and_go_on_the_kernel(
    real: tuple[Hierarchy, Path], kubepods: str, below: str, name: str
) -> None:
    hierarchy, path = real
    pod = path / kubepods / below
    cgroupfs.make(pod.parent)
    source = TreeSource(hierarchy, 16 * GI)
    assert source.poll().updated == []

    container = cgroupfs.make(pod / name)
    [found] = source.poll().updated  # inotify reports mkdir in a cgroup file system
    assert (found.pod.uid, found.cgroup, found.containers) == (UID, pod, {CID: container})
    assert (pod_message(found).qos, pod_message(found).request) == ("Burstable", 0)

    process = _process(container, 937)
    try:
        fd = source.fileno()
        assert fd is not None
        assert select.select([fd], [], [], 10)[0]  # moving a process in writes cgroup.procs, which inotify reports
        [found] = source.poll().updated
        assert pod_message(found).request == -(-63 * 16 * GI // 1000)
        assert oom_score_adj(found.pod, CID, 16 * GI) == 937
        assert source.poll().updated == []
    finally:
        _end(process)
    cgroupfs.remove(pod)
    change = source.poll()
    assert (change.updated, change.removed) == ([], [UID])

    cgroupfs.make(pod)
    [again] = source.poll().updated
    assert again.cgroup_ids != found.cgroup_ids
    cgroupfs.remove(path / kubepods)
    change = source.poll()
    assert change.removed == [UID]
    assert len(change.problems) == 1
    source.close()


@pytest.mark.live
def test_a_container_being_started_is_not_judged_yet(real: tuple[Hierarchy, Path], tmp_path: Path) -> None:
    """The runtime's own process is in the cgroup before the container's is, with the runtime's oom_score_adj."""
    hierarchy, path = real
    container = cgroupfs.make(path / f"kubepods/burstable/pod{UID}/main")
    starting = tmp_path / "runc:[2:INIT]"
    starting.symlink_to("/bin/sh")
    process = subprocess.Popen(
        [
            starting,
            "-c",
            f"echo 700 > /proc/$$/oom_score_adj; echo $$ > {container}/cgroup.procs; echo; read x; exec cat",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin
    assert process.stdout
    process.stdout.readline()
    source = TreeSource(hierarchy, 10 * GI)
    try:
        assert pod_message(source.poll().updated[0]).request == 0
        process.stdin.write(b"go\nx\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"x\n"
        [found] = source.poll().updated  # what is unsettled is looked at again in the next poll
        assert pod_message(found).request == 3 * GI
    finally:
        _end(process)
        source.close()


@pytest.mark.live
def test_a_changed_limit_is_reported(real: tuple[Hierarchy, Path]) -> None:
    hierarchy, path = real
    pod = cgroupfs.make(path / f"kubepods/pod{UID}")
    cgroupfs.set_limit(pod, 64 << 20)
    source = TreeSource(hierarchy, 16 * GI)
    assert pod_message(source.poll().updated[0]).request == 64 << 20
    cgroupfs.set_limit(pod, 96 << 20)
    [found] = source.poll().updated
    assert pod_message(found).request == 96 << 20
    source.close()
