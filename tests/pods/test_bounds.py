"""Which cgroups can be a pod's: below the node, one pod's alone, without outrace in it; and files that are none."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.pods import manifest_files
from tests.pods.manifest_folder import _names, manifest, polled


def _cgroup(root: Path, name: str) -> Path:
    """A literal cgroup, and those above it."""
    path = root / name
    path.mkdir(parents=True, exist_ok=True)
    for each in (path, *path.parents):
        (each / "cgroup.procs").touch()
        if each == root:
            break
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return _cgroup(tmp_path / "cg", ".")


@pytest.mark.parametrize("name", ["stranger", "lab", "node", "/", "nodes/p"])
def test_a_pod_lies_below_the_node(root: Path, folder: Path, name: str) -> None:
    node = _cgroup(root, "lab/node")
    for path in ("stranger", "nodes/p", "lab/node/good"):
        _cgroup(root, path)
    manifest(folder, "good", "lab/node/good")
    manifest(folder, "bad", "lab/node" if name == "node" else name)
    change = polled(folder, node, Hierarchy(2, root))
    assert _names(change) == ["good"]
    [problem] = change.problems
    assert problem.startswith(f"{folder}/bad.json: document 1: metadata.annotations[outrace/cgroup]: cgroup ")
    assert f"is not below the node {node}; name a cgroup below it, or start outrace with another" in problem


def test_a_container_lies_below_its_pod(root: Path, folder: Path) -> None:
    _cgroup(root, "other/main")
    _cgroup(root, "p")
    manifest(folder, "p", "p", **{"outrace/cgroup.main": "other/main"})
    change = polled(folder, None, Hierarchy(2, root))
    # Who may write the pod's annotations would take it out of the ranking by it: the pod is one all the same.
    assert [(found.pod.name, found.containers) for found in change.updated] == [("p", {})]
    [problem] = change.problems
    assert "[outrace/cgroup.main]: cgroup 'other/main' is not below the pod's cgroup" in problem


@pytest.mark.parametrize(
    "name",
    [
        "kubelet.slice",
        "kubelet.slice/kubelet-kubepods.slice",
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice",
    ],
)
def test_a_cgroup_of_many_pods_is_no_pod(root: Path, folder: Path, name: str) -> None:
    burstable = "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice"
    pod = f"{burstable}/kubelet-kubepods-burstable-podabc.slice"
    _cgroup(root, pod)
    manifest(folder, "a", name)
    manifest(folder, "b", pod, uid="abc")
    change = polled(folder, None, Hierarchy(2, root))
    problem = change.problems[0]
    assert _names(change) == ["b"]
    assert len(change.problems) == 1
    assert f"a.json: document 1: metadata.annotations[outrace/cgroup]: cgroup '{name}' holds the pods of" in problem


def test_a_cluster_inside_a_pod_belongs_to_the_pod(root: Path, folder: Path) -> None:
    _cgroup(root, "kubepods/podabc/ccc/kubelet/kubepods/podinner")
    manifest(folder, "a", "kubepods/podabc", uid="abc")
    change = polled(folder, None, Hierarchy(2, root))
    assert (_names(change), change.problems) == (["a"], [])


@pytest.mark.parametrize("spec", ["cgroups", "manifests"])
def test_only_the_nodes_own_kubepods_is_searched(root: Path, folder: Path, spec: str) -> None:
    stranger = _cgroup(root, "kubepods/besteffort/podstranger").parent.parent
    node = _cgroup(root, "lab/node")
    if spec == "manifests":
        spec = f"manifests:{folder}"
        pod = {"kind": "Pod", "metadata": {"name": "s", "uid": "stranger"}, "spec": {"containers": [{"name": "c"}]}}
        (folder / "s.json").write_text(json.dumps(pod))
    change = polled(spec, node, Hierarchy(2, root))
    assert change.updated == []
    assert len(change.problems) == 1
    assert [f.pod.uid for f in polled(spec, None, Hierarchy(2, root)).updated] == [
        "stranger"
    ]  # the machine as the node
    assert [f.pod.uid for f in polled(spec, stranger, Hierarchy(2, root)).updated] == [
        "stranger"
    ]  # kubepods as the node
    _cgroup(node, "kubepods/besteffort/podstranger")
    assert [f.cgroup for f in polled(spec, node, Hierarchy(2, root)).updated] == [
        node / "kubepods/besteffort/podstranger"
    ]


@pytest.fixture
def monitored() -> Iterator[tuple[Path, int]]:
    """A real cgroup with a tree like a kubelet's, and a process in a container of the pod ``ours`` in it."""
    if os.geteuid() != 0:
        pytest.skip("not root: cannot make a cgroup")
    base = cgroupfs.detect().root / f"outrace-test-bounds-{os.getpid()}"
    container = cgroupfs.make(base / "kubepods/besteffort/podours/c")
    cgroupfs.make(base / "kubepods/besteffort/podother")
    script = f"echo $$ > {container}/cgroup.procs; echo ready; exec cat"
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        yield base, process.pid
        process.kill()
    cgroupfs.remove(base)


@pytest.mark.live
@pytest.mark.parametrize("where", ["pod", "container", "tree"])
def test_a_pod_with_outrace_in_it_is_refused(monitored: tuple[Path, int], folder: Path, where: str) -> None:
    base, pid = monitored
    hierarchy = cgroupfs.detect()
    relative = base.relative_to(hierarchy.root)
    names = {"pod": f"{relative}/kubepods/besteffort/podours", "container": f"{relative}/kubepods/besteffort/podours/c"}
    spec = "cgroups"
    if where != "tree":
        spec = f"manifests:{folder}"
        manifest(folder, "ours", names[where], uid="ours")
        manifest(folder, "other", f"{relative}/kubepods/besteffort/podother", uid="other")
    both = polled(spec, base)
    assert len(both.updated) == 2
    change = polled(spec, base, spared=(pid,))
    assert [found.cgroup.name for found in change.updated] == ["podother"]
    *ignored, problem = change.problems
    assert len(ignored) == (where == "container")  # the kubelet runs the whole pod elsewhere than there
    assert "\n" not in problem
    assert f"holds outrace itself (process {pid})" in problem
    if where != "tree":
        assert problem.startswith(f"{folder}/ours.json: document 1: metadata.uid: cgroup ")
        assert problem.endswith("name a cgroup without it, or remove the manifest")


def test_what_is_no_regular_file_is_reported_and_not_waited_for(root: Path, folder: Path) -> None:
    os.mkfifo(folder / "fifo.yaml")
    (folder / "zero.yaml").symlink_to("/dev/zero")
    (folder / "loop.yaml").symlink_to("loop.yaml")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket.json"))
        for name in ("fifo.yaml", "zero.yaml", "socket.json"):
            assert manifest_files.read(folder / name).problems == (
                f"{folder / name}: not a regular file but a FIFO, socket or device; remove it",
            )
        _cgroup(root, "good")
        manifest(folder, "z", "good")
        change = polled(folder, None, Hierarchy(2, root))
    assert _names(change) == ["z"]
    assert len(change.problems) == 4
    assert sum("loop.yaml: cannot be read: Too many levels of symbolic links" in p for p in change.problems) == 1
