"""Which cgroups can be a pod's: below the node, one pod's alone, without outrace in it; and files that are none."""

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.pods import manifest_files
from monitor.pods.source import Change, open_source

GI = 1 << 30


def _cgroup(root: Path, name: str) -> Path:
    """A literal cgroup, and those above it."""
    path = root / name
    path.mkdir(parents=True, exist_ok=True)
    for each in (path, *path.parents):
        (each / "cgroup.procs").touch()
        if each == root:
            break
    return path


def _manifest(folder: Path, name: str, cgroup: str, uid: str = "", **containers: str) -> None:
    notes = {"outrace/cgroup": cgroup, **{f"outrace/cgroup.{key}": value for key, value in containers.items()}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "uid": uid or f"uid-{name}", "annotations": notes},
        "spec": {"containers": [{"name": "main"}]},
    }
    (folder / f"{name}.json").write_text(json.dumps(pod))


def _poll(spec: str, hierarchy: Hierarchy, node: Path | None = None, spared: tuple[int, ...] = ()) -> Change:
    source = open_source(spec, hierarchy, 16 * GI, node, spared)
    try:
        return source.poll()
    finally:
        source.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return _cgroup(tmp_path / "cg", ".")


@pytest.mark.parametrize("name", ["stranger", "lab", "node", "/", "nodes/p"])
def test_a_pod_lies_below_the_node(root: Path, folder: Path, name: str) -> None:
    node = _cgroup(root, "lab/node")
    for path in ("stranger", "nodes/p", "lab/node/good"):
        _cgroup(root, path)
    _manifest(folder, "good", "lab/node/good")
    _manifest(folder, "bad", "lab/node" if name == "node" else name)
    change = _poll(f"manifests:{folder}", Hierarchy(2, root), node)
    assert [found.pod.name for found in change.updated] == ["good"]
    [problem] = change.problems
    assert problem.startswith(f"{folder}/bad.json: document 1: metadata.annotations[outrace/cgroup]: cgroup ")
    assert f"is not below the node {node}; name a cgroup below it, or start outrace with another" in problem


def test_a_container_lies_below_its_pod(root: Path, folder: Path) -> None:
    _cgroup(root, "other/main")
    _cgroup(root, "p")
    _manifest(folder, "p", "p", main="other/main")
    change = _poll(f"manifests:{folder}", Hierarchy(2, root))
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
    _manifest(folder, "a", name)
    _manifest(folder, "b", pod, uid="abc")
    change = _poll(f"manifests:{folder}", Hierarchy(2, root))
    problem = change.problems[0]
    assert [found.pod.name for found in change.updated] == ["b"]
    assert len(change.problems) == 1
    assert f"a.json: document 1: metadata.annotations[outrace/cgroup]: cgroup '{name}' holds the pods of" in problem


def test_a_cluster_inside_a_pod_belongs_to_the_pod(root: Path, folder: Path) -> None:
    _cgroup(root, "kubepods/podabc/ccc/kubelet/kubepods/podinner")
    _manifest(folder, "a", "kubepods/podabc", uid="abc")
    change = _poll(f"manifests:{folder}", Hierarchy(2, root))
    assert ([found.pod.name for found in change.updated], change.problems) == (["a"], [])


@pytest.mark.parametrize("spec", ["cgroups", "manifests"])
def test_only_the_nodes_own_kubepods_is_searched(root: Path, folder: Path, spec: str) -> None:
    stranger = _cgroup(root, "kubepods/besteffort/podstranger").parent.parent
    node = _cgroup(root, "lab/node")
    if spec == "manifests":
        spec = f"manifests:{folder}"
        pod = {"kind": "Pod", "metadata": {"name": "s", "uid": "stranger"}, "spec": {"containers": [{"name": "c"}]}}
        (folder / "s.json").write_text(json.dumps(pod))
    change = _poll(spec, Hierarchy(2, root), node)
    assert change.updated == []
    assert len(change.problems) == 1
    assert [f.pod.uid for f in _poll(spec, Hierarchy(2, root)).updated] == ["stranger"]  # the machine as the node
    assert [f.pod.uid for f in _poll(spec, Hierarchy(2, root), stranger).updated] == [
        "stranger"
    ]  # kubepods as the node
    _cgroup(node, "kubepods/besteffort/podstranger")
    assert [f.cgroup for f in _poll(spec, Hierarchy(2, root), node).updated] == [
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
        _manifest(folder, "ours", names[where], uid="ours")
        _manifest(folder, "other", f"{relative}/kubepods/besteffort/podother", uid="other")
    both = _poll(spec, hierarchy, base)
    assert len(both.updated) == 2
    change = _poll(spec, hierarchy, base, (pid,))
    assert [found.cgroup.name for found in change.updated] == ["podother"]
    *ignored, problem = change.problems
    assert len(ignored) == (where == "container")  # the kubelet runs the whole pod elsewhere than there
    assert "\n" not in problem
    assert f"holds outrace itself (process {pid})" in problem
    if where != "tree":
        assert problem.startswith(f"{folder}/ours.json: document 1: metadata.uid: cgroup ")
        assert problem.endswith("name a cgroup without it, or remove the manifest")


def _read(path: Path) -> manifest_files.Parsed:
    """The file, read on a thread that may hang without holding up the tests."""
    results: list[manifest_files.Parsed] = []
    thread = threading.Thread(target=lambda: results.append(manifest_files.read(path)), daemon=True)
    thread.start()
    thread.join(30)
    assert results, f"reading {path} hangs"
    return results[0]


def test_what_is_no_regular_file_is_reported_and_not_waited_for(root: Path, folder: Path) -> None:
    os.mkfifo(folder / "fifo.yaml")
    (folder / "zero.yaml").symlink_to("/dev/zero")
    (folder / "loop.yaml").symlink_to("loop.yaml")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket.json"))
        for name in ("fifo.yaml", "zero.yaml", "socket.json"):
            assert _read(folder / name).problems == (
                f"{folder / name}: not a regular file but a FIFO, socket or device; remove it",
            )
        _cgroup(root, "good")
        _manifest(folder, "z", "good")
        change = _poll(f"manifests:{folder}", Hierarchy(2, root))
    assert [found.pod.name for found in change.updated] == ["z"]
    assert len(change.problems) == 4
    assert sum("loop.yaml: cannot be read: Too many levels of symbolic links" in p for p in change.problems) == 1
