"""What a pod takes: real directories, real processes in real cgroups, a real container root on an overlay."""

import os
import time
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from monitor.kernel import cgroupfs
from monitor.pods.model import FoundPod
from monitor.pods.storage import Measured, Roots, measure, process_count, process_stats, upper_directory
from monitor.policy.kubelet_pass import storage_violation
from monitor.policy.layout import SINGLE_DISK
from monitor.policy.stats import PodStats
from monitor.policy.victims import usage
from tests import live
from tests.filesystems import Mounts
from tests.policy.builders import pod

pytestmark = [pytest.mark.live, pytest.mark.once]
KI = 1024
#: A tmpfs counts whole pages and nothing for directories: what is written is what is counted.
PAGE = 4 * KI


@pytest.fixture
def disk(mounts: Mounts) -> Path:
    return mounts.tmpfs("disk", size=4 << 20)


@pytest.fixture
def roots(disk: Path) -> Roots:
    found = Roots(disk / "log", disk / "pods")
    for path in found:
        path.mkdir()
    return found


def found_pod(
    name: str = "a", cgroup: Path = Path("/nonexistent"), cgroups: Mapping[str, Path] | None = None, **spec: Any
) -> FoundPod:
    return FoundPod(pod(name, **spec), cgroup, cgroups or {})


