"""Holds beside a kubelet, and the helper's answers: the hot process without a kernel, with a clock that can be moved.

The brake is a stand-in here; the real one is in tests/hold/test_pod_brake.py, and real holds in test_hold_live.py.
"""

import pytest

from monitor.hold.figures import KubeletAnswers
from monitor.link.messages import KubeletEviction, PodHeld, PodReleased, Soften, Softened
from monitor.policy.hold import BEYOND, FIGURES_NS
from tests.daemon.hold_world import ABOVE, DB, HOG, both_grow, grown, look_later, reported
from tests.daemon.hold_world import world as world
from tests.replay.stand_ins import StandInBrake
from tests.replay.world import CAPACITY, MIB, SECOND, World


def test_the_pod_is_held_above_the_kubelets_line_and_let_across_when_its_figures_are_new_enough(world: World) -> None:
    grown(world, 286, ABOVE)
    [held] = reported(world, PodHeld)
    assert (held.pod, held.step, held.reason, held.decision) == (HOG, "above", "victim", 0)
    assert held.cap == 286 * MIB + (ABOVE - 100) * MIB // 2
    assert world.sent == []
    look_later(world, FIGURES_NS - 1)
    assert len(reported(world, PodHeld)) == 1, "they are of before it grew"
    look_later(world, 1)
    held = reported(world, PodHeld)[-1]
    assert (held.hold, held.step) == (1, "across")
    assert world.brakes[HOG].log[-1] == ("loosen", 286 * MIB + (ABOVE - 100) * MIB + BEYOND)
    grown(world, 304, 96)
    assert reported(world, PodHeld)[-1].step == ""
    assert world.brakes[HOG].log[-1][0] == "apply", "stopped again beyond the line"
    assert world.sent == [], "the kubelet has its turn"


