"""Disks and process ids, on real file systems: small tmpfs, ext4 in a file, an overlay."""

import os
import subprocess
import threading
from pathlib import Path

import pytest

from monitor.errors import CannotError, ConfigError, MonitorError
from monitor.kernel import disks
from monitor.kernel.disks import Usage, file_system, find_disks, pid_counts, tree_usage
from tests.commands import run
from tests.descriptors import those_of
from tests.filesystems import Mounts
from tests.waiting import until

MI = 1 << 20


def du(path: Path) -> Usage:
    """What du(1) of the distribution counts."""

    def count(*options: str) -> int:
        command = ["du", "-s", "-x", *options, str(path)]
        return int(run(*command, check=True).stdout.split()[0])

    return Usage(count("--block-size=1"), count("--inodes"))


def test_space_and_inodes_of_a_file_system_as_they_are_taken(mounts: Mounts) -> None:
    disk = mounts.tmpfs("disk", size=4 * MI, inodes=100)
    before = file_system(disk)
    assert (before.capacity, before.available, before.inodes) == (4 * MI, 4 * MI, 100)
    assert before.inodes_free == 99  # one is the root directory
    (disk / "file").write_bytes(bytes(MI))
    assert file_system(disk) == before._replace(available=3 * MI, inodes_free=98)
    assert file_system(disk / "file") == file_system(disk)
    unlimited = file_system(mounts.tmpfs("another", size=MI, inodes=0))  # to tmpfs: no limit
    assert (unlimited.inodes, unlimited.inodes_free, unlimited.capacity) == (None, None, MI)
    with pytest.raises(MonitorError, match=r"measure the file system of .*absent: No such file"):
        file_system(disk / "absent")


def test_space_that_is_root_s_alone_is_not_available(mounts: Mounts) -> None:
    disk = mounts.ext4("disk", 16 * MI, "-m", "20")
    found = os.statvfs(disk)
    here = file_system(disk)
    assert here.available < found.f_bfree * found.f_frsize - here.capacity // 6
    assert here.inodes == found.f_files


def test_tasks_are_counted_threads_too() -> None:
    most, before = pid_counts()
    assert most == min(int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in ("pid_max", "threads-max"))
    go = threading.Event()
    threads = [threading.Thread(target=go.wait) for _ in range(1024)]
    for thread in threads:
        thread.start()
    try:
        # Other tasks of the machine come and go, in other tests some hundred at once, which may be there before.
        until(lambda: pid_counts()[1] > before + 128, "their number")
    finally:
        go.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(("loadavg", "most"), [("0 0 0 1/80 7", ""), ("0 0 0", "9"), ("0 0 0 180 7", "9")])
def test_what_is_no_proc_is_reported(tmp_path: Path, loadavg: str, most: str) -> None:
    kernel = tmp_path / "sys" / "kernel"
    kernel.mkdir(parents=True)
    for name in ("pid_max", "threads-max"):
        (kernel / name).write_text(most)
    (tmp_path / "loadavg").write_text(loadavg)
    with pytest.raises(CannotError, match=r"cannot count the tasks.*mount procfs") as error:
        pid_counts(tmp_path)
    assert "\n" not in str(error.value)


def test_the_layouts(mounts: Mounts) -> None:
    node, image = (mounts.tmpfs(name, size=MI) for name in ("node", "image"))
    (node / "below").mkdir()
    assert find_disks(node, node / "below") == (node, node / "below", False)
    assert find_disks(node, image) == (node, image, True)
    for option in ("nodefs", "imagefs"):
        with pytest.raises(ConfigError, match=f"--{option} {node}/absent: No such file.*; name a directory that"):
            find_disks(**{option: str(node / "absent")})


