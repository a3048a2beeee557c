"""Held pods that run for a moment, and many, each looked at in its turn: the hot process without a kernel, with a clock
that can be moved.

The brake is a stand-in here; the real one is in tests/daemon/test_hold_brakes.py, real execs in tests/runtimes.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from monitor.hold.brakes import KILL, REPORTS
from monitor.hold.pod_brake import Braked
from monitor.link.messages import KubeletEviction, PodHeld, PodSeen
from tests.daemon.hold_world import BESIDE_KUBELET, DB, HOG, both_grow, grown, hold_world, look_later, reported
from tests.daemon.limited_brake import limited_brake
from tests.replay.stand_ins import StandInBrake
from tests.replay.world import CAPACITY, MIB, SECOND, World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[World]:
    monkeypatch.setattr(World, "brake", limited_brake)
    with hold_world(tmp_path, getattr(request, "param", BESIDE_KUBELET)) as made:
        made.hierarchy.version = 1
        yield made


def thaws(brake: StandInBrake) -> int:
    return sum(how == "thaw" for how, _ in brake.log)


def both_held(world: World, available: int) -> None:
    """The hog and the database grew."""
    both_grow(world, available)
    assert [one.pod for one in reported(world, PodHeld)] == [HOG, DB]


def follow(world: World, ns: int, each: Callable[[int], None] = lambda _: None) -> None:
    """Look as often as is wanted for so long; ``each`` gets how long was waited."""
    end_ns, holds = world.now_ns + ns, world.decider.holds
    while world.now_ns < end_ns:
        world.look()
        due_ns = max(holds.due_ns() or 0, world.now_ns + 1000)
        waited, world.now_ns = due_ns - world.now_ns, due_ns
        each(waited)


@pytest.mark.parametrize("world", [{"hold": True}], indirect=True)
@pytest.mark.parametrize(("cache", "available", "cap"), [(0, 50, 350.5), (0, 40, 302), (10, 40, 302), (15, 40, 350.5)])
def test_a_sigkill_needs_no_more_than_what_a_lower_cap_leaves(
    world: World, cache: int, available: int, cap: float
) -> None:
    """Below 48.75 MiB a pod was not let die that had 49.5 below its cap, and another pod was killed for its memory."""
    grown(world, 301, 99)
    brake, usage = world.brakes[HOG], 301 * MIB
    brake.usage = lambda: usage
    world.table.sets[world.registry.by_uid[HOG].index] -= cache * MIB
    brake.waits = KILL
    world.run(available, False)
    look_later(world)
    assert bool(thaws(brake)) is (cache < 15)
    assert [cap for how, cap in brake.log if how == "apply"][-1] == int(cap * MIB)


def test_a_thaw_that_the_kernel_refused_is_tried_again_for_a_pod_that_a_kubelet_evicts(world: World) -> None:
    grown(world, 301, 99)
    brake = world.brakes[HOG]
    world.tell(KubeletEviction(HOG, for_memory=True))
    brake.waits, before = KILL, thaws(brake)  # it is frozen still
    follow(world, SECOND // 5)
    assert thaws(brake) > before + 10


def test_only_who_runs_is_looked_at_so_often(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look takes up to 2 ms for 64 processes; 10 pods would have 20 ms every 5 ms."""
    both_held(world, 99)
    hog, database = world.brakes[HOG], world.brakes[DB]
    looks = list[str]()
    monkeypatch.setattr(StandInBrake, "waits_for_thaw", lambda brake: looks.append(brake.uid) or brake.waits)
    hog.waits = KILL
    follow(world, SECOND // 20)
    assert looks.count(HOG) == 2, "as it begins to run, and as it is stopped"
    assert looks.count(DB) == 1
    assert [how for how, _ in database.log] == ["apply"], "what is in force stays"


def test_a_pod_that_runs_is_looked_at_before_the_others(world: World) -> None:
    """It is stopped then. Behind the hog, whose look lets the hog run, both ran at once. The others have turns, too."""
    both_held(world, 99)
    made = world.holds._brakes
    world.brakes[DB].runs, world.brakes[DB].looked_ns = True, world.now_ns
    assert [made.due((HOG, DB), world.now_ns + SECOND) for _ in range(2)] == [DB, HOG]


def test_who_runs_is_stopped_before_another_is_let_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted as stopped before it was, it charged what the other pod was given."""
    both_held(world, 99)
    world.brakes[DB].waits = KILL
    world.wait(SECOND)
    for _ in range(2):
        world.look()
    assert thaws(world.brakes[DB])
    world.brakes[HOG].waits, world.brakes[DB].waits = KILL, ""
    done: list[tuple[str, str]] = []
    plain = StandInBrake._brake

    def brake(self: StandInBrake, how: str, cap: int) -> Braked:
        done.append((how, self.uid))
        return plain(self, how, cap)

    monkeypatch.setattr(StandInBrake, "_brake", brake)
    monkeypatch.setattr(StandInBrake, "thaw", lambda self: done.append(("thaw", self.uid)))
    world.wait(SECOND)
    for _ in range(2):
        world.look()
    assert done[:2] == [("apply", DB), ("thaw", HOG)]


# However many pods are held: one is looked at in a turn of the hot loop, each in its turn; no line waits for it.
PODS = 30


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
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


def looked_at(monkeypatch: pytest.MonkeyPatch, many: World) -> list[tuple[int, str]]:
    """When each pod is looked at, from now on."""
    looks = list[tuple[int, str]]()

    def look(brake: StandInBrake) -> str:
        looks.append((many.now_ns, brake.uid))
        return brake.waits

    monkeypatch.setattr(StandInBrake, "waits_for_thaw", look)
    return looks


def test_one_pod_is_looked_at_in_a_turn_of_the_loop(many: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """On v1 a look takes 2 ms: 30 held pods kept the next crossing waiting for 111 ms, 10 times a second."""
    looks, holds = looked_at(monkeypatch, many), many.holds
    many.wait(SECOND)
    for turn in range(1, 91):
        many.look()
        assert len(looks) == min(turn, PODS), "one in each turn, until all have been looked at"
    assert {uid for _, uid in looks} == set(holds.state.uids), "each in its turn"


def test_no_pod_keeps_another_one_from_being_looked_at(many: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of them are killed all the time, and so run for moments that are looked at every 5 ms."""
    uids = many.holds.state.uids
    for uid in uids[::2]:
        many.brakes[uid].waits = KILL
    looks = looked_at(monkeypatch, many)
    follow(many, SECOND, lambda _: many.wait(2 * SECOND // 1000))  # what a look takes
    assert all(thaws(many.brakes[uid]) for uid in uids[::2])
    for uid in uids:
        when = [many.now_ns - SECOND, *(ns for ns, of in looks if of == uid), many.now_ns]
        longest = max(b - a for a, b in pairwise(when))
        assert longest <= SECOND * 3 // 10, f"{uid}: 100 ms, and two looks at each of the others"


def test_a_crossing_waits_for_no_look_and_puts_none_off(many: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, holds = looked_at(monkeypatch, many), many.holds
    look_later(many)
    due_ns = holds.due_ns()
    for _ in range(10):
        holds.crossed(many.now_ns, many.watches[0])
    assert (len(looks), holds.due_ns()) == (1, due_ns)


@pytest.mark.parametrize(("late", "left", "opened"), [(-1, 99, ""), (0, 99, "time_limit"), (-1, 24, "second_line")])
def test_the_kill_threshold_and_the_time_limit_wait_for_no_look(
    many: World, monkeypatch: pytest.MonkeyPatch, late: int, left: int, opened: str
) -> None:
    """They are compared in every turn, also where pods are left to be looked at."""
    looks = looked_at(monkeypatch, many)
    many.now_ns = min(pod.since_ns for pod in many.holds.state.pods) + many.holds.rules.limit_ns + late
    many.working_set = CAPACITY - left * MIB
    many.look()
    assert (len(looks), many.holds.state.opened) == (1, opened)


def test_a_brake_that_changes_at_every_look_is_reported_a_few_times_a_second(many: World) -> None:
    """And how it is in the end is reported, so that limits and soft brakes of the helper go by it."""
    many.told.clear()
    held = next(iter(many.holds._holds.values()))
    for _ in range(200):
        many.wait(SECOND // 200)
        many.holds._put_in_force(held, held.pod._replace(cap=held.pod.cap + MIB))
        many.holds._report(held, resent=False)
        many.look()
    caps = [message.cap for message in reported(many, PodHeld)]
    assert len(caps) <= 2 * REPORTS
    look_later(many)
    assert [message.cap for message in reported(many, PodHeld)][-1] == held.cap
    before = len(reported(many, PodHeld))
    look_later(many)
    assert len(reported(many, PodHeld)) == before
