"""What an annotation may not name: what the machine runs on, and another's pod. The other manifests stay in force."""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from monitor.kernel import cgroup_procs, cgroupfs
from monitor.pods import claims, manifest_files
from monitor.pods.model import Change
from monitor.side.pod_watch import pod_message
from tests.pods.manifest_folder import Place, _names, manifest, polled
from tests.pods.programs import running
from tests.puppet import Puppet

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="not root: cannot make a cgroup, or be another user"),
    pytest.mark.oldest,
]
NOBODY = 65534
UID = "5c2b2da2-119f-4fa8-8801-c79f0fa869aa"
OTHER = "0f5a1c2e-1111-2222-3333-444455556666"


def good_and_bad(node: Path, folder: Path) -> Path:
    """Two pods; the cgroup of ``bad``."""
    for pod in ("good", "bad"):
        manifest(folder, pod, cgroupfs.make(node / pod))
    return node / "bad"


def refused(folder: Path, change: Change, *expected: str) -> None:
    """All pods but ``bad`` are there, and one line names why it is not."""
    assert _names(change) == ["good"]
    [problem] = change.problems
    assert problem.startswith(f"{folder}/bad.json: document 1: metadata.annotations[outrace/cgroup]: cgroup ")
    assert "\n" not in problem
    for text in expected:
        assert text in problem


MACHINES = (
    *("init.scope", "init.scope/x", "system.slice", "user.slice", "machine.slice", "system.slice/ssh.service"),
    "system.slice/system-sshd.slice/sshd@3-1.2.3.4:22-5.6.7.8:50000.service",
    *("system.slice/kubelet.service", "runtime.slice/containerd.service", "system.slice/dbus.socket"),
    "system.slice/system-systemd\\x2dudevd.slice/systemd-udevd.service/udev",
)
OTHERS = (
    *("system.slice/nginx.service", "system.slice/docker-0123.scope", "system.slice/cri-containerd-0123.scope"),
    *("machine.slice/systemd-nspawn@box.service", "kubelet", "user.slice/user-1000.slice"),
    "app/ssh.service",  # a name of its own, in its own place
)


@pytest.mark.parametrize("path", MACHINES + OTHERS)
def test_what_the_machine_runs_on_is_refused_by_its_path(place: Place, path: str) -> None:
    """(All names of units: test_machine.py.)"""
    for name, at in (("good", "good"), ("bad", path)):
        place.cgroup(at)
        manifest(place.folder, name, at)
    change = polled(place.folder, hierarchy=place.hierarchy)
    if path in MACHINES:
        refused(place.folder, change, "name a cgroup of the pod's own")
    else:
        assert (_names(change), change.problems) == (["bad", "good"], [])


@pytest.mark.live
@pytest.mark.parametrize(("name", "where"), [("sshd", "itself"), ("kubelet", "below"), ("dockerd", "itself")])
def test_a_cgroup_with_a_daemon_of_the_machines_is_refused(
    node: Path, folder: Path, programs: Path, name: str, where: str
) -> None:
    bad = good_and_bad(node, folder)
    with running(programs / name, bad if where == "itself" else cgroupfs.make(bad / "inner")) as pid:
        refused(folder, polled(folder, node), f"holds the machine's {name} (process {pid})", "name a cgroup without it")
        (programs / name).unlink()  # as an upgrade does: it runs on
        refused(folder, polled(folder, node), f"holds the machine's {name} (process {pid})")
    assert _names(polled(folder, node)) == ["bad", "good"]


@pytest.mark.live
@pytest.mark.parametrize("lack", ["comm", "user", "place", "owner"])
def test_who_only_calls_himself_sshd_is_not_spared(node: Path, folder: Path, programs: Path, lack: str) -> None:
    program = programs / ("sh" if lack == "comm" else "sshd")
    if lack == "place":  # where everybody writes
        program = programs / "open/sshd"
        program.parent.mkdir()
        program.parent.chmod(0o777)
    shutil.copy("/bin/dash", program)
    if lack == "owner":
        os.chown(program, NOBODY, NOBODY)
    manifest(folder, "good", cgroupfs.make(node / "good"))
    with running(program, node / "good", NOBODY if lack == "user" else 0, "sshd"):
        change = polled(folder, node)
        assert (_names(change), change.problems) == (["good"], [])


@pytest.mark.parametrize(
    ("program", "comm", "found"),
    [
        ("python3.9", "dnf", "dnf"), ("platform-python3.6", "yum", "yum"), ("perl", "pve-ha-lrm", "pve-ha-lrm"),
        ("python3", "unattended-upgr", "unattended-upgr"), ("python3", "app", ""), ("python3-sh", "dnf", ""),
    ],
)  # fmt: skip
def test_a_script_has_the_name_that_its_process_has(
    program: str, comm: str, found: str, programs: Path, tmp_path: Path
) -> None:
    with running(programs / program, tmp_path, comm=comm) as pid:
        assert claims.daemon(pid) == found


