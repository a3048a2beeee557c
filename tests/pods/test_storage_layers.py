"""The writable layer of a container: a real container root on an overlay."""

import dataclasses
from pathlib import Path

import pytest

from monitor.pods.containers import upper_directory
from monitor.pods.model import FoundPod
from monitor.pods.storage import Roots, measure
from tests import live
from tests.filesystems import Mounts
from tests.pods.disk import PAGE, found_pod, put
from tests.pods.disk import disk as disk
from tests.pods.disk import roots as roots
from tests.policy.builders import pod

# As runc does: a mount namespace of its own, the overlay as its root, nothing else left.
PIVOT = (
    "libc = ctypes.CDLL(None, use_errno=True); "
    "check = lambda result: result == 0 or sys.exit(f'errno {{ctypes.get_errno()}}'); "
    "check(libc.unshare(0x20000)); "  # CLONE_NEWNS
    "check(libc.mount(b'none', b'/', None, 0x44000, None)); "  # MS_REC|MS_PRIVATE
    "os.makedirs('{root}/old', exist_ok=True); "
    "check(libc.syscall({{'x86_64': 155, 'aarch64': 41}}[os.uname().machine], b'{root}', b'{root}/old')); "
    "os.chdir('/'); "
    "check(libc.umount2(b'/old', 2))"  # MNT_DETACH
)


def contain(mounts: Mounts, puppet: live.Puppet, disk: Path, name: str) -> Path:
    """Give the process an overlay as its root; its upper directory."""
    upper = disk / name
    for path in (upper, disk / "work", disk / "lower"):
        path.mkdir(exist_ok=True)
    root = mounts.overlay("root", disk / "lower", upper, disk / "work")
    puppet.do(PIVOT.format(root=root))
    return upper


def test_the_writable_layer_of_a_container(mounts: Mounts, roots: Roots) -> None:
    disk = mounts.ext4("real", 16 << 20)
    with live.cgroup("storage") as parent, live.Puppet(parent) as puppet:
        upper = contain(mounts, puppet, disk, "upper with blanks")
        one = found_pod(cgroup=parent, cgroups={"c": parent})
        before = measure(one, roots).stats
        puppet.do("write('/file', 1)")
        assert (upper / "file").stat().st_size == 1 << 20
        after = measure(one, roots).stats
        assert after.files(["rootfs"], "usedBytes") - before.files(["rootfs"], "usedBytes") == 1 << 20
        assert after.files(["rootfs"], "inodesUsed") - before.files(["rootfs"], "inodesUsed") == 1
        assert after.ephemeral_storage() == after.files(["rootfs"], "usedBytes")
        # An annotation wins.
        put(disk / "named" / "file", PAGE)
        named = found_pod(cgroup=parent, cgroups={"c": parent}, annotations={"outrace/rootfs.c": str(disk / "named")})
        assert measure(named, roots).stats.files(["rootfs"], "inodesUsed") == 2


def test_processes_outside_any_container_have_no_layer(roots: Roots) -> None:
    with live.cgroup("storage") as parent:
        assert upper_directory(parent) is None
        with live.Puppet(parent):
            assert upper_directory(parent) is None
            stats = measure(found_pod(cgroup=parent, cgroups={"c": parent}), roots).stats
            assert (stats.container_storage(), stats.files(["rootfs"], "usedBytes")) == ([], 0)


OVERLAY = "30 1 {device} / / rw - overlay overlay rw,lowerdir=/l{rest}\n"


@pytest.mark.parametrize(
    ("device", "rest", "found"),
    [
        ("0:41", ",upperdir={upper},workdir=/w", True),
        ("0:40", ",upperdir={upper},workdir=/w", False),  # the root of outrace itself: not in a container
        ("0:41", "", False),  # read-only
        ("0:41", ",upperdir=relative", False),
        ("0:41", ",upperdir=/nonexistent/in/this/namespace", False),
    ],
)
def test_which_layers_count(tmp_path: Path, device: str, rest: str, found: bool) -> None:
    # This machine cannot have two roots: the mount tables are written out, the processes are real.
    upper = tmp_path / "upper"
    upper.mkdir()
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountinfo").write_text(
        "1 0 8:1 / / rw - ext4 /dev/vda rw\n" + OVERLAY.format(device="0:40", rest=",upperdir=/own")
    )
    with live.cgroup("storage") as parent, live.Puppet(parent) as puppet:
        (tmp_path / str(puppet.pid)).mkdir()
        (tmp_path / str(puppet.pid) / "mountinfo").write_text(
            OVERLAY.format(device=device, rest=rest.format(upper=upper)) + "31 30 0:5 / /proc rw - proc proc rw\n"
        )
        assert upper_directory(parent, tmp_path) == (upper if found else None)


def test_a_layer_of_a_user_namespace_counts_only_if_it_is_mounted_here_too(tmp_path: Path) -> None:
    """Anybody mounts an overlay in one, and names any directory of the machine as its upper one."""
    upper = tmp_path / "upper"
    upper.mkdir()
    own = "1 0 8:1 / / rw - ext4 /dev/vda rw\n"
    (tmp_path / "self" / "ns").mkdir(parents=True)
    (tmp_path / "self" / "ns" / "user").symlink_to("user:[1]")
    with live.cgroup("storage") as parent, live.Puppet(parent) as puppet:
        (tmp_path / str(puppet.pid) / "ns").mkdir(parents=True)
        (tmp_path / str(puppet.pid) / "mountinfo").write_text(
            OVERLAY.format(device="0:41", rest=f",upperdir={upper},workdir=/w")
        )
        user = tmp_path / str(puppet.pid) / "ns" / "user"
        for namespace, mounted, found in ((1, False, upper), (2, False, None), (2, True, upper)):
            user.unlink(missing_ok=True)
            user.symlink_to(f"user:[{namespace}]")
            runtimes = "40 1 0:41 / /run/containerd/x/rootfs rw - overlay overlay rw\n" if mounted else ""
            (tmp_path / "self" / "mountinfo").write_text(own + runtimes)
            assert upper_directory(parent, tmp_path) == found


def test_annotations_of_a_pod_that_the_kubelet_runs_hide_nothing(roots: Roots, disk: Path, tmp_path: Path) -> None:
    """Whoever wrote the pod named an empty directory, or none: its writable layer and its volumes were not counted."""
    uid = "5c2b2da2-119f-4fa8-8801-c79f0fa869aa"
    put(roots.pods / uid / "volumes" / "kubernetes.io~empty-dir" / "cache" / "file", PAGE)
    (disk / "empty").mkdir()
    notes = {"outrace/volume.cache": str(disk / "empty"), "outrace/rootfs.c": "/nonexistent"}
    spec = pod("a", {"name": "c"}, annotations=notes, volumes=[{"name": "cache", "emptyDir": {}}])
    spec = dataclasses.replace(spec, uid=uid)
    kubelets = FoundPod(spec, tmp_path / f"kubepods/besteffort/pod{uid}", {})
    measured = measure(kubelets, roots)
    assert measured.stats.volumes(["cache"], "usedBytes") >= PAGE
    assert sum("is ignored: the kubelet runs the pod" in problem for problem in measured.problems) == 2
    # Not so where it is somebody's own.
    own = FoundPod(spec, tmp_path / "app", {})
    assert measure(own, roots).stats.volumes(["cache"], "inodesUsed") == 1
