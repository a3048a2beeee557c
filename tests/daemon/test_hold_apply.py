"""A pod that is asked to end while it is held, and memory.high of the side's: the hot process without a kernel."""

import pytest

from monitor.hot.hold_figures import KubeletAnswers
from monitor.link.hold_messages import Held, KubeletEviction, Soften, Softened
from tests.daemon.hold_world import ABOVE, DB, HOG, both_grow, look_later, reported
from tests.daemon.hold_world import world as world
from tests.replay.world import MIB, SECOND, World


def test_memory_high_stays_for_who_is_asked_to_end(world: World) -> None:
    """The side's answer may come after the pod was let across: it would run to its cap with nothing in its way."""
    both_grow(world, ABOVE)
    world.tell(KubeletEviction(HOG, for_memory=False))
    look_later(world, 16 * SECOND)
    assert world.brakes[HOG].log[-1][0] == "loosen"
    assert world.brakes[HOG].high_is_left
    world.tell(Softened(1, HOG, 200 * MIB))
    assert reported(world, Held)[-1].brake == "limit+high"


def test_a_soft_brake_that_is_refused_is_not_asked_for_at_every_new_cap(world: World) -> None:
    both_grow(world, 99)
    world.tell(KubeletEviction(HOG, for_memory=False))
    world.tell(Softened(1, HOG, 0, "too many threads"))
    for _ in range(5):
        world.brakes[HOG].is_in_force = False
        look_later(world)
        held = world.decider.holds
        assert held is not None
        held._put_in_force(held._holds[HOG], held._holds[HOG].pod)
    assert len(reported(world, Soften)) == 1


@pytest.mark.parametrize("soft", [False, True])
def test_another_side_is_asked_for_the_soft_brake_again(world: World, soft: bool) -> None:
    """It takes back what the last one set, and knows nothing of whom that one was asked for."""
    both_grow(world, 99)
    world.tell(KubeletEviction(HOG, for_memory=False))
    if soft:
        world.tell(Softened(1, HOG, 200 * MIB))
    world.told.clear()
    world.evictor.grace_ends_ns = {HOG: world.now_ns + 3 * SECOND}.get
    world.holds.report_all()
    assert [(one.pod, one.grace_ns) for one in reported(world, Soften)] == [(HOG, 3 * SECOND)]
    assert world.brakes[HOG].high_is_left
    assert not world.brakes[DB].high_is_left


def test_a_pod_that_runs_and_cannot_be_braked_softly_again_is_stopped(world: World) -> None:
    """What the last side had set is taken back: it would run to its cap with nothing in its way."""
    both_grow(world, 99)
    world.tell(KubeletEviction(HOG, for_memory=False))
    world.tell(Softened(1, HOG, 200 * MIB))
    assert world.brakes[HOG].log[-1] == ("thaw", 0)
    world.holds.report_all()
    world.tell(Softened(1, HOG, 0, "too many threads"))
    assert world.brakes[HOG].log[-1][0] == "apply"
    assert reported(world, Held)[-1].brake == "limit+freeze"


def test_a_second_refusal_does_not_stop_a_pod_in_its_grace(world: World) -> None:
    """Asked twice (a decision, and the kubelet's eviction with a longer grace), what the first answer set stays."""
    both_grow(world, 99)
    world.tell(KubeletEviction(HOG, for_memory=False))
    world.tell(Softened(1, HOG, 200 * MIB))
    world.tell(Softened(1, HOG, 0, "its threads would take too much"))
    assert world.brakes[HOG].log[-1] == ("thaw", 0)
    assert reported(world, Held)[-1].brake == "limit+high"


def test_those_that_run_through_their_grace_on_v1_share_what_is_left(world: World) -> None:
    """Frozen each might have half of it, for one system call; four that were drained together had 190 of 95 MiB."""
    world.hierarchy.version = 1
    for uid in (HOG, DB):
        world.tell(KubeletEviction(uid, for_memory=False))
    both_grow(world, 95)
    assert [one.pod for one in reported(world, Held) if one.step == ""][:2] == [HOG, DB]
    for _ in range(2):
        rooms = [world.brakes[uid].log[-2 if world.brakes[uid].log[-1][0] == "thaw" else -1] for uid in (HOG, DB)]
        assert [how for how, _ in rooms] == ["loosen", "loosen"]
        assert sum(cap for _, cap in rooms) - (200 + 301) * MIB <= 95 * MIB // 2
        for held in list(world.holds._holds.values()):
            world.holds._put_in_force(held, held.pod)


def test_the_end_of_one_that_comes_before_counts_once() -> None:
    """A job's pods come and go; a kubelet that does not answer is answered for all the same."""
    answers = KubeletAnswers()
    answers.hold(["held", "job1", "job2"], SECOND)
    found = []
    for uid, held in (("job1", False), ("job2", False), ("other", False), ("held", True)):
        answers.gone(uid, 2 * SECOND, held=held)
        found.append(answers.answered)
        answers.forget()
    assert found == [True, False, False, True]
