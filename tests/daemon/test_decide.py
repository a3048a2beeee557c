"""What the hot process does around a pass of the policy, without a kernel: when it is due, its order, its victim.

Whole streams of passes, with everything that may come between them, are in tests/replay/test_passes.py.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.hot import succession
from monitor.hot.disk_signals import SETTLE_NS
from monitor.hot.moved_pods import REREAD_NS, MovedPods
from monitor.hot.pass_timer import FIRST_RECHECK_NS, RECHECK_NS, PassTimer
from monitor.link.messages import DiskFigures, Reclaim, StallCause
from monitor.policy.decisions import QUIET_NS, REPEAT_NS
from monitor.settings.config import RunConfig
from tests.replay.world import PODS, SECOND, World, clocked

HARD = {"memory.available": "100Mi", "nodefs.available": "10%", "pid.available": "10%"}
Make = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes a hot process with two pods: the second is further above its request."""
    stack = ExitStack()

    def made(**settings: Any) -> World:
        config = RunConfig(**{"eviction_hard": HARD, "compat": "kubelet-1.36", **settings})
        world = World(config, tmp_path)
        stack.enter_context(clocked(world))
        world.put(0, 0, 10, "Burstable", False, 50)
        world.put(1, 0, 10, "Burstable", False, 200)
        return world

    with stack:
        yield made


def test_an_observed_decision_is_repeated_as_rarely_as_a_kubelet_would(make: Make) -> None:
    world = make(enforce=False)
    world.run(50, False)
    world.wait(QUIET_NS)
    world.run(50, False)
    assert [one.pod for one in world.sent] == [PODS[1]]
    world.wait(1)
    world.run(50, True)  # a crossing is news
    world.wait(REPEAT_NS)
    world.run(50, False)
    assert [(one.id, one.observed, one.crossed_ns is not None) for one in world.sent] == [
        (1, True, False),
        (2, True, True),
        (3, True, False),
    ]


def test_a_hard_threshold_hurries_the_pod_that_is_in_its_grace(make: Make) -> None:
    soft = {"eviction_soft": {"memory.available": "200Mi"}, "eviction_soft_grace_period": {"memory.available": "1s"}}
    world = make(enforce=True, eviction_max_pod_grace_period_s=20, **soft)
    world.press(151)
    world.press(151)
    assert world.sent[0].given_s == 10
    world.press(149)
    assert world.hurried == []
    world.press(49)
    assert world.hurried == [world.now_ns]


@pytest.mark.parametrize("evict_by", ["kill", "api"])
def test_an_eviction_of_an_earlier_daemon_goes_on_where_outrace_kills(
    make: Make, monkeypatch: pytest.MonkeyPatch, evict_by: str
) -> None:
    """With --evict-by api outrace enforces and sends no signal, and sent the SIGKILL that was due."""
    world, taken = make(enforce=True, evict_by=evict_by), list[bool]()
    monkeypatch.setattr(succession, "succeed", lambda *_, pressed: taken.append(world.decider.may_act))
    world.decider.may_act = False
    world.decider.begin(1)
    assert taken == [False] * (evict_by == "kill"), "before any decision"
    assert world.decider.may_act


def test_pods_over_their_own_limits_go_first_and_one_by_one(make: Make) -> None:
    world = make(enforce=True)
    world.disks(1, [1, 0], [0, 1])
    assert [(one.kind, one.pod) for one in world.sent] == [("limit", PODS[0])]
    world.end(0, False)
    assert world.decider.evict_over_limit()
    assert [(one.kind, one.pod, one.message) for one in world.sent[1:]] == [("limit", PODS[1], "too much in 1")]


@pytest.mark.parametrize("why", ["", "critical", "pressed", "busy", "held", "uncounted"])
def test_the_cause_of_a_stall_is_evicted_while_no_memory_is_about_to_come_back(make: Make, why: str) -> None:
    soft = {"eviction_soft": {"memory.available": "200Mi"}, "eviction_soft_grace_period": {"memory.available": "1m"}}
    world = make(enforce=True, **soft)
    entry = world.registry.by_uid[PODS[1]]
    entry.critical, entry.counted = why == "critical", why != "uncounted"
    world.decider.holds.is_in_the_way = why == "held"
    if why == "busy":
        world.press(49)
    world.press(151 if why == "pressed" else 300)
    before = len(world.sent)
    world.decider.take_stall_cause(StallCause(PODS[1], "b waits"))
    found = [(one.kind, one.pod, one.message, one.given_s) for one in world.sent[before:]]
    assert found == ([] if why else [("limit", PODS[1], "b waits", 1)])


# ---- disks and process ids


DISK, PIDS = "nodefs.available", "pid.available"


def measured(world: World, cleaned: bool = False, **available: int) -> None:
    """The helper reports figures: of the disk and of process ids, which are short below 10."""
    names = {"disk": DISK, "pids": PIDS}
    seen = {names[name]: [left, 100, world.now_ns] for name, left in available.items()}
    world.decider.take_disk_figures(DiskFigures(seen, dict.fromkeys(seen, PODS[:2]), {}, cleaned))


