"""Page cache that the kernel does not get at once: what the daemon adds to what the events say."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.kernel import cgroupfs, loader
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.domains import OBTAINABLE
from monitor.kernel.page_cache import dirty_bytes, protection, withheld
from monitor.kernel.wire import PAGE
from monitor.sources.withheld import Withheld
from tests import live

MIB = live.MIB
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
