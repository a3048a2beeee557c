"""More memory cgroups than any node has: the working set stays right, and nothing waits for a sweep."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.kernel import cgroupfs
from monitor.kernel.sweeping import Stepwise
from tests import live
from tests.crowd import Crowd

pytestmark = pytest.mark.kernel
MIB = live.MIB
MANY = 17_000
#: Pages that each CPU keeps before it puts them on their lists (mm/swap.c, folio_batch).
BATCH = 31
WAITING = BATCH * (os.cpu_count() or 1)


@pytest.mark.once
def test_more_cgroups_with_page_cache_than_16384_do_not_hide_a_working_set() -> None:
    """Half of them are dead, and their page cache is still charged. Then each is charged once more, without a sweep:
    a cgroup whose entry had been dropped would be counted twice.
    """
    with live.Watching() as watch, live.cgroup("crowd") as parent, Crowd(parent, MANY) as made:
        index = watch.add(parent)
        made.fill()
        made.kill(MANY // 2)
        watch.sweeper.run()
        before = watch.table.reading(index)
        assert before.inactive_file >= (MANY - WAITING) * 4096
        live.until(lambda: abs(before.inactive_file - _inactive_file(parent)) <= live.GATE, "memory.stat to agree")
        made.fill()
        after = watch.table.reading(index)
        assert watch.counted()["uncounted"] == 0
        assert after.inactive_file >= before.inactive_file
        again = (MANY - MANY // 2 + 2 * WAITING) * 4096

        def near() -> bool:
            """A page less than 64 may be held back in each (the gate): that much more, but not all of it once again."""
            inactive = _inactive_file(parent)
            return inactive - again <= after.inactive_file <= inactive + live.GATE

        live.until(near, "memory.stat to agree")
        watch.sweeper.run()
        exact = watch.table.reading(index).inactive_file
        live.until(lambda: abs(exact - _inactive_file(parent)) <= live.GATE, "memory.stat to agree")


def _inactive_file(parent: Path) -> int:
    """Inactive file pages (bytes) by memory.stat, which takes 2 s to settle, on busy CPUs longer."""
    return cgroupfs.read_cgroup(cgroupfs.detect(), parent).inactive_file


def test_entries_of_dead_cgroups_are_taken_out() -> None:
    with live.Watching() as watch, live.cgroup("dead") as parent, Crowd(parent, 200) as made:
        watch.add(parent)
        made.fill()
        held = _leaves(watch)
        assert held >= 200 - WAITING
        made.end()  # their pages too
        live.until(lambda: _leaves(watch) <= held - 200 + WAITING, "the entries to be gone")


def _leaves(watch: live.Watching) -> int:
    watch.sweeper._tidy_ns = 0
    watch.sweeper.run()
    return sum(len(keys) for keys, _ in watch.sweeper._leaves.batches(1024))


def test_a_sweep_in_turns_gives_the_same_whatever_comes_and_goes_between_them() -> None:
    with live.Watching() as watch, live.cgroup("turns") as parent, Crowd(parent, 300) as made:
        index = watch.add(parent)
        made.fill()
        watch.sweeper.begin()
        turns = grown = 0
        while not watch.sweeper.turn(1):  # one stretch each: two cgroups
            turns += 1
            if turns % 10 == 0:
                made.grow(turns % 300)
                grown += 1
                cgroupfs.make(parent / f"new{turns}")
            if turns % 10 == 5 and turns > 10:
                (parent / f"new{turns - 5}").rmdir()
        assert turns > 150
        assert watch.table.synced(index) == watch.sweeper.number
        ours = watch.table.reading(index)
        watch.sweeper.run()
        exact = watch.table.reading(index)
        # Between the two looks, waiting pages may get onto their lists. A hook that sees charges alone misses those of
        # each growth.
        waited = WAITING + (grown * BATCH if watch.partial else 0)
        assert abs(ours.inactive_file - exact.inactive_file) <= live.GATE + waited * 4096
        (inactive,) = watch.agree(parent)
        assert abs(inactive.inactive_file - exact.inactive_file) <= WAITING * 4096


def test_what_is_added_while_a_sweep_runs_is_not_known_before_the_next() -> None:
    """It would seem to have no page cache where the sweep had been already."""
    with live.Watching() as watch, live.cgroup("late") as parent, Crowd(parent, 200) as made:
        made.fill()
        watch.sweeper.begin()
        while watch.counted()["swept"] < 5:
            watch.sweeper.turn(1)
        index = watch.add(parent)
        while not watch.sweeper.turn():
            pass
        assert not watch.table.synced(index)
        assert watch.table.read(cgroupfs.cgroup_id(parent)) is None
        watch.sweeper.run()
        assert watch.table.reading(index).inactive_file >= (200 - WAITING) * 4096


def test_what_is_forgotten_is_compared_with_nothing_until_it_is_counted() -> None:
    with live.Watching() as watch, live.cgroup("forgotten") as path:
        index = watch.add(path)
        watch.sweeper.run()
        watch.table.set_ceilings(index, [4 * MIB // 4096])
        watch.sweeper.begin(forget=True)
        watch.sweeper.turn(1)
        assert not watch.table.synced(index)
        with live.Puppet(path) as puppet:
            puppet.do("anon(8)")
            watch.consume()
            assert watch.events == []
            while not watch.sweeper.turn():
                pass
            puppet.do("anon(1)")
            watch.consume()
            assert [event.domain for event in watch.events] == [index]


def test_what_lies_deeper_than_the_programs_look_is_unknown_and_not_empty() -> None:
    with live.Watching() as watch, live.cgroup("deep") as top:
        path = top
        for level in range(14):
            path = cgroupfs.make(path / f"l{level}")
        shallow, deep = watch.add(top), watch.add(path)
        with live.Puppet(path) as puppet:
            puppet.do("anon(4)")
            watch.sweeper.run()
            assert watch.table.synced(shallow)
            assert watch.table.working_set(shallow) >= 4 * MIB
            assert not watch.table.synced(deep)
            assert watch.table.read(cgroupfs.cgroup_id(path)) is None


class Counting(Stepwise):
    def steps(self, forget: bool) -> Iterator[bool]:
        yield from [False] * 100

    def reread(self) -> None:
        pass

    def touch(self, index: int) -> None:
        pass


def test_a_turn_ends_with_its_budget_and_asks_in_between() -> None:
    work, asked = Counting(), []
    work.begin()
    turns = 0
    while not work.turn(0, lambda: asked.append(1)):
        turns += 1
    assert (turns, asked, work.runs) == (100, [], False), "one stretch is fewer than 16"
    assert work.took_ns > 0
    work.begin()
    assert work.turn(between=lambda: asked.append(1))
    assert len(asked) == 6