@contextmanager
def unshared(flags: tuple[str, ...], inside: str, program: Path, cgroup: Path) -> Iterator[int]:
    """A process of this program in a cgroup and in namespaces of its own, after a command in them."""
    if subprocess.run(["unshare", *flags, "true"], check=False, capture_output=True).returncode:
        pytest.skip(f"unshare {flags[0]} is not allowed here")
    script = f"echo 0 > {cgroup}/cgroup.procs; {inside}exec {program} -c 'echo ready; read line'"
    command = ["unshare", *flags, "sh", "-ec", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            processes = cgroup_procs.processes(cgroup)
            (pid,) = (p for p in processes if Path(f"/proc/{p}/comm").read_text() == f"{program.name}\n")
            yield pid
        finally:
            for pid in cgroup_procs.processes(cgroup):
                os.kill(pid, 9)


@pytest.mark.live
@pytest.mark.parametrize("flags", [("--pid", "--fork"), ("--mount",)], ids=lambda f: f[0])
def test_a_containers_own_sshd_is_not_the_machines(
    node: Path, folder: Path, programs: Path, flags: tuple[str, ...]
) -> None:
    """The same path in another root, or another pid namespace: what an image brings along."""
    (programs / "other").mkdir()
    for place in (programs, programs / "other"):
        shutil.copy("/bin/dash", place / "sshd")
    good = cgroupfs.make(node / "good")
    manifest(folder, "good", good)
    inside = f"mount --bind {programs}/other {programs}; " if flags[0] == "--mount" else ""
    with unshared(flags, inside, programs / "sshd", good) as pid:
        assert claims.daemon(pid) == ""
        change = polled(folder, node)
        assert (_names(change), change.problems) == (["good"], [])


@pytest.mark.live
def test_a_unit_with_a_mount_namespace_of_its_own_is_the_machines(node: Path, folder: Path, programs: Path) -> None:
    """PrivateTmp= and the like: another namespace with the machine's files in it."""
    shutil.copy("/bin/dash", programs / "kubelet")
    with unshared(("--mount",), "", programs / "kubelet", good_and_bad(node, folder)) as pid:
        refused(folder, polled(folder, node), f"holds the machine's kubelet (process {pid})")


@pytest.mark.live
def test_without_the_capability_to_see_its_file_the_name_of_roots_process_will_do(
    node: Path, folder: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without CAP_SYS_PTRACE (which root has here: that the file is hidden is the fake)."""
    monkeypatch.setattr("monitor.kernel.procfs.Process.exe", lambda _self: None)
    monkeypatch.setattr("monitor.kernel.procfs.Process.namespace", lambda _self, _kind: None)
    bad = good_and_bad(node, folder)
    with running(programs / "sshd", bad) as pid:
        refused(folder, polled(folder, node), f"holds the machine's sshd (process {pid})")
    with running(programs / "sshd", bad, NOBODY):
        assert _names(polled(folder, node)) == ["bad", "good"]


@pytest.mark.live
def test_what_outrace_was_started_from_is_refused(node: Path, folder: Path) -> None:
    bad = good_and_bad(node, folder)
    with Puppet(bad) as shell:
        shell.do("kept.append(__import__('subprocess').Popen(['sleep', '1000']))")
        [child] = [pid for pid in cgroup_procs.processes(bad) if pid != shell.pid]
        (cgroupfs.detect().root / "cgroup.procs").write_text(str(child))
        try:
            change = polled(folder, node, spared=(child,))
            refused(folder, change, f"holds what outrace was started from (process {shell.pid})")
        finally:
            os.kill(child, 9)


def test_the_pod_of_another_uid_is_refused(node: Path, folder: Path) -> None:
    """The other was killed, with this one's priority."""
    other = cgroupfs.make(node / f"kubepods/burstable/pod{OTHER}/main")
    manifest(folder, "good", cgroupfs.make(node / "good"))
    for claimed in (other.parent, other):
        manifest(folder, "bad", claimed, UID)
        refused(folder, polled(folder, node), f"is of the pod of uid {OTHER}, and this pod's is {UID}", "metadata.uid")


def test_where_the_kubelet_runs_the_pod_its_annotation_is_ignored(node: Path, folder: Path) -> None:
    """An annotation takes no pod out of the ranking, and no other pod's cgroup into it."""
    own = cgroupfs.make(node / f"kubepods/burstable/pod{UID}")
    cgroupfs.make(node / "empty")
    root = cgroupfs.detect().root
    for text in (str((node / "empty").relative_to(root)), "system.slice/kubelet.service", "../x", "absent", ""):
        manifest(folder, "web", text, UID)
        change = polled(folder, node)
        assert [found.cgroup for found in change.updated] == [own]
        [problem] = change.problems
        assert f"metadata.annotations[outrace/cgroup]: cgroup {text!r} is ignored" in problem
        assert str(own) in problem
    for same in (str(own), str(own.relative_to(root)), f"/{own.relative_to(root)}/"):
        manifest(folder, "web", same, UID)
        assert polled(folder, node).problems == []


def test_no_annotation_of_a_container_takes_the_pod_out_of_the_ranking(node: Path, folder: Path) -> None:
    good, other = cgroupfs.make(node / "good"), cgroupfs.make(node / "other/main")
    root = cgroupfs.detect().root
    for key, text, expected in (
        ("nosuch", "x", ""),
        ("main", "elsewhere", ""),
        ("main", "..", ""),
        ("main", str(other.relative_to(root)), "is not below the pod's cgroup"),
    ):
        manifest(folder, "good", good, **{f"outrace/cgroup.{key}": text})
        change = polled(folder, node)
        assert _names(change) == ["good"]
        assert other not in change.updated[0].containers.values()
        [problem] = change.problems
        assert f"outrace/cgroup.{key}" in problem
        assert expected in problem


@pytest.mark.parametrize(
    ("version", "notes", "critical"),
    [
        ("123", {"kubernetes.io/config.source": "file"}, False),  # what its author wrote
        ("123", {"kubernetes.io/config.source": ""}, False),
        ("123", {"kubernetes.io/config.source": "file", "kubernetes.io/config.mirror": "e2" * 16}, True),
        (None, {"kubernetes.io/config.source": "file"}, True),  # a file of the node, or the kubelet's own answer
        ("123", {}, False),
    ],
)
def test_no_author_of_a_pod_makes_it_a_static_one(
    node: Path, folder: Path, version: str | None, notes: dict[str, str], critical: bool
) -> None:
    """One line among its annotations, and it was never evicted: the others were, in its place."""
    cgroupfs.make(node / f"kubepods/burstable/pod{UID}")
    meta = {"name": "web", "uid": UID, "annotations": notes} | ({"resourceVersion": version} if version else {})
    (folder / "web.json").write_text(
        json.dumps({"kind": "Pod", "metadata": meta, "spec": {"containers": [{"name": "main"}]}})
    )
    change = polled(folder, node)
    [found] = change.updated
    assert pod_message(found).critical == critical
    assert len(change.problems) == (not critical and bool(notes))


@pytest.mark.parametrize("name", ["stranger", "lab", "node", "/", "nodes/p"])
def test_a_pod_lies_below_the_node(place: Place, name: str) -> None:
    node = place.cgroup("lab/node")
    for path in ("stranger", "nodes/p", "lab/node/good"):
        place.cgroup(path)
    manifest(place.folder, "good", "lab/node/good")
    manifest(place.folder, "bad", "lab/node" if name == "node" else name)
    expected = f"is not below the node {node}; name a cgroup below it, or start outrace with another"
    refused(place.folder, polled(place.folder, node, place.hierarchy), expected)


@pytest.mark.live
@pytest.mark.parametrize("where", ["pod", "container", "tree"])
def test_a_pod_with_outrace_in_it_is_refused(node: Path, folder: Path, where: str) -> None:
    container = cgroupfs.make(node / "kubepods/besteffort/podours/c")
    other = cgroupfs.make(node / "kubepods/besteffort/podother")
    spec = "cgroups"
    if where != "tree":
        spec = f"manifests:{folder}"
        manifest(folder, "ours", container if where == "container" else container.parent, uid="ours")
        manifest(folder, "other", other, uid="other")
    with Puppet(container) as ours:
        assert len(polled(spec, node).updated) == 2
        change = polled(spec, node, spared=(ours.pid,))
    assert [found.cgroup for found in change.updated] == [other]
    *ignored, problem = change.problems
    assert len(ignored) == (where == "container")  # the kubelet runs the whole pod elsewhere than there
    assert "\n" not in problem
    assert f"holds outrace itself (process {ours.pid})" in problem
    if where != "tree":
        assert problem.startswith(f"{folder}/ours.json: document 1: metadata.uid: cgroup ")
        assert problem.endswith("name a cgroup without it, or remove the manifest")


def test_what_is_no_regular_file_is_reported_and_not_waited_for(place: Place, folder: Path) -> None:
    os.mkfifo(folder / "fifo.yaml")
    (folder / "zero.yaml").symlink_to("/dev/zero")
    (folder / "loop.yaml").symlink_to("loop.yaml")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket.json"))
        for name in ("fifo.yaml", "zero.yaml", "socket.json"):
            assert manifest_files.read(folder / name).problems == (
                f"{folder / name}: not a regular file but a FIFO, socket or device; remove it",
            )
        place.add("z")
        change = polled(folder, None, place.hierarchy)
    assert _names(change) == ["z"]
    assert len(change.problems) == 4
    assert sum("loop.yaml: cannot be read: Too many levels of symbolic links" in p for p in change.problems) == 1
