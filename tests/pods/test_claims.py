"""What an annotation may not name: what the machine runs on, and another's pod. The other manifests stay in force."""

import json
import os
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from monitor.kernel import cgroup_procs, cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.pods import claims
from monitor.pods.source import Change, open_source
from monitor.side.pod_watch import pod_message
from tests.pods.programs import programs as programs
from tests.pods.programs import running
from tests.puppet import Puppet

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="not root: cannot make a cgroup, or be another user"),
    pytest.mark.oldest,
]
GI = 1 << 30
NOBODY = 65534
UID = "5c2b2da2-119f-4fa8-8801-c79f0fa869aa"
OTHER = "0f5a1c2e-1111-2222-3333-444455556666"


def manifest(folder: Path, name: str, uid: str = "", **annotations: str) -> None:
    meta = {"name": name, "uid": uid or f"uid-{name}", "annotations": annotations}
    pod = {"kind": "Pod", "metadata": meta, "spec": {"containers": [{"name": "main"}]}}
    (folder / f"{name}.json").write_text(json.dumps(pod))


def at(path: Path | str) -> dict[str, str]:
    """An annotation with this cgroup."""
    if isinstance(path, Path):
        path = str(path.relative_to(cgroupfs.detect().root))
    return {"outrace/cgroup": path}


def poll(folder: Path, node: Path | None = None, hierarchy: Hierarchy | None = None) -> Change:
    with closing(open_source(f"manifests:{folder}", hierarchy or cgroupfs.detect(), 16 * GI, node)) as source:
        return source.poll()


def names(change: Change) -> list[str]:
    return [found.pod.name for found in change.updated]


def refused(folder: Path, change: Change, *expected: str) -> None:
    """All pods but ``bad`` are there, and one line names why it is not."""
    assert names(change) == ["good"]
    [problem] = change.problems
    assert problem.startswith(f"{folder}/bad.json: document 1: metadata.annotations[outrace/cgroup]: cgroup ")
    assert "\n" not in problem
    for text in expected:
        assert text in problem


# ---- by path


@pytest.mark.parametrize(
    "path",
    [
        "init.scope",
        "init.scope/x",
        "system.slice",
        "user.slice",
        "machine.slice",
        "system.slice/ssh.service",
        "system.slice/sshd.service",
        "system.slice/system-sshd.slice/sshd@3-1.2.3.4:22-5.6.7.8:50000.service",
        "system.slice/dropbear.service",
        "system.slice/kubelet.service",
        "runtime.slice/containerd.service",
        "system.slice/crio.service",
        "system.slice/docker.service",
        "system.slice/systemd-journald.service",
        "system.slice/system-systemd\\x2dudevd.slice/systemd-udevd.service/udev",
        "system.slice/systemd-logind.service",
        "system.slice/systemd-networkd.service",
        "system.slice/dbus.service",
        "system.slice/dbus.socket",
        "system.slice/outrace.service",
    ],
)
def test_what_the_machine_runs_on_is_refused_by_its_path(tmp_path: Path, folder: Path, path: str) -> None:
    """All of these were killed with the pod that named them."""
    root = tmp_path / "cg"
    for name in (path, "good"):
        (root / name).mkdir(parents=True)
        (root / name / "cgroup.procs").touch()
    manifest(folder, "good", **at("good"))
    manifest(folder, "bad", **at(path))
    refused(folder, poll(folder, hierarchy=Hierarchy(2, root)), "name a cgroup of the pod's own")


@pytest.mark.parametrize(
    "path",
    [
        "system.slice/nginx.service",
        "system.slice/docker-0123.scope",
        "system.slice/cri-containerd-0123.scope",
        "machine.slice/systemd-nspawn@box.service",
        "app/ssh.service",  # a name of its own, in its own place
        "kubelet",
        "user.slice/user-1000.slice",
    ],
)
def test_others_are_not(tmp_path: Path, folder: Path, path: str) -> None:
    root = tmp_path / "cg"
    (root / path).mkdir(parents=True)
    (root / path / "cgroup.procs").touch()
    manifest(folder, "good", **at(path))
    change = poll(folder, hierarchy=Hierarchy(2, root))
    assert (names(change), change.problems) == (["good"], [])


