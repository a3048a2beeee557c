"""However many pods are held: one is looked at in a turn of the hot loop, each in its turn; no line waits for it."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from monitor.actions.thaw_reasons import KILL
from monitor.hot.hold_report import REPORTS
from monitor.link.messages import PodSeen
from monitor.link.rare_messages import Held
from tests.daemon.hold_world import hold_world, reported
from tests.daemon.test_hold_thaws import follow, thaws
from tests.replay.stand_ins import StandInBrake
from tests.replay.world import CAPACITY, MIB, SECOND, World

PODS = 30


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """With so many held pods. The kill threshold is at 24.75 MiB, the time limit after 2 minutes."""
    monkeypatch.setattr(StandInBrake, "kind", "limit+freeze")
    with hold_world(tmp_path, {"hold": True}) as made:
        uids = [f"held-{number}" for number in range(PODS)]
        for uid in uids:
            (tmp_path / uid).mkdir()
            seen = PodSeen(uid, "ns", uid, 0, True, 0, "BestEffort", False, 0, str(tmp_path / uid), {})
            made.table.sets[made.registry.put(seen).index] = 20 * MIB
        made.registry.refresh()
        made.working_set = CAPACITY - 99 * MIB
        figures = made.holds._figures
        made.holds._advance(figures.look(figures.domains(), made.holds.state, uids), 0)
        assert made.holds.state.uids == tuple(uids)
        made.wait(SECOND)
        yield made


def looked_at(monkeypatch: pytest.MonkeyPatch, world: World) -> list[tuple[int, str]]:
    """When each pod is looked at, from now on."""
    looks = list[tuple[int, str]]()

    def look(brake: StandInBrake) -> str:
        looks.append((world.now_ns, brake.uid))
        return brake.waits

    monkeypatch.setattr(StandInBrake, "waits_for_thaw", look)
    return looks


def test_one_pod_is_looked_at_in_a_turn_of_the_loop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """On v1 a look takes 2 ms: 30 held pods kept the next crossing waiting for 111 ms, 10 times a second."""
    looks, holds = looked_at(monkeypatch, world), world.holds
    world.wait(SECOND)
    for turn in range(1, 91):
        world.look()
        assert len(looks) == min(turn, PODS), "one in each turn, until all have been looked at"
    assert {uid for _, uid in looks} == set(holds.state.uids), "each in its turn"


def test_no_pod_keeps_another_one_from_being_looked_at(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of them are killed all the time, and so run for moments that are looked at every 5 ms."""
    uids = world.holds.state.uids
    for uid in uids[::2]:
        world.brakes[uid].waits = KILL
    looks = looked_at(monkeypatch, world)
    follow(world, SECOND, lambda _: world.wait(2 * SECOND // 1000))  # what a look takes
    assert all(thaws(world.brakes[uid]) for uid in uids[::2])
    for uid in uids:
        when = [world.now_ns - SECOND, *(ns for ns, of in looks if of == uid), world.now_ns]
        longest = max(b - a for a, b in pairwise(when))
        assert longest <= SECOND * 3 // 10, f"{uid}: 100 ms, and two looks at each of the others"


def test_a_crossing_waits_for_no_look_and_puts_none_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, holds = looked_at(monkeypatch, world), world.holds
    world.wait(SECOND)
    world.look()
    due_ns = holds.due_ns()
    for _ in range(10):
        holds.crossed(world.now_ns, world.watches[0])
    assert (len(looks), holds.due_ns()) == (1, due_ns)


@pytest.mark.parametrize(("late", "left", "opened"), [(-1, 99, ""), (0, 99, "time_limit"), (-1, 24, "second_line")])
def test_the_kill_threshold_and_the_time_limit_wait_for_no_look(
    world: World, monkeypatch: pytest.MonkeyPatch, late: int, left: int, opened: str
) -> None:
    """They are compared in every turn, also where pods are left to be looked at."""
    looks = looked_at(monkeypatch, world)
    world.now_ns = min(pod.since_ns for pod in world.holds.state.pods) + world.holds.rules.limit_ns + late
    world.working_set = CAPACITY - left * MIB
    world.look()
    assert (len(looks), world.holds.state.opened) == (1, opened)


def test_a_brake_that_changes_at_every_look_is_reported_a_few_times_a_second(world: World) -> None:
    """And how it is in the end is reported, so that limits and soft brakes of the helper go by it."""
    world.told.clear()
    held = next(iter(world.holds._holds.values()))
    for _ in range(200):
        world.wait(SECOND // 200)
        world.holds._put_in_force(held, held.pod._replace(cap=held.pod.cap + MIB))
        world.holds._report(held, resent=False)
        world.look()
    caps = [message.cap for message in reported(world, Held)]
    assert len(caps) <= 2 * REPORTS
    world.wait(SECOND)
    world.look()
    assert [message.cap for message in reported(world, Held)][-1] == held.cap
    before = len(reported(world, Held))
    world.wait(SECOND)
    world.look()
    assert len(reported(world, Held)) == before
