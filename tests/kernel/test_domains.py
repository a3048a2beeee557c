"""The figures of the domain table are the kernel's own; and what the daemon adds to what the events say."""

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.errors import MonitorError
from monitor.kernel import cgroupfs, loader, meminfo
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.domains import MAX_DOMAINS, NO_CEILING, OBTAINABLE, DomainTable, Reading, ceiling_pages
from monitor.kernel.page_cache import dirty_bytes, protection, withheld
from monitor.kernel.wire import CROSS, PAGE
from monitor.sources.withheld import Withheld
from tests import live

kernel = pytest.mark.kernel
MIB = live.MIB


@kernel
def test_page_cache_of_a_pod_its_parent_and_of_dead_children(files: Path) -> None:
    """One story, because each step begins where the last one ended: write, read again, drop, remove, make again."""
    with live.Watching() as watch, live.cgroup("node", 256 * MIB) as node:
        pod, other = cgroupfs.make(node / "pod"), cgroupfs.make(node / "other")
        inner = cgroupfs.make(pod / "container")
        paths = (node, pod, inner, other)
        for path in paths:
            watch.add(path)
        with live.Puppet(inner) as puppet:
            puppet.do("anon(8)")
            watch.agree(*paths)

            # Written once: inactive. The programs alone keep the sums.
            puppet.do(f"write('{files}/a', 24)")
            at = watch.agree(*paths)
            assert at[0].inactive_file >= 22 * MIB  # the rest waits in per-CPU batches to be put on a list
            assert at[0].active_file < 4 * MIB
            assert at[0].inactive_file == at[1].inactive_file == at[2].inactive_file
            assert at[3].inactive_file == 0

            # Read again: active, with hardly anything charged.
            usage = at[0].usage
            puppet.do(f"read('{files}/a'); read('{files}/a')")
            at = watch.agree(*paths)
            if not meminfo.multi_gen_lru():  # which makes no page active by read(2) alone
                assert at[0].active_file >= 22 * MIB
                assert at[0].inactive_file < 4 * MIB
            assert abs(at[0].usage - usage) < MIB

            puppet.do(f"write('{files}/b', 16)")
            puppet.do(f"drop('{files}/a')")
            at = watch.agree(*paths)
            assert 14 * MIB <= at[0].inactive_file + at[0].active_file < 18 * MIB

        # The container is removed while its page cache stays: charged to its ancestors only.
        watch.table.remove(cgroupfs.cgroup_id(inner))
        cgroupfs.remove(inner)
        at = watch.agree(node, pod, other)
        assert at[1].inactive_file + at[1].active_file >= 14 * MIB
        cgroupfs.remove(pod)
        watch.table.remove(watch.table.cgroup_id(1))
        at = watch.agree(node, other)
        assert at[0].inactive_file + at[0].active_file >= 14 * MIB
        assert at[1] == Reading(at[1].usage, 0, 0)

        # A cgroup of the same name starts empty, in the slots given back.
        pod = cgroupfs.make(node / "pod")
        inner = cgroupfs.make(pod / "container")
        assert sorted((watch.add(pod), watch.add(inner))) == [1, 2]
        at = watch.agree(node, pod, inner, other)
        for reading in at[1:]:  # what is not used yet of a batch of 64 pages is charged too
            assert reading.usage <= live.GATE
            assert reading.inactive_file == reading.active_file == 0

        # Linux 7.2 hands the pages of a removed cgroup to its parent, some time later and with no event: the daemon
        # sweeps a second after a pod went.
        time.sleep(2)
        watch.sweeper.run()
        # Pages of the dead container that somebody reads stay charged where they are; dropping them is seen.
        with live.Puppet(inner) as puppet:
            puppet.do(f"read('{files}/b')")
            puppet.do(f"drop('{files}/b')")
            at = watch.agree(node, pod, inner, other)
            assert at[0].inactive_file + at[0].active_file < 4 * MIB