def test_where_nothing_is_named_the_usual_directories_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that only root may look into is passed over: /var/lib/containers of podman has mode 0700."""
    kubelet, first, second = (tmp_path / name for name in ("kubelet", "containerd", "docker"))
    monkeypatch.setattr(disks, "KUBELET", kubelet)
    monkeypatch.setattr(disks, "RUNTIMES", (first, second))
    assert find_disks()[:2] == (Path("/"), Path("/"))
    second.mkdir()
    assert find_disks()[:2] == (Path("/"), second)
    first.mkdir()
    kubelet.mkdir()
    assert find_disks() == (kubelet, first, False)
    monkeypatch.setattr(disks, "RUNTIMES", (first / "storage", Path("/usr")))
    (first / "storage").mkdir()
    first.chmod(0o700)
    os.seteuid(65534)
    try:
        assert find_disks("/").imagefs == Path("/usr")
    finally:
        os.seteuid(0)


def test_a_tree_takes_what_du_counts(mounts: Mounts) -> None:
    tree = mounts.ext4("disk", 16 * MI) / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "big").write_bytes(bytes(100_001))
    (tree / "small").write_bytes(b"x")
    (tree / "empty").touch()
    with open(tree / "holes", "wb") as file:
        file.truncate(1 << 30)
    os.mkfifo(tree / "fifo")
    (tree / "many").mkdir()
    for i in range(600):
        (tree / "many" / f"{i:0100}").touch()  # a directory of several blocks
    os.link(tree / "a" / "big", tree / "a" / "b" / "the same")
    (tree / "dangling").symlink_to("nowhere")
    (tree / "long").symlink_to("x" * 200)  # a link with a block of its own
    assert (tree_usage(tree), tree_usage(tree / "holes")) == (du(tree), Usage(0, 1))


def test_other_file_systems_below_and_links_out_do_not_count(mounts: Mounts) -> None:
    tree = mounts.tmpfs("disk", size=MI)
    other = mounts.tmpfs("disk/other", size=MI)
    (other / "file").write_bytes(bytes(8192))
    (tree / "link").symlink_to(other)
    (tree / "file").write_bytes(bytes(4096))
    assert tree_usage(tree) == Usage(4096, 3)
    assert tree_usage(tree / "link") == Usage(0, 1)  # a tree that is a link is only that
    assert (tree_usage(tree / "absent"), tree_usage(tree / "file" / "below")) == (None, None)


def test_a_tree_that_is_taken_down_meanwhile(mounts: Mounts) -> None:
    tree = mounts.tmpfs("disk", size=MI) / "tree"
    for i in range(40):
        (tree / f"{i}" / "x" / "y").mkdir(parents=True)

    def stop() -> bool:
        # The first look at the stop flag is after 40 entries or so: the walk knows the names, and they vanish.
        subprocess.run(["rm", "-r", tree], check=True)
        return False

    found = tree_usage(tree, most_entries=256 + 30, stop=stop)
    assert 1 <= found.inodes <= 31
    assert not tree.exists()


def test_a_directory_that_becomes_a_link_meanwhile_is_not_followed(mounts: Mounts) -> None:
    disk = mounts.tmpfs("disk", size=MI)
    tree, secret = disk / "tree", disk / "secret"
    secret.mkdir()
    for i in range(50):
        (secret / f"{i}").touch()
    for name in ("a", "b"):
        (tree / name).mkdir(parents=True)

    def swap() -> bool:
        for name in ("a", "b"):
            (tree / name).rmdir()
            (tree / name).symlink_to(secret)
        return False

    # The flag is looked at while 256 entries are left: after "a", before "b".
    assert tree_usage(tree, most_entries=257, stop=swap) == Usage(0, 3)


def test_a_walk_that_must_end_is_not_complete(mounts: Mounts) -> None:
    tree = mounts.tmpfs("disk", size=MI)
    for i in range(600):
        (tree / f"{i}").touch()
    assert tree_usage(tree, most_entries=600) == Usage(0, 601)
    assert tree_usage(tree, most_entries=599) == Usage(0, 600, complete=False)
    stopped = tree_usage(tree, stop=lambda: True)
    late = tree_usage(tree, deadline_s=0)
    for found in (stopped, late):
        assert not found.complete
        assert found.inodes <= 257


def test_a_tree_too_deep_for_descriptors_is_counted_as_far_as_they_go(mounts: Mounts) -> None:
    tree = mounts.tmpfs("disk", size=MI)
    deepest = tree.joinpath(*["d"] * 300)
    deepest.mkdir(parents=True)
    assert tree_usage(tree) == Usage(0, 257, complete=False)
    assert those_of(str(tree)) == 0


def test_what_a_walk_remembers_is_bounded(mounts: Mounts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "_MOST_REMEMBERED", 10)
    tree = mounts.tmpfs("disk", size=MI)
    for i in range(20):
        (tree / f"{i}").mkdir()
    (tree / "0" / "a").touch()
    os.link(tree / "0" / "a", tree / "0" / "b")
    found = tree_usage(tree)
    assert not found.complete
    assert 21 <= found.inodes <= 22
