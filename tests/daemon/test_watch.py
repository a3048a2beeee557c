"""The domains with thresholds: their capacity, their ceilings, and when the kernel reports that one is crossed."""

import os
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from monitor.hot.housekeeping import Housekeeping
from monitor.kernel import bounds, cgroupfs
from monitor.kernel.domains import NO_CEILING, PULL, WORDS, Reading, ceiling_pages
from monitor.kernel.wire import CROSS, PAGE
from monitor.policy.signals import MEMORY
from monitor.policy.thresholds import parse_thresholds
from monitor.sources.watch import arm_thresholds, make_watches
from tests import live
from tests.daemon import stand_ins

MIB = live.MIB
#: hard 10 %, soft 32Mi
THRESHOLDS = parse_thresholds(
    {"memory.available": "10%"}, {"memory.available": "32Mi"}, {"memory.available": "1s"}, {}, ("pods",)
)


@pytest.mark.kernel
def test_the_kernel_compares_what_the_policy_would() -> None:
    hierarchy = cgroupfs.detect()
    with live.cgroup("watch") as node, live.Watching() as watch:
        made = make_watches(watch.table, "node", node, 80 * MIB, THRESHOLDS, hierarchy.version)[0]
        try:
            assert made.cgroup_id == cgroupfs.cgroup_id(node)
            assert {t.signal for t in made.thresholds} == {MEMORY}
            assert made.floor == 32 * MIB
            watch.sweeper.run()
            arm_thresholds(watch.table, made, kernel_trigger=True)
            with live.Puppet(node) as puppet:
                puppet.do("anon(40)")
                watch.consume()
                assert watch.events == [], "48 MiB may be used before 32 are left"
                puppet.do("anon(36)")
                watch.consume()
                # The first of each threshold: one that loses its CPU at the line may cross it once more.
                crossings = [*{e.threshold: e for e in reversed(watch.events) if e.kind == CROSS}.values()]
                # What a CPU has in stock for a cgroup may go back between the two looks.
                live.until(lambda: made.usage_now() == cgroupfs.read_cgroup(hierarchy, node).usage, "the same usage")
            for event, quantity in zip(sorted(crossings, key=lambda e: e.ts_ns), (32 * MIB, 8 * MIB), strict=True):
                threshold = made.thresholds[event.threshold]
                assert threshold.quantity(made.capacity) == quantity
                seen = made.observation(Reading(event.usage, event.inactive_file, event.active_file), event.ts_ns)
                # Below, and seen within one batch of 64 pages on each CPU.
                assert quantity > seen.available >= quantity - 64 * PAGE * (os.cpu_count() or 1)
                assert seen.stamp_ns == event.ts_ns
            words = watch.table._words
            (hard,) = [t.quantity(made.capacity) for t in made.thresholds if t.hard]
            pull_above = words[made.index * WORDS + PULL]
            assert pull_above == ceiling_pages(made.capacity, hard), "only hard thresholds are answered there"
            arm_thresholds(watch.table, made, kernel_trigger=False)
            assert words[made.index * WORDS + PULL] == NO_CEILING
        finally:
            os.close(made.usage_fd)


def test_the_next_threshold_of_the_machine_and_that_one_more_is_met() -> None:
    """What a hook on charges does not see is held against each of them, the first being met or not."""
    gauge: Any = stand_ins.gauge()
    thresholds = parse_thresholds(
        {"memory.available": "10%"}, {"memory.available": "64Mi"}, {"memory.available": "1s"}, {}, ("pods",)
    )
    lines = tuple(t.quantity(320 * MIB) for t in thresholds)
    gauge.watches = [SimpleNamespace(machine=True, formula=0, index=0, capacity=320 * MIB, lines=lines)]
    for available, ahead, crossed in (
        (100, 36, False),
        (65, 1, False),
        (64, 0, False),  # met is what is strictly below
        (63, 31, True),
        (62, 30, False),
        (31, None, True),
        (30, None, False),
        (40, 8, False),
        (31, None, True),
    ):
        used = 320 - available
        gauge.table = SimpleNamespace(reading=lambda _, used=used: Reading(used * MIB, 0, 0))
        assert gauge._ahead() == (None if ahead is None else ahead * MIB), available
        assert gauge.crossed == crossed, available


@pytest.mark.parametrize(("available", "wait_ns"), [(1024, bounds.REREAD_NS), (164, 8_138_020), (64, 1_600_000)])
def test_what_is_never_charged_is_looked_at_again_before_it_can_cross(available: int, wait_ns: int) -> None:
    """The wait goes to the arming, and the metric is what can move in it."""
    rate, stats = 12 << 30, {}
    # It stays attached, by a hook on charges with the machine as the node.
    arming = MagicMock(rereads=True, partial=True, armed=True, looks=True, near=1 << 40)
    arming.decide.return_value = False
    gauge: Any = stand_ins.gauge(arming=arming, config={"max_fill_rate": rate})
    gauge.take_capacities = lambda: None
    gauge._stats = SimpleNamespace(set=stats.__setitem__, add=lambda _: None)
    gauge.table = SimpleNamespace(reading=lambda _: Reading((2048 - available) * MIB, 0, 0))
    hard = parse_thresholds({"memory.available": "64Mi"}, {}, {}, {}, ("pods",))
    lines = (64 * MIB,)
    gauge.watches = [
        SimpleNamespace(
            machine=True, formula=0, index=0, capacity=2048 * MIB, thresholds=hard, lines=lines, floor=lines[0]
        )
    ]
    assert not gauge.look(5, lambda: True)
    assert gauge.headroom == (available - 64) * MIB
    assert arming.decide.call_args.args[2] == wait_ns
    assert stats == {"wait_ns": wait_ns}


@pytest.mark.parametrize(
    ("crossed", "headroom", "pressed", "passes"),
    [(False, 1, False, 0), (True, -1, True, 1), (False, -1, True, 0), (False, -1, False, 1), (True, 1, True, 1)],
)
def test_a_look_that_finds_another_threshold_met_has_the_policy_asked(
    crossed: bool, headroom: int, pressed: bool, passes: int
) -> None:
    """No record comes from the kernel; and where a soft threshold is met for hours, a look is not a pass."""
    asked = []
    gauge: Any = SimpleNamespace(
        look=lambda *_: False, arming=SimpleNamespace(rereads=True), headroom=headroom, crossed=crossed, recapped=False
    )
    decider: Any = SimpleNamespace(pressed=pressed, run_pass=lambda: asked.append(1))
    nothing = MagicMock()
    Housekeeping(gauge, nothing, nothing, decider, *[nothing] * 3).look(5)
    assert len(asked) == passes


@pytest.mark.parametrize(("machine", "is_exact"), [(True, True), (True, False), (False, True), (False, False)])
def test_what_nothing_keeps_exact_is_read_for_each_reading(machine: bool, is_exact: bool) -> None:
    gauge: Any = stand_ins.gauge(is_exact=is_exact)
    gauge.reading(SimpleNamespace(index=3, machine=machine, usage_now=lambda: 5 * MIB))
    assert [one.args for one in gauge._sweeper.touch.call_args_list] == ([] if is_exact and not machine else [(3,)])
