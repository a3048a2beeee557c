"""The figures of the domain table are the kernel's own."""

import time
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.errors import MonitorError
from monitor.kernel import cgroupfs, meminfo
from monitor.kernel.domains import MACHINE, MAX_DOMAINS, NO_CEILING, RECLAIMABLE, DomainTable, Reading, ceiling_pages
from monitor.kernel.pins import Pins
from monitor.kernel.wire import CROSS, PAGE
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
        inner.rmdir()
        at = watch.agree(node, pod, other)
        assert at[1].inactive_file + at[1].active_file >= 14 * MIB
        pod.rmdir()
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
        # Pages of the dead container that a process reads stay charged where they are; dropping them is seen.
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
            puppet.do("anon(4)")  # not watched
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
        assert {(e.kind, e.cgroup_id, e.threshold) for e in watch.events} == {(CROSS, cgroupfs.cgroup_id(second), 0)}


@kernel
def test_the_table_is_shared_and_finite() -> None:
    with live.Watching(attach=False) as watch:
        # Ids no cgroup has: the table only counts them.
        for number in range(MAX_DOMAINS):
            assert watch.table.add(1 << 40 | number) == number
        with pytest.raises(MonitorError, match=f"more than {MAX_DOMAINS} cgroups"):
            watch.table.add(1 << 41)
        reader = DomainTable(Pins(live.pin_dir()))
        assert reader.index(1 << 40 | 77) == 77
        assert reader.read(1 << 40 | 77) is None
        watch.table.remove(1 << 40 | 77)
        assert reader.index(1 << 40 | 77) is None
        assert watch.table.add(1 << 41) == 77
        assert reader.index(1 << 41) == 77
        watch.table.reset()
        assert reader.index(1 << 41) is None
        stays = watch.table.add(1 << 41)
        for number in range(3 * MAX_DOMAINS):  # the reader hears nothing of what is removed, and forgets it
            at = watch.table.add(1 << 42 | number)
            assert reader.index(1 << 42 | number) == at
            watch.table.remove(1 << 42 | number)
            assert reader.index(1 << 42 | number) is None
        assert reader.index(1 << 41) == stays
        assert len(reader._known) <= 2 * MAX_DOMAINS
        reader.close()


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 50), st.integers(0, 1 << 38))
def test_above_the_ceiling_is_below_the_threshold(capacity: int, threshold: int, pages: int) -> None:
    """What the kernel compares and what the policy compares are the same question."""
    assert (pages > ceiling_pages(capacity, threshold)) == (capacity - pages * PAGE < threshold)


def test_an_entry_names_one_other_formula() -> None:
    table = DomainTable(MagicMock(mmap=lambda _, size: bytearray(size)))
    first = table.add(1, flags=MACHINE)
    other = table.add_formula(first, RECLAIMABLE)
    assert other != first
    assert table.add_formula(first, RECLAIMABLE) == other, "the node may be kubepods too"