@kernel
def test_a_slot_used_again_carries_nothing_over() -> None:
    with live.Watching() as watch, live.cgroup("first") as first, live.cgroup("second") as second:
        index = watch.add(first, step=MIB)
        watch.table.set_ceilings(index, [1, 2])
        with live.Puppet(first) as puppet:
            puppet.do("anon(4)")
        watch.sweeper.run()
        with live.Puppet(first) as puppet:
            puppet.do("anon(4)")
            assert watch.table.crossed(index) == 0b11
            watch.table.remove(cgroupfs.cgroup_id(first))
            puppet.do("anon(4)")  # nobody watches
        watch.consume()
        watch.events.clear()

        assert watch.add(second) == index
        assert watch.table.read(cgroupfs.cgroup_id(first)) is None
        assert watch.table.read(cgroupfs.cgroup_id(second)) is None, "not counted before the first sweep"
        assert (watch.table.reading(index), watch.table.crossed(index)) == (Reading(0, 0, 0), 0)
        words = watch.table._words[index * 32 + 1 : index * 32 + 32].tolist()
        assert [word for word in words if word not in (0, NO_CEILING, 4, 5_000_000)] == []

        watch.table.set_ceilings(index, [2 * MIB // PAGE])
        watch.sweeper.run()
        with live.Puppet(second) as puppet:
            puppet.do("anon(4)")
        watch.consume()
        assert [(e.kind, e.cgroup_id, e.threshold) for e in watch.events] == [(CROSS, cgroupfs.cgroup_id(second), 0)]


@kernel
def test_the_table_is_shared_and_finite() -> None:
    with live.Watching(attach=False) as watch:
        # Ids no cgroup has: the table only counts them.
        for number in range(MAX_DOMAINS):
            assert watch.table.add(1 << 40 | number) == number
        with pytest.raises(MonitorError, match=f"more than {MAX_DOMAINS} cgroups"):
            watch.table.add(1 << 41)
        reader = DomainTable.open(live.pin_dir())
        assert reader.index(1 << 40 | 77) == 77
        assert reader.read(1 << 40 | 77) is None
        watch.table.remove(1 << 40 | 77)
        assert reader.index(1 << 40 | 77) is None
        assert watch.table.add(1 << 41) == 77
        assert reader.index(1 << 41) == 77
        watch.table.reset()
        assert reader.index(1 << 41) is None
        reader.close()


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 50), st.integers(0, 1 << 38))
def test_above_the_ceiling_is_below_the_threshold(capacity: int, threshold: int, pages: int) -> None:
    """What the kernel compares and what the policy compares are the same question."""
    assert (pages > ceiling_pages(capacity, threshold)) == (capacity - pages * PAGE < threshold)


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 50))
def test_a_working_set_is_never_negative(usage: int, inactive: int) -> None:
    assert Reading(usage, inactive, 0).working_set == max(0, usage - inactive)


HIERARCHY = cgroupfs.detect()
SECOND = 1_000_000_000


#: What a pod with one small process may have beside page cache.
OTHERS = 4 * MIB


class Table:
    """One entry, whose events added up ``seen`` pages."""

    def __init__(self) -> None:
        self.seen, self.withheld = 0, -1

    def dirty(self, _: int) -> int:
        return self.seen

    def set_withheld(self, _: int, pages: int) -> None:
        self.withheld = pages


def source(table: Any, *, events: bool = True, files: bool = False) -> Any:
    return SimpleNamespace(table=table, is_exact=not files, arming=SimpleNamespace(partial=not events))


def watch(path: Path, index: int = 0) -> Any:
    return SimpleNamespace(formula=OBTAINABLE, machine=False, path=path, index=index)


def says(path: Path, mib: int) -> None:
    """What memory.stat says is dirty."""
    (path / "memory.stat").write_text(f"file_dirty {mib * MIB}\nfile_writeback 0\n")


#: MiB that memory.stat has, that events added up, and that are withheld then; at which second, and whether attached.
STORIES = {
    # 5 MiB are written, of which memory.stat does not know yet; then 3 of them are on the disk, and no event was lost:
    # 10 + 5 - 3 would be 12. Only 5 s after the last write it has settled: 13 in all, 5 of them from events.
    "put right where nothing is written": [
        (10, 0, 10, 0, True), (10, 5, 10, 1, True), (13, 5, 10, 3, True), (13, 5, 8, 5, True),
    ],
    "detached the file is all there is": [(10, 0, 10, 0, False), (4, 0, 4, 1, False), (7, 0, 7, 2, False)],
    "attached again it begins anew": [(10, 0, 10, 0, True), (10, 0, 10, 1, False), (30, 0, 30, 1.1, True)],
}  # fmt: skip


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_what_is_withheld(tmp_path: Path, story: list[tuple[int, int, int, float, bool]]) -> None:
    table = Table()
    figures, mine = Withheld(source(table), Hierarchy(2, tmp_path)), [watch(tmp_path)]
    for stat, seen, expected, at, armed in story:
        says(tmp_path, stat)
        table.seen = seen * MIB // PAGE
        figures.refresh(mine, int(at * SECOND), armed=armed)
        assert table.withheld == expected * MIB // PAGE, at


def test_without_events_the_file_is_all_there_is(tmp_path: Path) -> None:
    table = Table()
    figures = Withheld(source(table, events=False), Hierarchy(2, tmp_path))
    figures.refresh([watch(tmp_path / "gone", 1)], 0, armed=True)
    assert table.withheld == -1, "a domain that vanishes keeps its figure"
    for at, mib in enumerate((10, 4, 7)):
        says(tmp_path, mib)
        figures.refresh([watch(tmp_path)], (at + 1) * SECOND, armed=True)
        assert table.withheld == mib * MIB // PAGE