# ---- by who is there


@pytest.mark.live
@pytest.mark.parametrize("name", ["sshd", "dropbear", "kubelet", "containerd", "crio", "dockerd"])
@pytest.mark.parametrize("where", ["itself", "below"])
def test_a_cgroup_with_a_daemon_of_the_machines_is_refused(
    node: Path, folder: Path, programs: Path, name: str, where: str
) -> None:
    shutil.copy("/bin/dash", programs / name)
    manifest(folder, "good", **at(cgroupfs.make(node / "good")))
    manifest(folder, "bad", **at(cgroupfs.make(node / "bad")))
    inner = node / "bad" if where == "itself" else cgroupfs.make(node / "bad/inner")
    with running(programs / name, inner) as pid:
        refused(folder, poll(folder, node), f"holds the machine's {name} (process {pid})", "name a cgroup without it")
        (programs / name).unlink()  # as an upgrade does: it runs on
        refused(folder, poll(folder, node), f"holds the machine's {name} (process {pid})")
    assert names(poll(folder, node)) == ["bad", "good"]


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
    manifest(folder, "good", **at(cgroupfs.make(node / "good")))
    with running(program, node / "good", NOBODY if lack == "user" else 0, "sshd"):
        change = poll(folder, node)
        assert (names(change), change.problems) == (["good"], [])


