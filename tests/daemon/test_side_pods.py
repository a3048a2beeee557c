"""The real helper process and the pods: which ones it reports to the hot process, and what it keeps up meanwhile."""

import ctypes
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from monitor.kernel import cgroupfs
from monitor.link.messages import PodGone, PodSeen, Synced
from tests.daemon import harness
from tests.daemon.harness import DECISION, STATE, Node, eventually, metric

pytestmark = [pytest.mark.kernel, pytest.mark.once]

node = pytest.fixture(harness.side_node)


def test_pods_are_reported_when_they_come_change_and_go(node: Node) -> None:
    cgroup = node.pod("a", memory="64Mi")
    hot = node.run()
    first, synced = hot.receive_until("synced")
    assert (type(first), first.uid, first.request, first.qos) == (PodSeen, "uid-a", 64 << 20, "Burstable")
    assert first.containers == {"main": str(cgroup)}
    assert synced == Synced()

    node.pod("b")
    assert hot.receive("pod+").uid == "uid-b"
    node.pod("b", memory="1Gi")
    assert hot.receive("pod+").request == 1 << 30
    (node.manifests / "b.json").unlink()
    assert (hot.receive("pod-"), hot.end()) == (PodGone("uid-b"), 0)
    assert 'msg="pod gone" pod=default/b' in hot.log()


def test_a_pod_with_the_side_in_it_is_refused(node: Node) -> None:
    cgroup = node.pod("ours")
    hot = node.run()
    assert hot.receive("pod+").uid == "uid-ours"
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    of_memory = "memory" if cgroupfs.detect().version == 1 else ""
    home = next(path for _, controllers, path in lines if of_memory in controllers.split(","))
    (cgroup / "cgroup.procs").write_text(str(hot.process.pid))
    try:
        node.pod("b")  # any change makes the source look again
        assert hot.receive("pod-") == PodGone("uid-ours")
        hot.wait_for_log(f"holds outrace itself (process {hot.process.pid})")
    finally:
        root = cgroupfs.detect().root
        (root / home.lstrip("/") / "cgroup.procs").write_text(str(hot.process.pid))


def test_a_pod_whose_containers_do_not_fit_into_a_message_is_sent_without_them(node: Node) -> None:
    """Else a pod with so many is out of the ranking."""
    cgroup = node.pod("big")
    node.pod("small")
    hot = node.run()
    assert len(hot.receive_until("synced")) == 3
    deep = cgroup
    for _ in range(8):
        deep = cgroupfs.make(deep / ("d" * 240))
    relative = str(deep.relative_to(cgroupfs.detect().root))
    manifest = json.loads((node.manifests / "big.json").read_text())
    names = [f"c{i}" for i in range(70)]
    manifest["spec"]["containers"] = [{"name": name, "resources": {"requests": {"memory": "1Mi"}}} for name in names]
    manifest["metadata"]["annotations"] |= {f"outrace/cgroup.{name}": relative for name in names}
    (node.manifests / ".new").write_text(json.dumps(manifest))
    (node.manifests / ".new").rename(node.manifests / "big.json")
    received = hot.receive("pod+")
    assert (received.uid, received.containers) == ("uid-big", {})
    assert (received.cgroup, received.request) == (str(cgroup), 70 << 20)
    node.pod("late")
    assert hot.receive("pod+").uid == "uid-late"
    eventually(lambda: metric(hot, "pods") == 3)
    node.pod("big")
    assert hot.receive("pod+").containers
    assert "is not watched" not in hot.log()


@contextmanager
def hung(directory: Path) -> Iterator[None]:
    """A file system over ``directory`` that never answers: FUSE without a server."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"/dev/fuse: {error.strerror}")
    try:
        options = f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()
        if libc.mount(b"outrace-test", os.fsencode(directory), b"fuse", 0, options) != 0:
            pytest.skip(f"mount(2) of a FUSE is refused: {os.strerror(ctypes.get_errno())}")
        try:
            yield
        finally:
            libc.umount2(os.fsencode(directory), 2)  # MNT_DETACH
    finally:
        os.close(fd)  # processes that wait get ENOTCONN


def test_a_manifest_directory_that_hangs_holds_up_nothing(node: Node) -> None:
    node.pod("a")
    hot = node.synced(enforce=True)
    hot.stats.set("ready_ns", 1)
    hot.stats.set("published_ns", time.monotonic_ns() + 10**12)
    hot.send(STATE)
    eventually(lambda: hot.get("/readyz") == (200, "ok\n"))
    with hung(node.manifests):
        cgroupfs.make(node.cgroup / "stir")  # makes the source look
        eventually(lambda: "has been hanging for" in hot.get("/readyz")[1])
        hot.send(DECISION._replace(observed=False))
        assert "pod=default/a" in hot.wait_for_log("msg=evicting")
        eventually(lambda: hot.get("/healthz") == (200, "ok\n"))
    node.pod("b")
    eventually(lambda: hot.get("/readyz") == (200, "ok\n"))
    assert hot.receive("pod+").uid == "uid-b"
