"""Holds beside a kubelet, and the helper's answers: the hot process without a kernel, with a clock that can be moved.

The brake is a stand-in here; the real one is in tests/hold/test_pod_brake.py, and real holds in test_hold_live.py.
"""

import pytest

from monitor.hold.figures import KubeletAnswers
from monitor.link.messages import KubeletEviction, PodHeld, PodReleased
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


def test_a_kubelet_that_evicts_who_comes_before_the_held_pod_is_waited_for(world: World) -> None:
    """A pod of lower priority goes first, and the one that grows at the next of its loops. It reports that after its
    pod is gone, and perhaps when another hold has begun.
    """
    world.put(0, -10, 0, "BestEffort", False, 100)
    world.wait(SECOND // 10)
    world.put(1, 0, 0, "BestEffort", False, 401)
    world.run(99, True)
    assert [(one.pod, one.reason) for one in reported(world, PodHeld)] == [(DB, "grows")]
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
    [held] = reported(world, PodHeld)
    world.tell(KubeletEviction(HOG, for_memory=True))
    assert world.brakes[HOG].log[-1] == ("slow", held.cap)
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
    assert world.brakes[HOG].log[-1][0] == "slow", "it may handle SIGTERM"
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


@pytest.mark.parametrize("world", [{"hold": True}], indirect=True)
def test_a_hold_of_a_cgroup_that_was_made_anew_is_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The brake is of the old pod, and stops no process: it may not keep the policy from deciding."""
    grown(world, 301, 99)
    assert [one.pod for one in reported(world, PodHeld)] == [HOG]
    monkeypatch.setattr(StandInBrake, "usage", lambda _: None)
    look_later(world)
    assert [(one.pod, one.why) for one in reported(world, PodReleased)] == [(HOG, "gone")]


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
    assert world.brakes[HOG].log[-1][0] == "slow"
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


def test_a_kubelet_that_works_through_those_before_is_waited_for_however_long(world: World) -> None:
    """The hold began more than 60 s before the report."""
    world.put(0, -10, 0, "BestEffort", False, 100)
    world.wait(SECOND // 10)
    world.put(1, 0, 0, "BestEffort", False, 386)
    world.run(ABOVE, True)
    assert [one.pod for one in reported(world, PodHeld)] == [DB]
    for _ in range(64):
        world.wait(SECOND)
        world.look()
    world.put(1, 0, 0, "BestEffort", False, 405)
    world.run(95, True)
    world.wait(4 * SECOND)
    world.drop(0)
    world.run(95, False)
    world.tell(KubeletEviction(HOG, for_memory=True))
    look_later(world)
    assert (world.sent, reported(world, PodReleased)) == ([], [])


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
    world.wait(SECOND // 10)
    world.put(0, 0, 0, "BestEffort", False, 304)
    world.run(96, True)
    assert [how for how, _ in world.brakes[HOG].log[-2:]] == ["apply", "slow"]


# A pod that gets SIGTERM while it is held: the hot process without a kernel.
def test_memory_high_stays_for_who_is_asked_to_end(world: World) -> None:
    """Let across it would run to its cap with nothing in its way."""
    both_grow(world, ABOVE)
    world.tell(KubeletEviction(HOG, for_memory=False))
    look_later(world, 16 * SECOND)
    assert [how for how, _ in world.brakes[HOG].log] == ["apply", "slow", "slow"]
    assert [how for how, _ in world.brakes[DB].log] == ["apply", "loosen"]
    assert [one.brake for one in reported(world, PodHeld) if one.pod == HOG][-1] == "limit+high"


def test_those_that_run_through_their_grace_share_what_is_left(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen each of them may have half of it, for one system call."""
    monkeypatch.setattr(StandInBrake, "kind", "limit+freeze")
    both_grow(world, 99)
    for uid in (HOG, DB):
        world.tell(KubeletEviction(uid, for_memory=False))
    caps = [cap for uid in (HOG, DB) for how, cap in world.brakes[uid].log if how == "slow"]
    assert sum(caps) - (200 + 301) * MIB == 99 * MIB // 2
    assert [pod.cap for pod in world.holds.state.pods] == caps


def test_another_helper_is_told_of_the_held_pods(world: World) -> None:
    both_grow(world, 99)
    world.tell(KubeletEviction(HOG, for_memory=False))
    world.told.clear()
    world.holds.report_all()
    assert [(one.pod, one.brake, one.resent) for one in reported(world, PodHeld)] == [
        (HOG, "limit+high", True), (DB, "limit+freeze", True),
    ]  # fmt: skip


def test_those_that_run_through_their_grace_on_v1_share_what_is_left(world: World) -> None:
    """Frozen each might have half of it, for one system call; four that were drained together had 190 of 95 MiB."""
    world.hierarchy.version = 1
    for uid in (HOG, DB):
        world.tell(KubeletEviction(uid, for_memory=False))
    both_grow(world, 95)
    assert [one.pod for one in reported(world, PodHeld) if one.step == ""][:2] == [HOG, DB]
    for _ in range(2):
        rooms = [world.brakes[uid].log[-1] for uid in (HOG, DB)]
        assert [how for how, _ in rooms] == ["slow", "slow"]
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
