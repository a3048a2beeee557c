"""The daemon on a full disk with a real runtime: it is cleaned up first, looked at again, and only then a pod goes."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.lab.node import LabNode, LabPod
from tests import live
from tests.commands import run
from tests.daemon.hot_node import hot_node
from tests.deploy.test_capabilities import only
from tests.filesystems import Mounts
from tests.runtimes import images, podman
from tests.runtimes.podman import Podman

pytestmark = [pytest.mark.kernel, pytest.mark.once]
MI = 1 << 20
HOLDER, USED, DEAD, OLD = "localhost/holder:1", "localhost/used:1", "localhost/dead:1", "localhost/old:1"
IMAGES = "DeleteUnusedImages"


node = live.fixture(hot_node)


@pytest.fixture
def runtime(tmp_path: Path, pause: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Podman]:
    """On a disk of 64 MiB: a container that runs, one that ended and left 8 MiB and 200 files, an unused image."""
    podman.check()
    with Mounts() as mounts, podman.parent_cgroup() as parent:
        store = mounts.ext4("store", 64 * MI, "-N", "2048")
        with Podman(store, tmp_path / "r", parent, monkeypatch) as made:
            for name, size, files in ((HOLDER, 0, 0), (USED, MI, 0), (DEAD, 2 * MI, 0), (OLD, 6 * MI, 300)):
                made.load(images.archive(tmp_path / "image.tar", name, pause, size, files))
            made.run("web", USED)
            made.run("job", DEAD, "8", "200")
            yield made


def with_files(node: LabNode, runtime: Podman, mib: int, files: int) -> LabPod:
    """A pod whose emptyDir on that disk holds so much."""
    pod = node.add_pod("writer")
    directory = runtime.base / "pods" / pod.uid / "volumes/kubernetes.io~empty-dir/scratch"
    directory.mkdir(parents=True)
    (directory / "file").write_bytes(bytes(mib * MI))
    for number in range(files):
        (directory / str(number)).touch()
    manifest = json.loads(pod.manifest.read_text())
    manifest["spec"]["volumes"] = [{"name": "scratch", "emptyDir": {}}]
    pod.manifest.write_text(json.dumps(manifest))
    return pod


def options(runtime: Podman, threshold: str, *more: str) -> tuple[str, ...]:
    disk = ("--nodefs", str(runtime.base), "--imagefs", str(runtime.base))
    return (*disk, "--reclaim-images", "podman", "--eviction-hard", threshold, *more)


def free(runtime: Podman, inodes: bool) -> int:
    seen = os.statvfs(runtime.base)
    return seen.f_ffree if inodes else seen.f_bavail * seen.f_frsize


@pytest.mark.parametrize(
    ("enough", "inodes"),
    [
        ("enough", False),
        ("too little", False),
        ("less than min reclaim", False),
        ("enough", True),
        ("too little", True),
    ],
)
def test_a_full_disk(node: LabNode, runtime: Podman, tmp_path: Path, enough: str, inodes: bool) -> None:
    """Unused images go first; then all thresholds are looked at again."""
    pod = with_files(node, runtime, 1, 10)
    process = node.start_hog(pod, mib=1)
    now = free(runtime, inodes)
    # The image that nothing uses is worth 6 MiB and 300 files; all that is there less than 36 MiB and 1,000 files.
    line = now + ((1000 if inodes else 36 * MI) if enough == "too little" else (100 if inodes else 4 * MI))
    signal = "nodefs.inodesFree" if inodes else "nodefs.available"
    more = ["--enforce"]
    if enough == "less than min reclaim":
        more += ["--eviction-minimum-reclaim", f"{signal}=30Mi"]
    with live.daemon(node, *options(runtime, f"{signal}<{line}", *more), state_dir=tmp_path / "state") as daemon:
        asked = live.message(daemon, "cleaning up the node before a pod is evicted")
        assert asked["actions"] == [IMAGES]
        done = live.message(daemon, "clean-up done", action=IMAGES)
        assert done["command"] == "podman image prune --all --force"
        if enough == "enough":
            met = f'threshold_met{{kind="hard",signal="{signal}"}}'
            live.until(lambda: live.metric(daemon, met) == 0, "the threshold clear")
            assert live.metric(daemon, f'reclaim_runs_total{{action="{IMAGES}",result="done"}}') == 1
        else:
            evicting = live.message(daemon, "evicting", signal=signal)
            assert daemon.log.index(evicting) > daemon.log.index(done)
            live.ends(process.pid)
        live.ended(daemon)
        assert len(live.messages(daemon, "evicting")) == (enough != "enough")
    assert live.alive(process.pid) == (enough == "enough")
    assert runtime.names() == {"web", "job"}
    assert runtime.image_names() == {USED, DEAD}


def test_podman_removes_whole_layers_with_the_capabilities_of_the_unit(runtime: Podman) -> None:
    """Without CAP_FOWNER it removes half of a layer, and then not even lists what is left."""
    unit = (live.ROOT / "deploy/systemd/outrace.service").read_text()
    (names,) = re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)
    runtime.run("mine", DEAD, "1", "5")
    mounted = Path(runtime("mount", "mine"))
    (mounted / "tmp").mkdir()
    (mounted / "tmp").chmod(0o1777)
    (mounted / "tmp" / "file").touch()
    for path in (mounted / "tmp" / "file", mounted / "tmp"):
        os.chown(path, 12345, 12345)
    runtime("umount", "mine")
    rights = only(*(name.removeprefix("CAP_") for name in names.split()))
    done = run(*rights, "setpriv", "--no-new-privs", "podman", "container", "prune", "--force")
    assert done.returncode == 0, done.stdout + done.stderr
    assert runtime.names() == {"web"}


def test_a_clean_up_that_fails_keeps_no_pod(node: LabNode, tmp_path: Path) -> None:
    """One line in the log, and the pass goes on."""
    with Mounts() as mounts:
        disk = mounts.tmpfs("nodefs", 64 * MI)
        process = node.start_hog(node.add_pod("pod"), mib=1)
        (disk / "file").write_bytes(bytes(30 * MI))
        command = "sh -c 'echo no such runtime >&2; exit 7'"
        chosen = ("--nodefs", str(disk), "--imagefs", str(disk), "--reclaim-images", command)
        threshold = ("--eviction-hard", "nodefs.available<40Mi", "--enforce")
        with live.daemon(node, *chosen, *threshold, state_dir=tmp_path / "state") as daemon:
            failed = live.message(daemon, "clean-up failed", action=IMAGES)
            assert (failed["status"], failed["output"]) == (7, "no such runtime")
            said = live.message(daemon, "evicting", signal="nodefs.available")["message"]
            assert said.startswith("The node was low on resource: ephemeral-storage. Threshold quantity: 40Mi")
            live.ends(process.pid)
            live.ended(daemon)