def test_protection_of_the_children_by_hand(tmp_path: Path) -> None:
    """Of 60 MiB in use 50 are page cache: with 30 protected 20 stay; what has none is not read any further."""
    for name, files in {
        "one": {"memory.min": 10 * MIB, "memory.low": 30 * MIB, "memory.current": 60 * MIB},
        "two": {"memory.min": 0, "memory.low": 0},
        "three": {"memory.min": 0, "memory.low": "max", "memory.current": 8 * MIB},
    }.items():
        (tmp_path / name).mkdir()
        for file, value in files.items():
            (tmp_path / name / file).write_text(f"{value}\n")
        (tmp_path / name / "memory.stat").write_text(f"inactive_file {3 * MIB}\nactive_file {47 * MIB}\n")
    (tmp_path / "three/memory.stat").write_text(f"inactive_file {5 * MIB}\nactive_file 0\n")
    says(tmp_path, 1)
    assert protection(tmp_path / "one") == 30 * MIB
    assert withheld(Hierarchy(2, tmp_path / "elsewhere"), tmp_path) == (20 + 5 + 1) * MIB
    table = Table()
    Withheld(source(table, files=True), Hierarchy(2, tmp_path)).refresh([watch(tmp_path)], 0, armed=True)
    assert table.withheld == 25 * MIB // PAGE, "what is dirty the table reads itself"


@pytest.mark.kernel
def test_dirty_pages_from_before_and_after_attaching(files: Path) -> None:
    with live.Watching(attach=False, signals=loader.OBTAINABLE) as watching, live.cgroup("withheld", 256 * MIB) as node:
        if watching.partial:
            pytest.skip("this hook sees charges only: the file is read with every look")
        table = watching.table
        at = table.add_formula(table.add(cgroupfs.cgroup_id(node)), OBTAINABLE)
        pod = cgroupfs.make(node / "pod")
        with live.Puppet(pod) as puppet:
            puppet.do(f"fd = os.open('{files}/a', os.O_RDWR | os.O_CREAT); os.pwrite(fd, bytes(12 * MIB), 0)")

            def dirty() -> int:
                return dirty_bytes(b"\n" + (node / "memory.stat").read_bytes(), HIERARCHY.version)

            live.until(lambda: dirty() >= 11 * MIB, "memory.stat to know of what was written")
            watching.links = [watching.pins.attach(name) for name in watching.pins.pressure]
            watching.sweeper.run()
            figures = Withheld(source(table), HIERARCHY)
            clock = iter(range(0, 1 << 62, 200_000_000))

            def now() -> int:
                figures.refresh([watch(node, at)], next(clock), armed=True)
                return table.other_reading(at).withheld

            live.until(lambda: now() == dirty(), "the figures to agree")
            before = table.other_reading(at).withheld
            puppet.do("os.pwrite(fd, bytes(6 * MIB), 12 * MIB)")
            grown = table.other_reading(at).withheld - before  # no file was read in between
            assert grown >= 6 * MIB - PAGE or dirty() < before + 6 * MIB - live.GATE, "else the flusher was quicker"
            puppet.do("os.fdatasync(fd)")
            live.until(lambda: now() == dirty() == 0, "nothing to be dirty")
            assert os.path.exists(f"{files}/a")


@pytest.mark.kernel
def test_memory_min_of_a_child_keeps_its_page_cache(files: Path) -> None:
    """And the kernel says so: the domain's limit is met, and it does not get that page cache (tests/lab: scenario
    protected-and-unseen).
    """
    if HIERARCHY.version != 2:
        pytest.skip("memory.min is of cgroup v2")
    with live.cgroup("kept", 256 * MIB) as node:
        pod = cgroupfs.make(node / "pod")
        (pod / "memory.min").write_text(str(20 * MIB))
        with live.Puppet(pod) as puppet:
            puppet.do(f"write('{files}/a', 30)")
            # What the pod has beside its page cache takes of the 20 MiB first: tables of the file's pages, a stack.
            least = 20 * MIB - OTHERS
            live.until(
                lambda: least <= withheld(HIERARCHY, node) <= 20 * MIB,
                lambda: f"20 MiB to be kept: {withheld(HIERARCHY, node)} of {(pod / 'memory.current').read_text()}",
            )
            table = Table()
            Withheld(source(table, files=True), HIERARCHY).refresh([watch(node)], 0, armed=True)
            assert least <= table.withheld * PAGE <= 20 * MIB
