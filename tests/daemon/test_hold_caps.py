"""What held pods may take together while they run for a SIGKILL: the hot process without a kernel, with the real plans
of limits on files that are strings. (Real ones: tests/daemon/test_pod_contract.py.)
"""

from collections.abc import Callable, Sequence

import pytest

from monitor.hold.brakes import KILL
from monitor.link.messages import KubeletEviction, PodHeld
from tests.daemon.hold_world import ABOVE, DB, HOG, look_later, reported
from tests.daemon.limited_brake import LimitedBrake, ledger
from tests.daemon.test_hold_thaws import follow, thaws
from tests.daemon.test_hold_thaws import world as world
from tests.replay.world import CAPACITY, MIB, PODS, SECOND, World

GIB = 1 << 30
#: A quarter of the 99 MiB that were left at the crossing.
SECOND_LINE = 24.75 * MIB


def opened(world: World, uid: str) -> LimitedBrake:
    """Its brake, before it is held."""
    world.holds._brakes.of(world.registry.by_uid[uid])
    return world.brakes[uid]


def held(world: World, pods: int = 2, available: int = 99) -> list[str]:
    """So many pods grew to the kubelet's line, or near it; an idle one comes before them in the order of eviction."""
    world.put(4, -10, 0, "BestEffort", False, 50)
    world.run(300, False)
    world.wait(SECOND // 10)
    for number in range(2, pods):
        world.put(number, 0, 0, "BestEffort", False, 1)
    world.run(300, False)
    world.wait(SECOND // 10)
    for number, (priority, request, has) in enumerate([(0, 0, 200), (1000, 300, 301), *[(0, 0, 150)] * (pods - 2)]):
        world.put(number, priority, request, "Burstable" if request else "BestEffort", False, has)
    world.run(available, True)
    assert world.sent == []
    return list(PODS[:pods])


def are_killed(world: World, uids: Sequence[str]) -> None:
    """Another process sends their processes SIGKILL, again and again."""
    for uid in uids:
        world.brakes[uid].waits = KILL


def taking(world: World, uids: Sequence[str], gib_per_s: float) -> Callable[[int], None]:
    """For `follow`: while these run they take memory, up to their limit, where their page cache goes first."""

    def take(waited: int) -> None:
        for uid in uids:
            brake = world.brakes[uid]
            if not brake.is_running:
                continue
            room = max(0, brake.limit - brake.usage())
            more = min(int(gib_per_s * waited * GIB) // SECOND, room + brake.cache)
            brake.cache -= more - min(more, room)
            world.table.sets[world.registry.by_uid[uid].index] += more
            world.working_set += more

    return take


def left(world: World) -> int:
    return CAPACITY - world.working_set


def killed_and_take(world: World, uids: Sequence[str], seconds: float, gib_per_s: float) -> None:
    """For so long these get SIGKILL and take memory: no pod is killed by outrace, and the kill threshold is not met."""
    are_killed(world, uids)
    follow(world, int(seconds * SECOND), taking(world, uids, gib_per_s))
    assert (world.sent, left(world) > SECOND_LINE) == ([], True)


@pytest.mark.parametrize(("pods", "killed"), [(2, {HOG}), (2, {DB}), (2, {HOG, DB}), (3, set(PODS[:3]))])
@pytest.mark.parametrize("gib_per_s", [0.5, 3])
def test_a_stop_gives_no_room_where_a_run_had_none(world: World, pods: int, killed: set[str], gib_per_s: float) -> None:
    """A share of less than 1 MiB was 1 MiB after the next stop, again and again, up to the kill threshold. And below
    the caps of frozen pods, which may have all that is left together, those that run had it.
    """
    uids = sorted(killed & {*held(world, pods)})
    killed_and_take(world, uids, 3, gib_per_s)
    assert all(thaws(world.brakes[uid]) > 15 for uid in uids)


def test_three_pods_that_run_above_a_kubelets_line_do_not_meet_it(world: World) -> None:
    """Its figures of pods are older than its node signal, so it would evict another one."""
    uids = held(world, 3, ABOVE)
    assert [one.pod for one in reported(world, PodHeld) if one.step == "above"] == [HOG, PODS[2], DB]
    are_killed(world, uids)
    follow(world, 3 * SECOND, taking(world, uids, 100))
    assert left(world) > 100 * MIB
    assert world.sent == []


@pytest.mark.parametrize(("left_before", "some"), [(25.5, False), (26, True), (28, True), (41, True), (42, True)])
def test_near_the_second_line_no_pod_runs_that_could_come_to_it(world: World, left_before: float, some: bool) -> None:
    """No cap is nearer than 1 MiB above a pod's usage. Each of the three may take a third of half of the 99 MiB that
    were left, and less where that could come to the line.
    """
    uids = held(world, 3)
    world.working_set = int(CAPACITY - left_before * MIB)
    look_later(world)
    killed_and_take(world, uids, 0.5, 3)
    assert any(thaws(world.brakes[uid]) for uid in uids) is some


def test_but_for_one_that_somebody_evicts(world: World) -> None:
    held(world)
    world.working_set = CAPACITY - 25 * MIB
    look_later(world)
    world.tell(KubeletEviction(HOG, for_memory=True))
    are_killed(world, (HOG, DB))
    follow(world, SECOND // 2)
    assert [brake.uid for brake in world.holds._brakes.running] == [HOG]
    assert not thaws(world.brakes[DB])


@pytest.mark.parametrize("gib_per_s", [0.01, 3])
@pytest.mark.parametrize("cache", [0, 20, 60, 90])
def test_its_page_cache_becomes_memory_at_the_cap(world: World, cache: int, gib_per_s: float) -> None:
    """Counted by usage alone a pod took all of that beyond its share, and an innocent pod was killed. It has to run all
    the same: the SIGKILL may be a kubelet's, which reports the eviction when that has worked.
    """
    opened(world, HOG).cache = cache * MIB
    held(world)
    killed_and_take(world, (HOG,), 1, gib_per_s)
    assert thaws(world.brakes[HOG]) > 3


@pytest.mark.parametrize("evicted", [False, True])
@pytest.mark.parametrize("left_before", [40, 47, 55, 99])
def test_without_a_cap_nobody_runs_who_could_come_to_the_second_line(
    world: World, left_before: int, evicted: bool
) -> None:
    """The brake is `freeze` alone: what they take until the next look is bounded by their speed."""
    for uid in (HOG, DB):
        opened(world, uid).ledger.files.clear()
    uids = held(world)
    world.working_set = CAPACITY - left_before * MIB
    look_later(world)
    if evicted:
        world.tell(KubeletEviction(HOG, for_memory=False))
    killed_and_take(world, uids, 2, 3)
    assert any(thaws(world.brakes[uid]) for uid in uids) is (left_before > 24.75 + 24)


def test_the_cache_of_a_pod_in_its_grace_keeps_nobody_from_his_end(world: World) -> None:
    """All of that was counted as taken: a kubelet's SIGKILL to the other pod never worked, and a third one was killed
    as unanswered.
    """
    opened(world, HOG).cache = 60 * MIB
    held(world)
    world.tell(KubeletEviction(HOG, for_memory=False))
    world.brakes[DB].cache = 60 * MIB
    are_killed(world, (DB,))
    follow(world, SECOND // 2)
    assert thaws(world.brakes[DB]) > 3


@pytest.mark.parametrize("above", [15, 30, 45])
def test_limits_of_their_own_are_caps(world: World, above: int) -> None:
    """Such a pod ran three times, and then for 5 ms in a second."""
    for uid in (HOG, DB):
        opened(world, uid).ledger = ledger((200 if uid == HOG else 301) * MIB + above * MIB)
    uids = held(world)
    killed_and_take(world, uids, 2, 3)
    assert all(thaws(world.brakes[uid]) > 15 for uid in uids)


def test_what_a_pod_in_its_grace_may_take_is_nobody_elses(world: World) -> None:
    held(world)
    world.tell(KubeletEviction(HOG, for_memory=False))
    are_killed(world, (DB,))
    follow(world, SECOND // 5, taking(world, (DB,), 3))
    assert thaws(world.brakes[DB])
    follow(world, SECOND, taking(world, (HOG,), 3))
    assert (world.sent, left(world) > SECOND_LINE) == ([], True)
