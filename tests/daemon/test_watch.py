"""The domains with thresholds: their capacity, their ceilings, and when the kernel says that one is crossed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import live

from monitor.daemon.gauge import Gauge
from monitor.daemon.watch import KUBEPODS_SIGNAL, NODE_SIGNAL, arm_thresholds, make_watch
from monitor.kernel import cgroupfs
from monitor.kernel.domains import _PULL, NO_CEILING, WORDS, Reading, ceiling_pages
from monitor.kernel.wire import CROSS, PAGE
from monitor.policy.thresholds import parse_thresholds

pytestmark = pytest.mark.kernel
MIB = live.MIB
HIERARCHY = cgroupfs.detect()
#: hard 10 %, soft 32Mi
THRESHOLDS = parse_thresholds(
    {"memory.available": "10%"}, {"memory.available": "32Mi"}, {"memory.available": "1s"}, {}, ("pods",)
)


def test_the_kernel_compares_what_the_policy_would() -> None:
    with live.cgroup("watch") as node, live.Watching() as watch:
        made = make_watch(watch.table, "node", NODE_SIGNAL, node, 80 * MIB, THRESHOLDS, HIERARCHY.version)
        try:
            assert made.cgroup_id == cgroupfs.cgroup_id(node)
            assert {t.signal for t in made.thresholds} == {NODE_SIGNAL}
            assert made.floor == 32 * MIB
            watch.sweeper.run()
            arm_thresholds(watch.table, made, kernel_trigger=True)
            with live.Puppet(node) as puppet:
                puppet.do("anon(40)")
                watch.consume()
                assert watch.events == [], "48 MiB may be used before 32 are left"
                puppet.do("anon(36)")
                watch.consume()
                crossings = [e for e in watch.events if e.kind == CROSS]
                assert made.usage_now() == cgroupfs.read_cgroup(HIERARCHY, node).usage
            for event, quantity in zip(crossings, (32 * MIB, 8 * MIB), strict=True):
                threshold = made.thresholds[event.threshold]
                assert threshold.quantity(made.capacity) == quantity
                seen = made.observation(Reading(event.usage, event.inactive_file, event.active_file), event.ts_ns)
                # Below, and seen within one batch of 64 pages on each CPU.
                assert quantity > seen.available >= quantity - 64 * PAGE * (os.cpu_count() or 1)
                assert seen.stamp_ns == event.ts_ns
            words = watch.table._words
            (hard,) = [t.quantity(made.capacity) for t in made.thresholds if t.hard]
            pull_above = words[made.index * WORDS + _PULL]
            assert pull_above == ceiling_pages(made.capacity, hard), "only hard thresholds are answered there"
            arm_thresholds(watch.table, made, kernel_trigger=False)
            assert words[made.index * WORDS + _PULL] == NO_CEILING
        finally:
            os.close(made.usage_fd)


def test_the_machine_has_no_usage_file() -> None:
    with live.Watching(attach=False) as watch:
        made = make_watch(watch.table, "node", NODE_SIGNAL, None, 1 << 34, THRESHOLDS, HIERARCHY.version)
        assert made.machine
        assert made.usage_fd == -1
        assert made.cgroup_id == os.stat(HIERARCHY.root).st_ino == 1
        watch.sweeper.run()
        assert watch.table.reading(made.index).usage > 0


def test_kubepods_takes_its_own_thresholds() -> None:
    with live.cgroup("watch") as kubepods, live.Watching(attach=False) as watch:
        made = make_watch(watch.table, "kubepods", KUBEPODS_SIGNAL, kubepods, 64 * MIB, THRESHOLDS, HIERARCHY.version)
        try:
            assert {t.signal for t in made.thresholds} == {KUBEPODS_SIGNAL}
        finally:
            os.close(made.usage_fd)


def test_the_next_threshold_of_the_machine_and_that_one_more_is_met() -> None:
    """What a hook on charges does not see is held against each of them, the first being met or not."""
    gauge: Any = Gauge.__new__(Gauge)
    gauge._met = 0
    thresholds = parse_thresholds(
        {"memory.available": "10%"}, {"memory.available": "64Mi"}, {"memory.available": "1s"}, {}, ("pods",)
    )
    gauge.watches = [SimpleNamespace(machine=True, index=0, capacity=320 * MIB, thresholds=thresholds)]
    for available, ahead, crossed in (
        (100, 36, False),
        (65, 1, False),
        (64, 0, False),
        (63, 31, True),
        (62, 30, False),
        (31, 0, True),
        (30, 0, False),
        (40, 8, False),
        (31, 0, True),
    ):
        used = 320 - available
        gauge.table = SimpleNamespace(reading=lambda _, used=used: Reading(used * MIB, 0, 0))
        assert gauge._ahead() == ahead * MIB, available
        assert gauge.crossed == crossed, available
