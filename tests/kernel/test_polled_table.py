"""The table filled from files has what the files have, cgroup by cgroup, and of the machine what the kernel counts."""

import shutil
from pathlib import Path

import pytest

from monitor.kernel import cgroupfs
from monitor.kernel.domains import POD
from monitor.kernel.wire import PAGE
from monitor.sources import polled_table
from monitor.sources.polled_table import PolledSweeper, PolledTable
from tests import live
from tests.limited import write

pytestmark = pytest.mark.kernel
MIB = live.MIB
HIERARCHY = cgroupfs.detect()


#: Files in place of a hierarchy: when the kernel's own fall behind depends on what two CPUs do within nanoseconds.
_FILES = {
    1: ("memory.usage_in_bytes", "total_cache {file}\ntotal_rss {anon}\ntotal_inactive_file {inactive}"),
    2: ("memory.current", "anon {anon}\nfile {file}\nkernel {kernel}\nzswap {kernel}\ninactive_file {inactive}"),
}


def write_cgroup(path: Path, version: int, usage: int, anon: int, inactive: int, kernel: int = 0) -> Path:
    """A directory that looks like a cgroup with so many MiB, its page cache inactive; on v2 what the kernel has is
    zswap's, which it counts twice. v1 does not say what it has.
    """
    name, text = _FILES[version]
    stat = text.format(anon=anon * MIB, file=inactive * MIB, inactive=inactive * MIB, kernel=kernel * MIB)
    return write(path, {name: usage * MIB, "memory.stat": f"first 0\n{stat}"})


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("anon", "inactive", "kernel", "leaf", "ceiling", "found"),
    [
        (60, 0, 0, 80, 128, 80),  # nothing of 80 MiB is known: seen on Linux 6.18
        (60, 60, 0, 80, 70, 80),
        (60, 60, 0, 80, 100, 60),  # 20 MiB are not known, but it is below its threshold with them
        (140, 0, 0, 80, 128, 0),  # all is known: no cgroup below is read
        (60, 0, 80, 80, 128, 0),  # likewise, the kernel's own
        (20, 0, 60, 80, 128, 80),  # counted twice, zswap's 60 MiB would hide what is not known
        (139, 0, 0, 80, 139, 0),  # no more than what CPUs have charged ahead is not known
        (130, 0, 0, 80, 128, 0),  # above its threshold without what is not known
        (60, 0, 0, 0, 128, 0),  # those below know nothing either
    ],
)
def test_what_a_parent_does_not_count_yet_its_children_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, anon: int, inactive: int, kernel: int, leaf: int,
    ceiling: int, found: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(polled_table, "_AHEAD", MIB)  # as with 2 CPUs
    table = PolledTable(cgroupfs.Hierarchy(version=version, root=tmp_path))
    node = table.add(1, path=write_cgroup(tmp_path / "node", version, 140, anon, inactive, kernel))
    kubepods = table.add(2, path=write_cgroup(tmp_path / "node/kubepods", version, 140, anon, inactive, kernel))
    table.add(3, step=1, path=write_cgroup(tmp_path / "node/kubepods/pod", version, 140, anon, inactive))
    table.add(4, path=write_cgroup(tmp_path / "node/kubepods/pod/container", version, 140, 60, leaf))
    table.add(5, path=write_cgroup(tmp_path / "node/kubepods/other", version, 0, 0, 0))
    for at in (node, kubepods):
        table.set_ceilings(at, [ceiling * MIB // PAGE])
    for files in table:
        table.read_usage(files)
    table.read_stat(table.files(node))
    assert table.reading(node).inactive_file == (leaf if version == 1 and kernel else found) * MIB
    table.remove(4)  # it is not asked any more
    write_cgroup(tmp_path / "node/kubepods/pod", version, 140, anon, inactive)
    table.read_stat(table.files(node))
    assert table.reading(node).inactive_file == inactive * MIB
    table.reset()


def test_what_a_cgroup_had_that_is_gone_is_not_its_parents(tmp_path: Path) -> None:
    table = PolledTable(HIERARCHY)
    with live.cgroup("soft-parent") as path:
        child = path / "child"
        cgroupfs.make(child)
        at = table.add(cgroupfs.cgroup_id(path), path=path)
        left = table.add(cgroupfs.cgroup_id(child), path=child)
        with live.Puppet(child) as puppet:
            puppet.do(f"write({str(tmp_path / 'cache')!r}, 16)")
            # The kernel may bring the files up to date between the reads of the parent's and of the child's.
            live.until(
                lambda: (
                    PolledSweeper(table).run()
                    and min(table.reading(index).inactive_file for index in (left, at)) >= 15 * MIB
                ),
                "page cache",
            )
            (tmp_path / "cache").unlink()
        child.rmdir()
        live.until(lambda: PolledSweeper(table).run() and table.reading(at).inactive_file < 4 * MIB, "it to be gone")
        assert table.reading(left).inactive_file >= 15 * MIB, "what was read last"
    table.reset()


def test_those_without_children_are_read_in_turn(tmp_path: Path) -> None:
    table = PolledTable(cgroupfs.Hierarchy(version=2, root=tmp_path))
    table.refresh_a_leaf()
    table.add(1, path=write_cgroup(tmp_path / "node", 2, 100, 0, 50))
    leaves = [table.add(n, path=write_cgroup(tmp_path / f"node/{n}", 2, 50, 0, 25)) for n in (2, 3)]
    for left in (1, 0):
        table.refresh_a_leaf()
        assert sum(table.reading(at).inactive_file == 0 for at in leaves) == left
    PolledSweeper(table).reread()
    assert [table.reading(at).usage // MIB for at in (0, *leaves)] == [100, 50, 50]
    assert table.reading(0).inactive_file == 0, "rereading is of usage only"
    table.reset()


def test_the_cgroup_around_a_path_is_the_nearest_watched_one_also_when_it_is_gone(tmp_path: Path) -> None:
    table = PolledTable(cgroupfs.Hierarchy(version=2, root=tmp_path))
    node = table.add(1, path=write_cgroup(tmp_path / "node", 2, 100, 0, 50))
    pod = table.add(2, flags=POD, path=write_cgroup(tmp_path / "node/pod", 2, 50, 0, 25))
    shutil.rmtree(tmp_path / "node/pod")
    inner, beside = tmp_path / "node/pod/c0/deeper", tmp_path / "node/podx"
    assert [table.around(path) for path in (inner, beside, tmp_path, None)] == [pod, node, None, None]
    assert [table.is_pod(at) for at in (node, pod)] == [False, True]
    table.reset()