@pytest.mark.parametrize("why", ["no brake", "another cgroup"])
def test_a_hold_that_stops_no_process_is_over_and_the_policy_decides(
    world: World, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """vm.panic_on_oom was set, for example: the brake puts everything back, and nothing in force again. Or the pod's
    cgroup was made anew: the brake is of the old one.
    """
    grown(world, 301, 99)
    assert [one.pod for one in reported(world, PodHeld)] == [HOG]
    brake = world.brakes[HOG]
    if why == "no brake":
        brake.release()
        monkeypatch.setattr(brake, "_brake", lambda how, cap: None)
    else:
        monkeypatch.setattr(brake, "usage", lambda: None)
    look_later(world)
    assert [(one.pod, one.why) for one in reported(world, PodReleased)] == [(HOG, "gone")]
    look_later(world)
    assert [message.pod for message in world.sent] == [HOG]


@pytest.mark.parametrize(("available", "decided"), [(99, [HOG]), (250, [])])
def test_a_kubelet_that_evicts_another_pod(world: World, available: int, decided: list[str]) -> None:
    """The policy decides itself: whether anybody has to go still."""
    grown(world, 301, 99)
    world.tell(KubeletEviction(DB, for_memory=False))
    look_later(world)
    assert not reported(world, PodReleased), "it was not for memory"
    world.tell(KubeletEviction(DB, for_memory=True))
    world.run(available, False)
    look_later(world)
    assert [message.pod for message in world.sent] == decided
    assert [(one.pod, one.why, one.instead) for one in reported(world, PodReleased)] == [(HOG, "other_pod", DB)]


@pytest.mark.parametrize("held_s", [0, 64])
def test_a_kubelet_that_evicts_who_comes_before_the_held_pod_is_waited_for(world: World, held_s: int) -> None:
    """A pod of lower priority goes first, and the one that grows at the next of its loops, however long the pod is held
    already. It reports that after its pod is gone, and perhaps when another hold has begun.
    """
    world.put(0, -10, 0, "BestEffort", False, 100)
    world.wait(SECOND // 10)
    world.put(1, 0, 0, "BestEffort", False, 386)
    world.run(ABOVE, True)
    assert [(one.pod, one.reason) for one in reported(world, PodHeld)] == [(DB, "grows")]
    for _ in range(held_s):
        look_later(world)
    world.put(1, 0, 0, "BestEffort", False, 405)
    world.run(95, True)
    world.drop(0)
    world.wait(9 * SECOND)
    world.tell(KubeletEviction(HOG, for_memory=True))
    world.look()
    look_later(world, 19 * SECOND)
    assert (world.sent, reported(world, PodReleased)) == ([], [])
    look_later(world)
    assert [(one.pod, one.why) for one in reported(world, PodReleased)] == [(DB, "unanswered")]


def test_a_pod_that_the_kubelet_evicts_may_answer_and_is_not_held_any_more_when_it_is_gone(world: World) -> None:
    grown(world, 301, 99)
    world.tell(KubeletEviction(HOG, for_memory=True))
    [soften] = reported(world, Soften)
    assert (soften.id, soften.pod) == (1, HOG)
    world.tell(Softened(1, HOG, 200 * MIB))
    assert world.brakes[HOG].log[-1] == ("thaw", 0)
    assert reported(world, PodHeld)[-1].brake == "limit+high"
    world.drop(0)
    assert [(one.pod, one.why) for one in reported(world, PodReleased)] == [(HOG, "evicted")]
    assert world.sent == []


@pytest.mark.parametrize("world", [{"hard_grace_ns": 5 * SECOND}], indirect=True)
def test_a_grace_under_the_brake(world: World) -> None:
    grown(world, 301, 99)
    [decision] = world.sent
    assert (decision.pod, decision.given_s) == (HOG, 5)
    assert [(one.pod, one.decision) for one in reported(world, PodHeld)] == [(HOG, 0), (HOG, decision.id)]
    assert [one.grace_ns for one in reported(world, Soften)] == [5 * SECOND]
    world.tell(Softened(1, HOG, 0, "no room"))
    assert not any(how == "thaw" for how, _ in world.brakes[HOG].log), "it stays frozen"
    world.wait(SECOND)
    world.run(60, True)
    assert world.hurried == [], "it has its grace"
    world.wait(SECOND)
    world.run(20, True)
    assert len(world.hurried) == 1, "below the second line it has not"


@pytest.mark.parametrize("world", [{"hard_grace_ns": 300 * SECOND}], indirect=True)
def test_the_limit_of_a_hold_does_not_cut_a_grace_short(world: World) -> None:
    grown(world, 301, 99)
    for seconds, expected in ((299, 0), (121, 1)):
        world.wait(seconds * SECOND)
        world.look()
        world.run(99, True)
        assert len(world.hurried) == expected


@pytest.mark.parametrize("world", [{"hold": True, "evict_by": "api"}], indirect=True)
def test_who_grows_on_is_held_too(world: World) -> None:
    grown(world, 301, 99)
    world.wait(SECOND // 10)
    world.put(1, 1000, 300, "Burstable", False, 230)
    world.working_set += 30 * MIB
    world.look()
    assert [(one.pod, one.reason) for one in reported(world, PodHeld)] == [(HOG, "victim"), (DB, "grows")]
    assert [message.observed for message in world.sent] == [True]
    world.holds.release_all()
    assert [one.why for one in reported(world, PodReleased)] == ["stopped", "stopped"]
    assert all(brake.log[-1][0] == "release" for brake in world.brakes.values())


@pytest.mark.parametrize("world", [{"hold": True}], indirect=True)
def test_a_brake_that_fails_again_and_again_is_logged_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried at every look, 200 times a second."""
    monkeypatch.setattr(StandInBrake, "apply", lambda *_, **__: None)
    for available in range(99, 90, -1):
        grown(world, 400 - available, available)
        world.look()
    assert world.logged.count("a pod could not be held") == 1


@pytest.mark.parametrize("world", [{"hard_grace_ns": 5 * SECOND}], indirect=True)
def test_a_pod_in_its_grace_that_is_taken_over_may_go_on_with_it(world: World) -> None:
    world.run(99, False)
    holds, entry = world.decider.holds, world.registry.by_uid[HOG]
    world.told.clear()
    for uid in list(holds.state.uids):
        holds.dropped(uid)
    world.graces[HOG] = world.now_ns + 3 * SECOND
    holds._brakes.of(entry).since_ns = world.now_ns - 7 * SECOND
    assert holds.go_on([entry]) == [entry]
    [soften] = reported(world, Soften)
    assert (soften.pod, soften.grace_ns) == (HOG, 3 * SECOND), "what is left of it"
    assert holds.state.pods[0].since_ns == world.now_ns - 7 * SECOND, "restarts do not prolong the hold"
    assert {one.since_ns for one in reported(world, PodHeld)} == {world.now_ns - 7 * SECOND}


@pytest.mark.parametrize("late", [False, True])
def test_the_eviction_of_a_held_pod_is_an_answer_for_the_other_one(world: World, late: bool) -> None:
    """Whether it is reported while the pod is there still or after it is gone."""
    both_grow(world, 99)
    assert [one.pod for one in reported(world, PodHeld)] == [HOG, DB]
    look_later(world, 12 * SECOND)
    if not late:
        world.tell(KubeletEviction(DB, for_memory=True))
    world.wait(SECOND)
    world.drop(1)
    world.run(99, False)
    world.look()
    if late:
        world.tell(KubeletEviction(DB, for_memory=True))
    look_later(world, 19 * SECOND)
    assert world.sent == [], "its next loop comes"
    assert [one.pod for one in reported(world, PodReleased)] == [DB]


def test_who_joins_a_pod_on_its_way_across_is_stopped(world: World) -> None:
    """Below a cap 1 MiB above its usage it would be killed by v2, running."""
    grown(world, 286, ABOVE)
    look_later(world, FIGURES_NS)
    world.put(1, 1000, 300, "Burstable", False, 212)
    world.working_set = CAPACITY - 101 * MIB
    look_later(world, SECOND // 100)
    assert [how for how, _ in world.brakes[DB].log] == ["apply"]
    assert world.brakes[HOG].log[-1][0] == "loosen"


@pytest.mark.parametrize("asked", ["before", "across"])
def test_a_pod_that_was_asked_to_end_may_do_so_when_it_is_stopped(world: World, asked: str) -> None:
    if asked == "across":
        grown(world, 286, ABOVE)
        look_later(world, FIGURES_NS)
    world.tell(KubeletEviction(HOG, for_memory=False))
    assert reported(world, Soften) == []
    world.wait(SECOND // 10)
    world.put(0, 0, 0, "BestEffort", False, 304)
    world.registry.by_uid[HOG].grace_s = None
    world.run(96, True)
    assert world.brakes[HOG].log[-1][0] == "apply"
    assert [(one.pod, one.grace_ns) for one in reported(world, Soften)] == [(HOG, 30 * SECOND)]


# A pod that gets SIGTERM while it is held, and the helper's memory.high: the hot process without a kernel.
def test_memory_high_stays_for_who_is_asked_to_end(world: World) -> None:
    """The helper's answer may come after the pod was let across: it would run to its cap with nothing in its way."""
    both_grow(world, ABOVE)
    world.tell(KubeletEviction(HOG, for_memory=False))
    look_later(world, 16 * SECOND)
    assert world.brakes[HOG].log[-1][0] == "loosen"
    assert world.brakes[HOG].high_is_left
    world.tell(Softened(1, HOG, 200 * MIB))
    assert reported(world, PodHeld)[-1].brake == "limit+high"


def test_a_soft_brake_that_is_refused_is_not_asked_for_at_every_new_cap(world: World) -> None:
    both_grow(world, 99)
    world.tell(KubeletEviction(HOG, for_memory=False))
    world.tell(Softened(1, HOG, 0, "too many threads"))
    for _ in range(5):
        world.brakes[HOG].is_in_force = False
        look_later(world)
        held = world.holds._holds[HOG]
        world.holds._put_in_force(held, held.pod)
    assert len(reported(world, Soften)) == 1


@pytest.mark.parametrize("soft", [False, True])
def test_another_side_is_asked_for_the_soft_brake_again(world: World, soft: bool) -> None:
    """The next helper undoes what the last one set, and does not know for which pod that was requested."""
    both_grow(world, 99)
    world.tell(KubeletEviction(HOG, for_memory=False))
    if soft:
        world.tell(Softened(1, HOG, 200 * MIB))
    world.told.clear()
    world.graces[HOG] = world.now_ns + 3 * SECOND
    world.holds.report_all()
    assert [(one.pod, one.grace_ns) for one in reported(world, Soften)] == [(HOG, 3 * SECOND)]
    assert world.brakes[HOG].high_is_left
    assert not world.brakes[DB].high_is_left


@pytest.mark.parametrize(("other_side", "then"), [(True, ("apply", "limit+freeze")), (False, ("thaw", "limit+high"))])
def test_a_refusal_by_another_side_stops_a_pod_that_runs(world: World, other_side: bool, then: tuple[str, str]) -> None:
    """What the last side had set is taken back: it would run to its cap with nothing in its way. Of the side that was
    asked twice (a decision, and the kubelet's eviction with a longer grace) what the first answer set stays.
    """
    both_grow(world, 99)
    world.tell(KubeletEviction(HOG, for_memory=False))
    world.tell(Softened(1, HOG, 200 * MIB))
    assert world.brakes[HOG].log[-1] == ("thaw", 0)
    if other_side:
        world.decider.helper_lost()
        world.holds.report_all()
    world.tell(Softened(1, HOG, 0, "its threads would take too much"))
    assert (world.brakes[HOG].log[-1][0], reported(world, PodHeld)[-1].brake) == then


def test_those_that_run_through_their_grace_on_v1_share_what_is_left(world: World) -> None:
    """Frozen each might have half of it, for one system call; four that were drained together had 190 of 95 MiB."""
    world.hierarchy.version = 1
    for uid in (HOG, DB):
        world.tell(KubeletEviction(uid, for_memory=False))
    both_grow(world, 95)
    assert [one.pod for one in reported(world, PodHeld) if one.step == ""][:2] == [HOG, DB]
    for _ in range(2):
        rooms = [world.brakes[uid].log[-2 if world.brakes[uid].log[-1][0] == "thaw" else -1] for uid in (HOG, DB)]
        assert [how for how, _ in rooms] == ["loosen", "loosen"]
        assert sum(cap for _, cap in rooms) - (200 + 301) * MIB <= 95 * MIB // 2
        for held in list(world.holds._holds.values()):
            world.holds._put_in_force(held, held.pod)


def test_the_end_of_one_that_comes_before_counts_once() -> None:
    """A job's pods start and end: the end of one counts once as an answer of the kubelet, that of a held pod always."""
    answers = KubeletAnswers()
    answers.hold(["held", "job1", "job2"], SECOND)
    found = []
    for uid, held in (("job1", False), ("job2", False), ("other", False), ("held", True)):
        answers.gone(uid, 2 * SECOND, held=held)
        found.append(answers.answered)
        answers.forget()
    assert found == [True, False, False, True]