@pytest.mark.live
@pytest.mark.parametrize("flags", [("--pid", "--fork"), ("--mount",)], ids=lambda f: f[0])
def test_a_containers_own_sshd_is_not_the_machines(
    node: Path, folder: Path, programs: Path, flags: tuple[str, ...]
) -> None:
    """The same path in another root, or another pid namespace: what an image brings along."""
    if subprocess.run(["unshare", *flags, "true"], check=False, capture_output=True).returncode:
        pytest.skip(f"unshare {flags[0]} is not allowed here")
    shutil.copy("/bin/dash", programs / "sshd")
    good = cgroupfs.make(node / "good")
    manifest(folder, "good", **at(good))
    inside = f"mount --bind {programs}/other {programs}; " if flags[0] == "--mount" else ""
    (programs / "other").mkdir()
    shutil.copy("/bin/dash", programs / "other/sshd")
    script = f"echo 0 > {good}/cgroup.procs; {inside}exec {programs}/sshd -c 'echo ready; read line'"
    with subprocess.Popen(
        ["unshare", *flags, "sh", "-ec", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"ready\n"
            [pid] = [p for p in cgroup_procs.processes(good) if Path(f"/proc/{p}/comm").read_text() == "sshd\n"]
            assert claims.daemon(pid) == ""
            change = poll(folder, node)
            assert (names(change), change.problems) == (["good"], [])
        finally:
            for pid in cgroup_procs.processes(good):
                os.kill(pid, 9)


@pytest.mark.live
def test_a_unit_with_a_mount_namespace_of_its_own_is_the_machines(node: Path, folder: Path, programs: Path) -> None:
    """PrivateTmp= and the like: another namespace with the machine's files in it."""
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("unshare --mount is not allowed here")
    shutil.copy("/bin/dash", programs / "kubelet")
    bad = cgroupfs.make(node / "bad")
    manifest(folder, "good", **at(cgroupfs.make(node / "good")))
    manifest(folder, "bad", **at(bad))
    script = f"echo 0 > {bad}/cgroup.procs; exec {programs}/kubelet -c 'echo ready; read line'"
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-ec", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"ready\n"
            refused(folder, poll(folder, node), f"holds the machine's kubelet (process {process.pid})")
        finally:
            process.kill()


@pytest.mark.live
def test_without_the_capability_to_see_its_file_the_name_of_roots_process_will_do(
    node: Path, folder: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without CAP_SYS_PTRACE (which root has here: that the file is hidden is the fake)."""
    shutil.copy("/bin/dash", programs / "sshd")
    monkeypatch.setattr("monitor.kernel.procfs.Process.exe", lambda _self: None)
    monkeypatch.setattr("monitor.kernel.procfs.Process.namespace", lambda _self, _kind: None)
    manifest(folder, "good", **at(cgroupfs.make(node / "good")))
    manifest(folder, "bad", **at(cgroupfs.make(node / "bad")))
    with running(programs / "sshd", node / "bad") as pid:
        refused(folder, poll(folder, node), f"holds the machine's sshd (process {pid})")
    with running(programs / "sshd", node / "bad", NOBODY):
        assert names(poll(folder, node)) == ["bad", "good"]


@pytest.mark.live
def test_what_outrace_was_started_from_is_refused(node: Path, folder: Path) -> None:
    manifest(folder, "good", **at(cgroupfs.make(node / "good")))
    manifest(folder, "bad", **at(cgroupfs.make(node / "bad")))
    with Puppet(node / "bad") as shell:
        shell.do("kept.append(__import__('subprocess').Popen(['sleep', '1000']))")
        [child] = [pid for pid in cgroup_procs.processes(node / "bad") if pid != shell.pid]
        (cgroupfs.detect().root / "cgroup.procs").write_text(str(child))
        source = open_source(f"manifests:{folder}", cgroupfs.detect(), 16 * GI, node, (child,))
        try:
            refused(folder, source.poll(), f"holds what outrace was started from (process {shell.pid})")
        finally:
            source.close()
            os.kill(child, 9)


# ---- another's pod


def test_the_pod_of_another_uid_is_refused(node: Path, folder: Path) -> None:
    """The other was killed, with this one's priority."""
    other = cgroupfs.make(node / f"kubepods/burstable/pod{OTHER}/main")
    manifest(folder, "good", **at(cgroupfs.make(node / "good")))
    for claimed in (other.parent, other):
        manifest(folder, "bad", UID, **at(claimed))
        refused(folder, poll(folder, node), f"is of the pod of uid {OTHER}, and this pod's is {UID}", "metadata.uid")


def test_where_the_kubelet_runs_the_pod_its_annotation_is_ignored(node: Path, folder: Path) -> None:
    """By an annotation nobody takes his pod out of the ranking, nor another's cgroup into it."""
    own = cgroupfs.make(node / f"kubepods/burstable/pod{UID}")
    cgroupfs.make(node / "empty")
    root = cgroupfs.detect().root
    for text in (str((node / "empty").relative_to(root)), "system.slice/kubelet.service", "../x", "absent", ""):
        manifest(folder, "web", UID, **at(text))
        change = poll(folder, node)
        assert [found.cgroup for found in change.updated] == [own]
        [problem] = change.problems
        assert f"metadata.annotations[outrace/cgroup]: cgroup {text!r} is ignored" in problem
        assert str(own) in problem
    for same in (str(own), str(own.relative_to(root)), f"/{own.relative_to(root)}/"):
        manifest(folder, "web", UID, **at(same))
        assert poll(folder, node).problems == []


def test_the_pod_comes_when_the_kubelet_makes_its_cgroup(node: Path, folder: Path) -> None:
    cgroupfs.make(node / "kubepods/burstable")
    manifest(folder, "web", UID, **at("absent"))
    source = open_source(f"manifests:{folder}", cgroupfs.detect(), 16 * GI, node)
    try:
        assert source.poll().updated == []
        own = cgroupfs.make(node / f"kubepods/burstable/pod{UID}")
        [found] = source.poll().updated
        assert found.cgroup == own
    finally:
        source.close()


def test_no_annotation_of_a_container_takes_the_pod_out_of_the_ranking(node: Path, folder: Path) -> None:
    good = at(cgroupfs.make(node / "good"))
    for key, text in (
        ("outrace/cgroup.nosuch", "x"),
        ("outrace/cgroup.main", "elsewhere"),
        ("outrace/cgroup.main", ".."),
    ):
        manifest(folder, "good", **good, **{key: text})
        change = poll(folder, node)
        assert names(change) == ["good"]
        [problem] = change.problems
        assert key in problem


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
    change = poll(folder, node)
    [found] = change.updated
    assert pod_message(found).critical == critical
    assert len(change.problems) == (not critical and bool(notes))
