"""Crossings on the live kernel: each one reported once, none missed, none made up, and what is lost is counted."""

import os
import select
import sys
from pathlib import Path

import pytest

from monitor.errors import MonitorError
from monitor.kernel import cgroupfs, meminfo
from monitor.kernel.domains import MAX_DOMAINS
from monitor.kernel.wire import CROSS, PAGE, STEP
from monitor.lab.node import LabNode
from tests import live

pytestmark = pytest.mark.kernel
MIB = live.MIB


def ceiling(watch: live.Watching, index: int, above: int) -> None:
    """A ceiling ``above`` bytes over the domain's working set of this moment."""
    watch.sweeper.run()
    watch.table.set_ceilings(index, [(watch.table.working_set(index) + above) // PAGE])


def test_four_hogs_cross_a_few_hundred_times_and_each_is_reported_once() -> None:
    cycles = 20 if live.emulated() else 60
    low, high = 5 * MIB // 2, 9 * MIB // 2
    with LabNode("test-cross", 192 * MIB) as node, live.Watching() as watch:
        pods = [node.add_pod(f"p{i}") for i in range(4)]
        # 2.5 ms for each MiB, 20 ms to grow: from one crossing of a ceiling to its next is always longer than rearm_ns
        # (5 ms), and no hog rests near one.
        hogs = [node.start_hog(pod, mib=8, rate=400, cycles=cycles) for pod in pods]
        indexes = [watch.add(pod.cgroup) for pod in pods]
        ids = [cgroupfs.cgroup_id(pod.cgroup) for pod in pods]
        watch.sweeper.run()
        ceilings = {}
        for index in indexes:
            base = watch.table.working_set(index)
            ceilings[index] = [(base + low) // PAGE, (base + high) // PAGE]
            watch.table.set_ceilings(index, ceilings[index])
        watch.consume()
        assert watch.events == []
        for hog in hogs:
            hog.go()
        waiting = {hog.process.stdout: hog for hog in hogs}
        ring = watch.rings["events"]
        while waiting:
            ready = select.select([*waiting, ring], [], [], live.TIMEOUT_S)[0]
            assert ready, "neither a crossing nor an end of a hog"
            watch.consume()
            for stream in set(ready) & waiting.keys():
                waiting.pop(stream).expect("grown")
        watch.consume()
        counted = watch.counted()
    assert (counted["emitted_cross"], counted["lost_cross"]) == (len(watch.events), 0)
    assert {(event.kind, event.cgroup_id) for event in watch.events} == {(CROSS, number) for number in ids}
    # khugepaged charges too, when it makes one page of the small ones of an interpreter.
    charged = {event.tgid for event in watch.events}
    assert {pid for pid in charged if not live.kernel_thread(pid)} == {hog.pid for hog in hogs}
    for index in indexes:
        seen: list[live.Event] = []
        for event in (event for event in watch.events if event.domain == index):
            # Another CPU's drained batch may have been taken off between comparing and reporting.
            assert event.working_set > ceilings[index][event.threshold] * PAGE - 64 * PAGE * (os.cpu_count() or 1)
            # A hog that loses its CPU at the line loses the unused part of its batch too: below, and above again. That
            # is news once rearm_ns is over, which the next but one test decides without a clock.
            if seen and seen[-1].threshold == event.threshold:
                continue
            seen.append(event)
        assert [event.threshold for event in seen] == [0, 1] * cycles


def test_every_ceiling_is_reported_in_its_turn_and_ancestors_too() -> None:
    with live.cgroup("levels") as node, live.Watching() as watch:
        pod = cgroupfs.make(node / "pod")
        watch_node, watch_pod = watch.add(node), watch.add(pod)
        with live.Puppet(pod) as puppet:
            watch.sweeper.run()
            for index in (watch_node, watch_pod):
                base = watch.table.working_set(index)
                watch.table.set_ceilings(index, [(base + n * MIB) // PAGE for n in (9, 3, 6)])
            puppet.do("anon(12)")
            watch.consume()
            order = [*dict.fromkeys((e.domain, e.threshold) for e in watch.events)]  # each once, as above
            assert [t for d, t in order if d == watch_node] == [1, 2, 0]
            assert [t for d, t in order if d == watch_pod] == [1, 2, 0]
            assert watch.table.crossed(watch_node) == watch.table.crossed(watch_pod) == 0b111

            # Staying above is no news; going below and above again is.
            watch.events.clear()
            puppet.do("anon(4)")
            watch.consume()
            assert watch.events == []
            puppet.do("kept.clear()")
            puppet.do("anon(1); time.sleep(0.006); anon(1); kept.clear()")  # rearm_ns passes below the ceilings
            puppet.do("anon(12)")
            watch.consume()
            assert {(e.domain, e.threshold) for e in watch.events} == set(order)


def test_trembling_at_the_line_is_one_crossing() -> None:
    with live.cgroup("tremble") as pod, live.Watching() as watch, live.Puppet(pod) as puppet:
        index = watch.add(pod, rearm_ns=3_600_000_000_000)
        puppet.do("anon(4)")
        ceiling(watch, index, 2 * MIB)
        for _ in range(20):
            puppet.do("anon(4); kept.pop()")
        watch.consume()
        assert [(e.kind, e.domain) for e in watch.events] == [(CROSS, index)]


@pytest.mark.skipif(meminfo.multi_gen_lru(), reason="reading twice activates nothing here: see test_generations.py")
def test_page_cache_that_turns_active_crosses_without_a_charge(files: Path) -> None:
    with live.cgroup("active") as node, live.Watching() as watch:
        if watch.partial:
            pytest.skip("this kernel's hook sees charges only: a sweep sees it, see test_charging.py")
        pod = cgroupfs.make(node / "pod")
        index = watch.add(node)
        with live.Puppet(pod) as puppet:
            puppet.do(f"write('{files}/a', 32)")
            ceiling(watch, index, 8 * MIB)
            watch.consume()
            watch.events.clear()
            usage = cgroupfs.read_cgroup(cgroupfs.detect(), node).usage
            puppet.do(f"read('{files}/a'); read('{files}/a')")
            watch.consume()
            assert abs(cgroupfs.read_cgroup(cgroupfs.detect(), node).usage - usage) < MIB, "this was to charge nothing"
    (crossing,) = watch.events
    assert (crossing.kind, crossing.domain, crossing.threshold) == (CROSS, index, 0)
    assert abs(crossing.usage - usage) < MIB
    assert crossing.active_file >= 7 * MIB


def test_page_cache_being_freed_is_no_crossing(files: Path) -> None:
    with live.cgroup("free") as pod, live.Watching() as watch, live.Puppet(pod) as puppet:
        index = watch.add(pod)
        for how in ("drop('{}')", "os.truncate('{}', 0)", "os.unlink('{}')"):
            puppet.do(f"write('{files}/a', 64)")
            ceiling(watch, index, 2 * MIB)
            watch.consume()  # large folios are charged some MiB before they are counted as page cache
            watch.events.clear()
            puppet.do(how.format(files / "a"))
            watch.consume()
            assert [(e.usage >> 20, e.inactive_file >> 20) for e in watch.events] == [], how


@pytest.mark.once
def test_a_full_ring_is_counted() -> None:
    with LabNode("test-full", 128 * MIB) as node, live.Watching() as watch:
        pod = node.add_pod("p")
        indexes = {watch.add(path, step=PAGE) for path in (node.cgroup, pod.cgroup, *pod.containers.values())}
        watch.sweeper.run()
        # 1 MiB of ring holds 11,915 records of 80 + 8 bytes; growing by 64 MiB gives at most 256 for each of three
        # cgroups, fewer on a fast machine: STEP_NS is between two.
        hog = node.start_hog(pod, mib=64, cycles=24)
        for _ in range(20):
            hog.go()
            hog.expect("grown")
            counted = watch.counted()
            if counted["lost_step"]:
                break
        assert counted["lost_step"] > 0
        watch.consume()
        assert {(e.kind, e.domain) for e in watch.events} == {(STEP, index) for index in indexes}
        assert counted["emitted_step"] == (1 << 20) // 88
        # While that is read there is room for more: khugepaged charges the idle pod too.
        assert counted["emitted_step"] <= len(watch.events) <= watch.counted()["emitted_step"]
        # Room again: the next records get through.
        watch.events.clear()
        hog.free()
        watch.consume()
        assert len(watch.events) > 0


def test_a_crossing_that_could_not_be_noted_is_reported_by_the_next_charge() -> None:
    """Where the map of crossings takes no entry, no other charge has reported it. (A full one stands for a lock of it
    that cannot be had, which has the same answer and cannot be brought about.)
    """
    with live.cgroup("noted") as pod, live.Watching() as watch, live.Puppet(pod) as puppet:
        index = watch.add(pod)
        ceiling(watch, index, 2 * MIB)
        crossings = watch.pins.map("crossings")
        others = [(n << 8).to_bytes(8, sys.byteorder) for n in range(MAX_DOMAINS, 4 * MAX_DOMAINS)]

        def fill() -> None:
            for key in others:
                crossings.update(key, bytes(8))

        try:
            with pytest.raises(MonitorError, match="cannot write to a BPF map"):
                fill()
            puppet.do("anon(4)")
            watch.consume()
            assert (watch.events, watch.table.crossed(index)) == ([], 0)
        finally:
            for key in others:
                crossings.delete(key)
            os.close(crossings.fd)
        puppet.do("anon(4)")
        watch.consume()
        assert [(e.kind, e.domain, e.threshold) for e in watch.events] == [(CROSS, index, 0)]
        assert watch.table.crossed(index) == 1