def put(path: Path, size: int) -> Path:
    """A file of ``size`` bytes, and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    return path


def files(stats: PodStats, kind: str, key: str) -> int:
    """Of all containers."""
    return sum(dict(stats.files_each([kind], key)).values())


def test_logs_of_each_container(roots: Roots) -> None:
    logs = roots.logs / "ns_a_uid-a"
    put(logs / "c" / "0.log", 3 * PAGE)
    put(logs / "c" / "1.log", PAGE)
    put(logs / "first" / "0.log", PAGE)
    put(logs / "gone" / "0.log", PAGE)  # an ephemeral container, say
    put(logs / "pod.log", PAGE)
    put(roots.logs / "ns_b_uid-b" / "c" / "0.log", 9 * PAGE)
    found = measure(found_pod(initContainers=[{"name": "first"}]), roots)
    assert dict(found.stats.files_each(["logs"], "usedBytes")) == {"c": 4 * PAGE, "first": PAGE, "gone": PAGE}
    assert dict(found.stats.files_each(["logs"], "inodesUsed")) == {"c": 3, "first": 2, "gone": 2}
    assert found.stats.ephemeral_storage() == 7 * PAGE
    assert found.problems == ()


def test_volumes_of_every_kind(mounts: Mounts, roots: Roots) -> None:
    volumes = roots.pods / "uid-a" / "volumes"
    for plugin, name in (
        ("empty-dir", "scratch"),
        ("configmap", "settings"),
        ("secret", "key"),
        ("nfs", "share"),  # another machine's disk, never touched
    ):
        put(volumes / f"kubernetes.io~{plugin}" / name / "file", PAGE)
    put(roots.pods / "uid-a" / "plugins" / "file", PAGE)
    (volumes / "kubernetes.io~empty-dir" / "link").symlink_to(roots.pods / "uid-a" / "plugins")  # counts nothing
    memory = mounts.tmpfs("disk/pods/uid-a/volumes/kubernetes.io~empty-dir/memory", size=1 << 20)
    put(memory / "file", 5 * PAGE)
    declared = [
        {"name": "scratch", "emptyDir": {}},
        {"name": "settings", "configMap": {"name": "settings"}},
        {"name": "key", "secret": {"secretName": "key"}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "16Ki"}},
        {"name": "share", "nfs": {}},
        *({"name": name, "emptyDir": {}} for name in ("absent", "link")),
        {"name": "host", "hostPath": {"path": "/"}},
    ]
    expected = {"memory": 5 * PAGE, "scratch": PAGE, "settings": PAGE, "key": PAGE}
    for one in (found_pod(volumes=declared), found_pod()):
        stats = measure(one, roots).stats
        assert stats.volumes_used() == expected
        assert stats.ephemeral_storage() == 2 * PAGE  # neither what is in memory nor a secret, which is too
    one = found_pod(volumes=declared)
    stats = measure(one, roots).stats
    assert usage(one.pod, stats, "nodefs.available", SINGLE_DISK) == 2 * PAGE
    assert usage(one.pod, stats, "nodefs.inodesFree", SINGLE_DISK) == 4
    assert storage_violation(one.pod, stats, SINGLE_DISK) == (
        'Usage of EmptyDir volume "memory" exceeds the limit "16Ki". '
    )


def test_processes_of_the_containers_or_of_the_whole_pod(roots: Roots) -> None:
    with live.cgroup("storage") as parent:
        inside, sandbox = (cgroupfs.make(parent / name) for name in ("c", "pause"))
        nested = inside / "nested"
        nested.mkdir()  # without controllers: on v2 a cgroup that hands them down has no processes of its own
        with live.Puppet(inside) as first, live.Puppet(nested), live.Puppet(sandbox):
            first.do("threading.Thread(target=time.sleep, args=(600,), daemon=True).start()")  # no process
            both = found_pod(cgroup=parent, cgroups={"c": inside, "nested": nested})
            assert (process_count(both), process_count(found_pod(cgroup=parent))) == (2, 3)
            assert process_stats(both).processes() == 2
            assert measure(both, roots).stats.processes() == 2
        assert process_count(both) == 0


@pytest.mark.parametrize(
    ("took_s", "urgent", "rest_s"), [(0, False, 60), (0, True, 10), (1.5, True, 15), (6.5, False, 65), (90, True, 900)]
)
def test_a_pod_rests_ten_times_as_long_as_it_took(took_s: float, urgent: bool, rest_s: float) -> None:
    assert Measured(PodStats({}), took_s, 1000.0).due_s(urgent) == 1000 + rest_s


def test_a_measurement_is_dated_and_stops_when_asked(roots: Roots) -> None:
    for i in range(600):
        put(roots.logs / "ns_a_uid-a" / "c" / f"{i}", 0)
    before = time.monotonic()
    whole = measure(found_pod(), roots)
    assert before <= whole.at_s - whole.took_s
    assert whole.at_s <= time.monotonic()
    cut = measure(found_pod(), roots, stop=lambda: True)
    assert whole.problems == ()
    assert files(cut.stats, "logs", "inodesUsed") < files(whole.stats, "logs", "inodesUsed") == 601
    [problem] = cut.problems
    assert problem.startswith(f"pod ns/a: {roots.logs}/ns_a_uid-a/c has more files than can be counted")


def test_a_directory_that_cannot_be_listed_is_reported() -> None:
    with Mounts() as mounts:
        mounts.directory.chmod(0o755)
        logs = mounts.tmpfs("log", size=1 << 20)
        directory = logs / "ns_a_uid-a"
        put(directory / "c" / "0.log", PAGE)
        put(logs / "ns_b_uid-b" / "c" / "0.log", PAGE)
        directory.chmod(0o700)
        (logs / "ns_b_uid-b" / "c").chmod(0o700)
        os.seteuid(65534)
        try:
            [listed] = measure(found_pod(), Roots(logs)).problems
            [walked] = measure(found_pod("b"), Roots(logs)).problems
        finally:
            os.seteuid(0)
    ending = ": Permission denied; what it holds is not counted"
    assert listed == f"pod ns/a: cannot list {directory}{ending}"
    assert walked == f"pod ns/b: cannot count the files below {logs}/ns_b_uid-b/c{ending}"


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


def test_the_writable_layer_of_a_container(mounts: Mounts, roots: Roots) -> None:
    disk = mounts.ext4("real", 16 << 20)
    lower, upper, work = (disk / name for name in ("lower", "upper with blanks", "work"))
    for path in (lower, upper, work):
        path.mkdir()
    root = mounts.overlay("root", lower, upper, work)
    with live.cgroup("storage") as parent, live.Puppet(parent) as puppet:
        puppet.do(PIVOT.format(root=root))
        one = found_pod(cgroup=parent, cgroups={"c": parent})
        before = measure(one, roots).stats
        puppet.do("write('/file', 1)")
        assert (upper / "file").stat().st_size == 1 << 20
        after = measure(one, roots).stats
        assert files(after, "rootfs", "usedBytes") - files(before, "rootfs", "usedBytes") == 1 << 20
        assert files(after, "rootfs", "inodesUsed") - files(before, "rootfs", "inodesUsed") == 1
        assert after.ephemeral_storage() == files(after, "rootfs", "usedBytes")


@pytest.fixture
def upper(tmp_path: Path) -> Path:
    """The upper directory of an overlay."""
    (tmp_path / "upper").mkdir()
    return tmp_path / "upper"


def mount_table(proc: Path, pid: object, *lines: str) -> None:
    """What the process has mounted, in the place of /proc."""
    (proc / str(pid)).mkdir(exist_ok=True)
    (proc / str(pid) / "mountinfo").write_text("".join(lines))


ROOT = "1 0 8:1 / / rw - ext4 /dev/vda rw\n"
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
def test_which_layers_count(tmp_path: Path, upper: Path, device: str, rest: str, found: bool) -> None:
    # This machine cannot have two roots: the mount tables are written out, the processes are real.
    mount_table(tmp_path, "self", ROOT, OVERLAY.format(device="0:40", rest=",upperdir=/own"))
    with live.cgroup("storage") as parent, live.Puppet(parent) as puppet:
        row = OVERLAY.format(device=device, rest=rest.format(upper=upper))
        mount_table(tmp_path, puppet.pid, row, "31 30 0:5 / /proc rw - proc proc rw\n")
        assert upper_directory(parent, tmp_path) == (upper if found else None)


def test_a_process_with_endless_mounts_is_passed_over_and_costs_little(tmp_path: Path, upper: Path) -> None:
    """Any user makes 100,000 with paths of 4 KiB: as a list they took the memory of the daemon's own cgroup."""
    mount_table(tmp_path, "self", ROOT)
    row = OVERLAY.format(device="0:41", rest=f",upperdir={upper},workdir=/w")
    many = f"31 30 0:5 / /{'x' * 4000} rw - tmpfs none rw\n" * 10_000
    with live.cgroup("storage") as parent, live.Puppet(parent) as one, live.Puppet(parent) as other:
        mount_table(tmp_path, one.pid, row, many)
        mount_table(tmp_path, other.pid, row)
        tracemalloc.start()
        found = upper_directory(parent, tmp_path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert found == upper
    assert peak < 2 << 20


def test_a_layer_of_a_user_namespace_counts_only_if_it_is_mounted_here_too(tmp_path: Path, upper: Path) -> None:
    """Anybody mounts an overlay in one, and names any directory of the machine as its upper one."""
    (tmp_path / "self" / "ns").mkdir(parents=True)
    (tmp_path / "self" / "ns" / "user").symlink_to("user:[1]")
    with live.cgroup("storage") as parent, live.Puppet(parent) as puppet:
        (tmp_path / str(puppet.pid) / "ns").mkdir(parents=True)
        mount_table(tmp_path, puppet.pid, OVERLAY.format(device="0:41", rest=f",upperdir={upper},workdir=/w"))
        user = tmp_path / str(puppet.pid) / "ns" / "user"
        for namespace, mounted, found in ((1, False, upper), (2, False, None), (2, True, upper)):
            user.unlink(missing_ok=True)
            user.symlink_to(f"user:[{namespace}]")
            runtimes = "40 1 0:41 / /run/containerd/x/rootfs rw - overlay overlay rw\n" if mounted else ""
            mount_table(tmp_path, "self", ROOT, runtimes)
            assert upper_directory(parent, tmp_path) == found
