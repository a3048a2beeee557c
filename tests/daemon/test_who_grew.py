"""Who is held at a crossing: who grows then, and not who had grown before. The hot process without a kernel."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.hot.brake_figures import STILL_NS
from monitor.link.hold_messages import Held
from tests.daemon.hold_world import DB, HOG, hold_world, reported
from tests.replay.world import CAPACITY, MIB, SECOND, World

MS = 1_000_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with hold_world(tmp_path, {"hold": True}) as made:
        yield made


def grow(world: World, uid: str, mib: int, within_ns: int) -> None:
    """In steps of 1 MiB, each of which is a record of the kernel's."""
    index = world.registry.by_uid[uid].index
    for _ in range(mib):
        world.wait(within_ns // mib)
        world.table.sets[index] += MIB
        world.working_set += MIB
        world.decider.note(world.now_ns)


def stand(world: World, ns: int) -> None:
    """Nothing moves; samples are taken as the timers of the loop have it."""
    end_ns = world.now_ns + ns
    while world.now_ns < end_ns:
        due_ns = world.decider.note_due_ns()
        world.now_ns = min(end_ns, world.now_ns + STILL_NS) if due_ns is None else max(due_ns, world.now_ns)
        world.decider.note(world.now_ns)
    world.now_ns = end_ns


def crosses(world: World) -> list[str]:
    """Whom it holds."""
    world.run((CAPACITY - world.working_set) // MIB, True)
    return [one.pod for one in reported(world, Held)]


@pytest.mark.parametrize(("mib", "since"), [(6, 8 * SECOND), (12, 8 * SECOND), (30, 8 * SECOND), (12, 60 * MS)])
def test_a_pod_that_had_grown_before_and_stands_still_is_not_held(world: World, mib: int, since: int) -> None:
    """Growth is measured over 16 MiB at least, so the database was held whenever the hog grew by less; and by the
    sample of 0.1 s before, all of its growth was of now.
    """
    world.working_set = CAPACITY - (99 + 60 + mib) * MIB
    stand(world, 2 * SECOND)
    grow(world, DB, 60, 20 * MS)
    stand(world, since)
    grow(world, HOG, mib, mib * MS)
    assert crosses(world) == [HOG]


def test_what_was_not_due_as_growth_ended_is_sampled_afterwards(world: World) -> None:
    """The last sample of the database's growth lacked up to 15 MiB of it. The hog's own began 8 ms late, as where a CPU
    is not to be had, and then that was the latest one.
    """
    world.working_set = CAPACITY - (99 + 60 + 34) * MIB
    stand(world, 2 * SECOND)
    world.wait(SECOND)
    world.decider.note(world.now_ns)
    grow(world, DB, 60, 20 * MS)
    assert world.decider.note_due_ns() is not None
    stand(world, 120 * MS)
    assert world.decider.note_due_ns() is None, "nothing moves any more"
    world.table.sets[world.registry.by_uid[HOG].index] += 34 * MIB
    world.working_set += 34 * MIB
    world.wait(11 * MS)
    assert crosses(world) == [HOG]


def test_two_that_grow_by_turns_are_both_held(world: World) -> None:
    """More processes than CPUs: each stands still for milliseconds."""
    world.working_set = CAPACITY - (99 + 40) * MIB
    stand(world, 2 * SECOND)
    for _ in range(5):
        grow(world, DB, 4, 4 * MS)
        grow(world, HOG, 4, 4 * MS)
    assert crosses(world) == [HOG, DB]


def test_who_gave_memory_back_and_grows_now_is_held(world: World) -> None:
    """Over the last 50 ms it has not grown, and over the growth that is looked at it took nearly all."""
    world.working_set = CAPACITY - 101 * MIB
    stand(world, 2 * SECOND)
    hog = world.registry.by_uid[HOG].index
    world.table.sets[hog] -= 40 * MIB
    world.working_set -= 40 * MIB
    stand(world, 50 * MS)
    for _ in range(7):
        grow(world, DB, 1, MS)
        grow(world, HOG, 5, 2 * MS)
    assert crosses(world) == [HOG, DB]


def test_what_was_sampled_before_the_counters_stood_still_is_forgotten(world: World) -> None:
    """A node that had room for an hour: what pods have taken in it is no growth."""
    world.working_set = CAPACITY - 400 * MIB
    stand(world, 2 * SECOND)
    arming = world.decider._gauge.arming
    arming.armed = False
    world.decider.note(world.now_ns)
    world.wait(3600 * SECOND)
    world.put(1, 1000, 300, "Burstable", False, 400)
    world.working_set += 200 * MIB
    arming.armed = True
    assert world.decider.note_due_ns() is None
    world.working_set = CAPACITY - 99 * MIB
    assert crosses(world) == [HOG], "the first of the order, as where nothing was measured"