def test_what_an_evicted_pod_leaves_on_the_disk_costs_no_other_until_it_has_settled(make: Make) -> None:
    """The next pod is not evicted at once, as if the first had done nothing; nor does that hold up another signal."""
    world = make(enforce=True)
    measured(world, disk=5)
    world.end(0, fires=False)
    world.wait(SETTLE_NS - 1)
    measured(world, disk=5)
    assert [(one.signal, one.pod) for one in world.sent] == [(DISK, PODS[0])]
    measured(world, disk=5, pids=5)
    assert [(one.signal, one.pod) for one in world.sent[1:]] == [(PIDS, PODS[1])]
    world.end(0, fires=False)
    world.put(2, 0, 10, "Burstable", False, 1)
    world.wait(1)
    world.decider.take_disk_figures(DiskFigures({DISK: [5, 100, world.now_ns]}, {DISK: [PODS[2]]}, {}, False))
    assert [(one.signal, one.pod) for one in world.sent[2:]] == [(DISK, PODS[2])]


@pytest.mark.parametrize("how", ["reported", "in vain", "lost"])
def test_the_node_is_cleaned_up_before_a_pod_goes(make: Make, how: str) -> None:
    """The hot process requests a clean-up again when the helper that ran it has died."""
    world = make(enforce=True, reclaim_images=("rm",))
    asked: list[Any] = []
    world.decider._disks._send = asked.append
    for _ in range(2):
        measured(world, disk=5)
        world.wait(SECOND)
    assert (asked, world.sent) == ([Reclaim(DISK)], [])
    if how == "lost":
        world.decider._disks.forget()
        measured(world, disk=5)
        assert len(asked) == 2
        world.wait(1)
    measured(world, True, disk=50 if how == "reported" else 5)
    assert [one.pod for one in world.sent] == ([] if how == "reported" else [PODS[0]])


def test_observing_a_short_disk_no_clean_up_is_asked_for_and_shown(make: Make) -> None:
    world = make(enforce=False, reclaim_images=("rm",))
    world.decider._disks._send = pytest.fail
    measured(world, disk=5)
    assert [(one.pod, one.cleanup) for one in world.sent] == [(PODS[0], ["DeleteUnusedImages"])]


# ---- when a pass is due


def test_after_a_crossing_that_was_over_the_next_looks_are_close_and_end() -> None:
    timer, waits, now = PassTimer(), [], SECOND
    timer.begin(now)
    timer.plan(crossed_ns=now, pressed=False, was_pressed=False)
    while (due := timer.due_ns(None, False)) is not None:
        waits.append(due - now)
        now = due
        timer.begin(now)
        timer.plan(crossed_ns=0, pressed=False, was_pressed=False)
    assert waits[0] == FIRST_RECHECK_NS
    assert waits == sorted(waits)
    assert waits[-1] == RECHECK_NS


def test_when_pressure_ends_there_is_one_look_more() -> None:
    timer = PassTimer()
    timer.begin(SECOND)
    timer.plan(crossed_ns=0, pressed=False, was_pressed=True)
    assert (timer.due_ns(None, False), timer.due_ns(SECOND + 1, False)) == (SECOND + RECHECK_NS, SECOND + 1)


# ---- which pods moved


def test_only_a_first_victim_that_grows_keeps_its_place(make: Make) -> None:
    world = make()
    first = world.registry.first()
    other = world.registry.by_uid[PODS[0]]
    pods = MovedPods(world.decider._gauge, world.registry, world.evictor, SimpleNamespace(log=None))
    for moved, keeps in (
        ({first.index: first.usage + 1}, True),
        ({first.index: first.usage - 1}, False),
        ({other.index: 0}, False),
        ({first.index: first.usage + 1, other.index: 0}, False),
    ):
        pods.moved.clear()
        pods.moved.update(moved)
        assert pods.keeps_order() is keeps


def test_a_pod_that_gave_memory_back_is_counted_again_soon(make: Make) -> None:
    world = make()
    decider, entry = world.decider, world.registry.by_uid[PODS[1]]
    decider.step(entry.index, entry.usage + 1)
    assert decider.pods.reread_ns is None
    decider.step(entry.index, entry.usage - 1)
    assert decider.pods.reread_ns == world.now_ns + REREAD_NS
    assert (decider.steps, list(decider.pods.moved)) == (2, [entry.index])
    decider._gauge.reread = lambda: None
    decider._trigger.prepare = lambda may_arm: None
    world.table.sets[entry.index] = 7
    decider.reread()
    assert (entry.usage, decider.pods.reread_ns, decider.pods.moved) == (7, None, {})


def test_a_record_that_waited_ranks_nobody_by_what_he_had(make: Make) -> None:
    """The pod that grows fills its ring; by a record of a second ago it stayed behind one that does not grow."""
    world = make()
    decider, entry = world.decider, world.registry.by_uid[PODS[1]]
    world.table.sets[entry.index] = now = 900 << 20
    world.registry.move(entry, now)
    decider.step(entry.index, 10)
    decider.rank_moved()
    assert entry.usage == now
