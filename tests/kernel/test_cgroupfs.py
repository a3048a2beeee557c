"""Cgroup files: a literal tree where the layout of v2 matters, real child cgroups where the kernel does."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.errors import CannotError, ConfigError, MonitorError
from monitor.kernel import cgroup_procs, cgroupfs, meminfo, oom_candidates, procfs
from monitor.kernel.cgroupfs import Hierarchy, Reading
from monitor.kernel.procfs import Process
from monitor.kernel.wire import PAGE
from tests import live
from tests.filesystems import nested
from tests.limited import UNLIMITED, write
from tests.puppet import cgroup

MI = 1 << 20


def _fake_v2(path: Path, stat: dict[str, int], current: int | None = None, limit: str | None = None) -> Path:
    files: dict[str, int | str | None] = {"memory.current": current, "memory.max": limit}
    files |= {"cgroup.controllers": "cpu memory", "cgroup.subtree_control": "memory"}
    files["memory.stat"] = "\n".join(f"{k} {v}" for k, v in stat.items())
    return write(path, {name: content for name, content in files.items() if content is not None})


@pytest.fixture
def v2(tmp_path: Path) -> Hierarchy:
    root = _fake_v2(
        tmp_path / "cg", {"anon": 300 * MI, "file": 100 * MI, "inactive_file": 40 * MI, "active_file": 7 * MI}
    )
    return Hierarchy(2, root)


V1 = "cgroup /cg/my\\040memory cgroup rw,memory 0 0\n"
V2 = "cgroup2 {root} cgroup2 rw,nsdelegate 0 0\n"


@pytest.mark.parametrize(
    ("controllers", "table", "found"),
    [
        ("", V2 + "cgroup /cg/cpu cgroup rw,cpu 0 0\n" + V1, (1, "/cg/my memory")),  # hybrid: memory is not on v2
        (None, V1 + "cgroup /host/memory cgroup rw,memory 0 0\n", (1, "/cg/my memory")),
        ("cpuset cpu io memory pids\n", "proc /proc proc rw 0 0\n" + V2, (2, "{root}")),
        (None, "cgroup /cg/memory cgroup rw,cpu 0 0\nshort line\n", "no cgroup hierarchy .* mount -t cgroup2"),
        ("cpu\n", V2, "has no memory controller; boot without cgroup_disable=memory"),
        (None, None, "mounts: No such file"),
    ],
    ids=["hybrid", "the first of two", "v2", "a mount called memory", "v2 without memory", "no table"],
)
def test_where_the_hierarchy_is(
    tmp_path: Path, controllers: str | None, table: str | None, found: tuple[int, str] | str
) -> None:
    if controllers is not None:
        (tmp_path / "cgroup.controllers").write_text(controllers)
    if table is not None:
        (tmp_path / "mounts").write_text(table.format(root=tmp_path))
    if isinstance(found, str):
        with pytest.raises(CannotError, match=found):
            cgroupfs.detect(tmp_path / "mounts")
    else:
        root = Path(found[1].format(root=tmp_path))
        assert cgroupfs.detect(tmp_path / "mounts") == Hierarchy(found[0], root)


def test_resolve(v2: Hierarchy) -> None:
    child = _fake_v2(v2.root / "a/b", {}, 0, "max")
    for text in ("a/b", "/a/b", "a/b/", str(child)):
        assert cgroupfs.resolve(v2, text) == child
    assert cgroupfs.resolve(v2, "/") == v2.root
    assert cgroupfs.exists(child)
    assert not cgroupfs.exists(child / "c")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("absent", "no cgroup 'absent': .*/absent does not exist; create it"),
        ("/etc", "no cgroup '/etc'"),
        ("a/../../etc", "cgroup 'a/../../etc' leads outside the hierarchy"),
        ("..", "leads outside"),
        ("plain", "'plain' is not a cgroup: .* has no cgroup.procs"),
        ("", "'' is not the name of a cgroup"),
        ("a\0b", "is not the name of a cgroup"),
        ("x" * 300, "no cgroup 'xxx"),
    ],
)
def test_resolve_names_what_is_wrong(v2: Hierarchy, text: str, expected: str) -> None:
    (v2.root / "plain").mkdir()
    with pytest.raises(ConfigError, match=expected) as e:
        cgroupfs.resolve(v2, text)
    assert "\n" not in str(e.value)
    assert e.value.exit_code == 2


@given(st.text(max_size=40))
def test_resolve_stays_inside_or_refuses(text: str) -> None:
    hierarchy = Hierarchy(2, Path("/nonexistent-root"))
    try:
        path = cgroupfs.locate(hierarchy, text)
    except ConfigError:
        return
    assert Path(os.path.normpath(path)).is_relative_to(hierarchy.root)


def test_v2_root_usage_is_anon_plus_file(v2: Hierarchy) -> None:
    assert cgroupfs.read_cgroup(v2, v2.root, 1024 * MI).figures() == {
        "usage": 400 * MI,
        "inactive_file": 40 * MI,
        "active_file": 7 * MI,
        "working_set": 360 * MI,
        "capacity": 1024 * MI,
        "available": 664 * MI,
    }


@pytest.mark.parametrize(
    ("current", "stat", "limit", "found"),
    [
        (10, {"inactive_file": 3 * MI, "active_file": MI}, str(64 * MI), (10, 3, 1, 7, 64, 57)),
        (10, {}, "max", (10, 0, 0, 10, None, None)),
        (10, {"inactive_file": 20 * MI}, str(64 * MI), (10, 20, 0, 0, 64, 64)),
        (80, {}, str(64 * MI), (80, 0, 0, 80, 64, -16)),
    ],
    ids=["limit", "no limit", "more page cache than usage", "over its limit"],
)
def test_v2_cgroup(v2: Hierarchy, current: int, stat: dict[str, int], limit: str, found: tuple[int | None]) -> None:
    pod = _fake_v2(v2.root / "pod", stat, current * MI, limit)
    reading = cgroupfs.read_cgroup(v2, pod)
    assert list(reading.figures().values()) == [None if mib is None else mib * MI for mib in found]
    assert cgroupfs.limit(pod) == reading.capacity
    if reading.capacity is None:
        assert cgroupfs.read_cgroup(v2, pod, capacity=100 * MI).available == 100 * MI - reading.working_set


def test_v1_counts_the_subtree(tmp_path: Path) -> None:
    hierarchy = Hierarchy(1, tmp_path)
    stat = f"inactive_file 1\nactive_file 2\ntotal_inactive_file {5 * MI}\ntotal_active_file {6 * MI}"
    files = {"memory.usage_in_bytes": 50 * MI, "memory.limit_in_bytes": UNLIMITED, "memory.stat": stat}
    write(tmp_path, files)
    assert cgroupfs.limit(tmp_path) is None
    expected = Reading(50 * MI, 5 * MI, 6 * MI, capacity=100 * MI)
    assert cgroupfs.read_cgroup(hierarchy, hierarchy.root, 100 * MI) == expected
    assert (expected.working_set, expected.available) == (45 * MI, 55 * MI)


def test_a_vanished_cgroup_is_reported_gone(v2: Hierarchy) -> None:
    gone = v2.root / "gone"
    for read in (cgroupfs.limit, cgroupfs.cgroup_id, lambda p: cgroupfs.read_cgroup(v2, p)):
        with pytest.raises(cgroupfs.CgroupGone, match="gone"):
            read(gone)
    assert cgroup_procs.processes(gone) == []
    assert list(cgroupfs.below(gone)) == []


def test_cgroups_nested_beyond_the_length_of_a_path_are_left_out(
    v2: Hierarchy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with nested(v2.root):
        found = list(cgroupfs.below(v2.root))
        assert len(found) > 10
        for path in found:
            with pytest.raises(FileNotFoundError):
                (path / "memory.limit_in_bytes").read_text()
        assert oom_candidates.candidates(v2, v2.root, lambda _: None) == []

    def refused(*_: object) -> bytes:
        raise OSError(errno.ENAMETOOLONG, "File name too long")

    with Process(os.getpid()) as process, monkeypatch.context() as patched:
        patched.setattr(procfs.os, "read", refused)
        assert process.memory_cgroup(v2) is None


def test_a_file_that_is_no_number_is_named(v2: Hierarchy) -> None:
    pod = _fake_v2(v2.root / "pod", {}, 0, "lots")
    with pytest.raises(MonitorError, match="max is not a number: 'lots"):
        cgroupfs.limit(pod)


def test_v2_limit_and_controllers_write_the_right_files(v2: Hierarchy) -> None:
    pod = _fake_v2(v2.root / "pod", {}, 0, "max")
    cgroupfs.set_limit(pod, 64 * MI)
    assert cgroupfs.limit(pod) == 64 * MI
    (pod / "cgroup.subtree_control").write_text("cpu\n")
    cgroupfs.enable_controllers(pod)
    assert (pod / "cgroup.subtree_control").read_text() == "+memory"
    assert (v2.root / "cgroup.subtree_control").read_text() == "memory\n"  # had it already: not written


@pytest.mark.kernel
def test_the_machine() -> None:
    """The root cgroup has what /proc/vmstat has: all memory that processes have mapped, and all page cache."""
    hierarchy, total = cgroupfs.detect(), meminfo.mem_total()
    names = ("nr_anon_pages", "nr_file_pages", "nr_inactive_file", "nr_active_file")
    # So much that neither half could be missing unnoticed, on a machine with next to nothing of one of them.
    with cgroup("cgroupfs") as path, live.Puppet(path) as puppet:
        puppet.do("anon(64)")

        def pages() -> list[int]:
            return [live.vmstat()[name] * PAGE for name in names]

        def alike() -> bool:
            found = cgroupfs.read_cgroup(hierarchy, hierarchy.root, total)
            anon, cache, inactive, active = pages()
            figures = (found.usage, found.inactive_file, found.active_file, found.available)
            expected = (anon + cache, inactive, active, total - anon - cache + inactive)
            # Others live on this machine, and memory.stat is flushed every 2 s: a quiet one with 6.18 was 0.2 MiB off.
            return all(a is not None and abs(a - b) <= 16 * MI for a, b in zip(figures, expected, strict=True))

        assert min(pages()[:2]) > 32 * MI
        live.until(alike, "the root cgroup and /proc/vmstat to agree within 16 MiB")


def test_the_freezer_is_found_where_it_is_mounted(tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,memory_recursiveprot 0 0\n"
    table.write_text(v2 + "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\nodd\n")
    assert cgroupfs.freezer(table) is None
    table.write_text(v2 + "freezer /tmp/a\\040b cgroup rw,relatime,freezer 0 0\n")
    assert cgroupfs.freezer(table) == Path("/tmp/a b")
