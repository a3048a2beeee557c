"""What a pod takes: real directories, real processes in real cgroups, a real container root on an overlay."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from monitor.kernel import cgroupfs
from monitor.pods.model import FoundPod
from monitor.pods.storage import Measured, Roots, limited, measure, process_count, process_stats
from monitor.policy.layout import SINGLE_DISK, DiskLayout
from monitor.policy.local_storage import storage_violation
from monitor.policy.stats import PodStats
from monitor.policy.victims import disk_usage
from tests import live
from tests.filesystems import Mounts
from tests.pods.disk import PAGE, by_container, found_pod, put
from tests.pods.disk import disk as disk
from tests.pods.disk import roots as roots
from tests.policy.builders import container, pod

# --- logs and volumes of a kubelet ---------------------------------------------------------------------------------


def test_logs_of_each_container(roots: Roots) -> None:
    logs = roots.logs / "ns_a_uid-a"
    put(logs / "c" / "0.log", 3 * PAGE)
    put(logs / "c" / "1.log", PAGE)
    put(logs / "first" / "0.log", PAGE)
    put(logs / "gone" / "0.log", PAGE)  # an ephemeral container, say
    put(logs / "pod.log", PAGE)
    put(roots.logs / "ns_b_uid-b" / "c" / "0.log", 9 * PAGE)
    found = measure(found_pod(initContainers=[{"name": "first"}]), roots)
    assert by_container(found.stats, "logs", "usedBytes") == {"c": 4 * PAGE, "first": PAGE, "gone": PAGE}
    assert by_container(found.stats, "logs", "inodesUsed") == {"c": 3, "first": 2, "gone": 2}
    assert found.stats.ephemeral_storage() == 7 * PAGE
    assert found.complete
    assert found.problems == ()


def test_a_pod_known_by_its_uid_alone_has_logs_too(roots: Roots) -> None:
    put(roots.logs / "kube-system_dns_uid-a" / "c" / "0.log", PAGE)
    put(roots.logs / "kube-system_dns_uid-aa" / "c" / "0.log", 2 * PAGE)
    assert measure(found_pod(namespace=""), roots).stats.files(["logs"], "usedBytes") == PAGE


def test_volumes_of_every_kind(mounts: Mounts, roots: Roots) -> None:
    volumes = roots.pods / "uid-a" / "volumes"
    for plugin, name in (
        ("empty-dir", "scratch"),
        ("configmap", "settings"),
        ("secret", "key"),
        ("nfs", "share"),  # somebody else's disk, never touched
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
    assert disk_usage(one.pod, stats, "nodefs.available", SINGLE_DISK) == 2 * PAGE
    assert disk_usage(one.pod, stats, "nodefs.inodesFree", SINGLE_DISK) == 4
    assert storage_violation(one.pod, stats, SINGLE_DISK) == (
        'Usage of EmptyDir volume "memory" exceeds the limit "16Ki". '
    )


# --- annotations of a plain VM -------------------------------------------------------------------------------------


def test_directories_named_by_annotations(roots: Roots, disk: Path) -> None:
    put(disk / "layer" / "etc" / "file", 3 * PAGE)
    put(disk / "data" / "file", 2 * PAGE)
    put(disk / "shared" / "file", PAGE)
    (disk / "link").symlink_to("data")
    put(roots.pods / "uid-a" / "volumes" / "kubernetes.io~empty-dir" / "v" / "file", 9 * PAGE)
    one = found_pod(
        container("x", limits={"ephemeral-storage": str(3 * PAGE - 1)}),
        container("y"),
        annotations={
            "outrace/rootfs.x": str(disk / "layer"),
            "outrace/volume.v": str(disk / "link"),
            "outrace/volume.h": str(disk / "shared"),
        },
        volumes=[{"name": "v", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/shared"}}],
    )
    found = measure(one, roots)
    assert found.problems == ()
    assert by_container(found.stats, "rootfs", "usedBytes") == {"x": 3 * PAGE, "y": 0}
    assert found.stats.volumes_used() == {"v": 2 * PAGE, "h": PAGE}
    assert found.stats.ephemeral_storage() == 5 * PAGE  # what is shared with the node is not the pod's own
    assert disk_usage(one.pod, found.stats, "nodefs.available", SINGLE_DISK) == 6 * PAGE
    assert disk_usage(one.pod, found.stats, "imagefs.available", DiskLayout(image_fs=True)) == 3 * PAGE
    # The pod's limit is that of its one limited container; it is looked at first.
    assert storage_violation(one.pod, found.stats, SINGLE_DISK) == (
        "Pod ephemeral local storage usage exceeds the total limit of containers 12287. "
    )


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("outrace/rootfs.c", "layer", "'layer' is not an absolute path; name the absolute path of one that exists"),
        ("outrace/volume.v", "/etc/passwd", "no directory '/etc/passwd'; name"),
        ("outrace/volume.v", "/\0", "no directory"),
        ("outrace/rootfs.d", "/", "the pod has no such container; correct the name"),
        ("outrace/volume.w", "/", "the pod has no such volume; correct the name"),
    ],
)
def test_bad_annotations_are_one_line_each(roots: Roots, key: str, value: str, expected: str) -> None:
    one = found_pod(annotations={key: value}, volumes=[{"name": "v", "emptyDir": {}}])
    [problem] = measure(one, roots).problems
    assert problem.startswith(f"pod ns/a: metadata.annotations[{key}]: ")
    assert expected in problem
    assert "\n" not in problem


# --- processes -----------------------------------------------------------------------------------------------------


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


# --- how often -----------------------------------------------------------------------------------------------------


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
    assert (whole.complete, cut.complete) == (True, False)
    assert cut.stats.files(["logs"], "inodesUsed") < whole.stats.files(["logs"], "inodesUsed") == 601
    [problem] = cut.problems
    assert problem.startswith(f"pod ns/a: {roots.logs}/ns_a_uid-a/c has more files than can be counted")


LIMIT = {"ephemeral-storage": "1Gi"}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, False),
        ({"volumes": [{"name": "v", "emptyDir": {}}]}, False),
        ({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "0"}}]}, False),
        ({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1", "medium": "Memory"}}]}, True),
        ({"initContainers": [container("i", limits=LIMIT)]}, True),
    ],
)
def test_which_pods_have_limits(spec: dict[str, Any], expected: bool) -> None:
    one = pod("a", **spec)
    assert [limited(one), limited(one)] == [expected] * 2
    assert limited(pod("b", container(limits=LIMIT), **spec))
    # A pod that is never measured must be one that can never be in violation.
    if not expected:
        full = {"volume": [{"name": "v", "usedBytes": 2**40}], "ephemeral-storage": {"usedBytes": 2**40}}
        assert storage_violation(one, PodStats(full), SINGLE_DISK) is None


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
            [walked] = measure(FoundPod(pod("b"), Path("/nonexistent"), {}), Roots(logs)).problems
        finally:
            os.seteuid(0)
    ending = ": Permission denied; what it holds is not counted"
    assert listed == f"pod ns/a: cannot list {directory}{ending}"
    assert walked == f"pod ns/b: cannot count the files below {logs}/ns_b_uid-b/c{ending}"
