"""Memory by outrace's own formulas, held against the kernel's files: on every hook, and without BPF."""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from monitor.kernel import cgroupfs, charging, loader, meminfo
from monitor.kernel.charging import BPF_RUNGS, POLL
from monitor.kernel.domains import MACHINE, RECLAIMABLE, DomainTable, Reading, ceiling_pages
from monitor.kernel.sweeping import Stepwise
from monitor.kernel.wire import CROSS, PAGE
from monitor.sources.polled_table import PolledSweeper, PolledTable
from tests import live

MIB = live.MIB
HIERARCHY = cgroupfs.detect()


class Bench(NamedTuple):
    """A table of one rung, with what makes it exact."""

    rung: str
    table: DomainTable | PolledTable
    sweeper: Stepwise
    watching: live.Watching | None


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.kernel) for name in (*BPF_RUNGS, POLL)])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    if request.param == POLL:
        table = PolledTable(HIERARCHY)
        yield Bench(POLL, table, PolledSweeper(table), None)
        table.reset()
        return
    offer = next(offer for offer in charging.offered() if offer.name == request.param)
    if not offer.ok:
        pytest.skip(f"{offer.name}: {offer.why}")
    with live.Watching(hook=request.param, formulas=loader.RECLAIMABLE) as watching:
        yield Bench(request.param, watching.table, watching.sweeper, watching)


def add(bench: Bench, path: Path) -> tuple[int, int]:
    """The cgroup's entries by the two formulas."""
    first = bench.table.add(cgroupfs.cgroup_id(path), path=path)
    other = bench.table.add_formula(first, RECLAIMABLE, path=path)
    bench.sweeper.run()
    return first, other


def drain_batches() -> None:
    """mlock takes pages off the lists in batches, and ends with the batch of the CPU it is on (mm/mlock.c): what a
    process left in another CPU's batch when it was moved stays on its list until something there drains it.
    """
    libc, allowed = ctypes.CDLL(None), os.sched_getaffinity(0)
    page = ctypes.create_string_buffer(1)
    try:
        for cpu in allowed:
            os.sched_setaffinity(0, {cpu})
            assert libc.mlock(page, 1) == libc.munlock(page, 1) == 0
    finally:
        os.sched_setaffinity(0, allowed)


def test_every_formula_has_the_kernels_own_figures(bench: Bench, files: Path) -> None:
    with live.cgroup("formulas", 256 * MIB) as node:
        pod = cgroupfs.make(node / "pod")
        indexes = add(bench, node)
        with live.Puppet(pod) as puppet:
            # Anonymous and shared memory; mlocked page cache, which the kernel takes off its lists when it comes to it
            # (in a guest of 7.2 not within 120 s): the formulas follow its figures, whichever they are.
            puppet.do("anon(8); fd = os.memfd_create('x'); os.write(fd, bytes(4 * MIB))")
            puppet.do(f"write('{files}/read', 24); read('{files}/read'); read('{files}/read')")
            puppet.do(f"write('{files}/once', 8)")
            puppet.do(f"write('{files}/kept', 6); pinned('{files}/kept')")

            def agree() -> bool:
                bench.sweeper.run()
                kernels, first = cgroupfs.read_cgroup(HIERARCHY, node), bench.table.reading(indexes[0])
                reclaimable = bench.table.reading(indexes[1])
                cache = kernels.inactive_file + kernels.active_file
                figures["cache"] = cache
                return (
                    30 * MIB <= cache <= 41 * MIB
                    and first.used == kernels.working_set
                    and reclaimable.used == kernels.usage - cache
                    and reclaimable.usage == kernels.usage
                    and reclaimable.inactive_file + reclaimable.active_file == cache
                )

            figures: dict[str, int] = {}
            drain_batches()
            live.until(agree, lambda: f"the formulas to agree: {figures}")
            reclaimable = bench.table.reading(indexes[1])
            if not meminfo.multi_gen_lru():
                assert reclaimable.active_file >= 22 * MIB
                assert bench.table.reading(indexes[0]).used - reclaimable.used >= 22 * MIB


@pytest.mark.kernel
def test_the_kernel_reports_each_formulas_crossing_by_itself(bench: Bench, files: Path) -> None:
    """Page cache read twice crosses the kubelet's line alone; what is anonymous crosses the other as well."""
    if bench.watching is None:
        pytest.skip("the loop compares what it polls: tests/daemon/test_poller.py")
    active = f"[f({str(files)!r} + n) for n in ('/a', '/b', '/c', '/d') for f in (lambda p: write(p, 10), read, read)]"
    with live.cgroup("crossings", 256 * MIB) as node:
        pod = cgroupfs.make(node / "pod")
        indexes = add(bench, node)
        for index in indexes:
            bench.table.set_ceilings(index, [ceiling_pages(256 * MIB, 256 * MIB - 32 * MIB)])

        def crossed() -> set[int]:
            bench.watching.consume()
            return {e.domain for e in bench.watching.events if e.kind == CROSS and e.domain in indexes}

        with live.Puppet(pod) as puppet:
            puppet.do(active)
            puppet.do("anon(4)")
            bench.sweeper.run()
            puppet.do("anon(4)")
            first = bench.table.reading(indexes[0])
            if first.active_file >= 34 * MIB:  # the multi-gen LRU decides by itself what is active
                live.until(lambda: indexes[0] in crossed(), "the kubelet's line to be crossed")
            assert crossed() <= {indexes[0]}
            puppet.do("anon(40)")
            live.until(lambda: crossed() == set(indexes), "every line to be crossed")
        seen = {e.domain: e for e in bench.watching.events if e.kind == CROSS}
        event = seen[indexes[1]]
        reading = Reading(event.usage, event.inactive_file, event.active_file, reclaimable=True)
        assert 32 * MIB <= reading.used <= 33 * MIB + live.GATE, "reported by the charge that crossed it"


def test_an_entry_for_a_formula_ends_with_its_cgroup(bench: Bench) -> None:
    with live.cgroup("gone", 64 * MIB) as one, live.cgroup("next", 64 * MIB) as other:
        indexes = add(bench, one)
        bench.table.remove(cgroupfs.cgroup_id(one))
        assert all(bench.table.cgroup_id(index) == 0 for index in indexes)
        assert bench.table.index(cgroupfs.cgroup_id(one)) is None
        again = bench.table.add(cgroupfs.cgroup_id(other), path=other)
        assert again in indexes, "its places are given to others"
        bench.sweeper.run()
        assert bench.table.synced(again)
        assert bench.table.reading(again).usage <= live.GATE


def test_the_machine_by_every_formula(bench: Bench) -> None:
    first = bench.table.add(1, flags=MACHINE)
    other = bench.table.add_formula(first, RECLAIMABLE)
    bench.sweeper.run()
    names = ("nr_anon_pages", "nr_file_pages", "nr_inactive_file", "nr_active_file")

    def vmstat() -> list[int]:
        values = live.vmstat()
        return [values[name] * PAGE for name in names]

    def quiet() -> bool:
        before = vmstat()
        for index in (first, other):
            bench.sweeper.touch(index)
        anon, cache, inactive, active = before
        if before != vmstat():
            return False
        own = bench.table.reading(first)
        return (own.usage, own.used) == (anon + cache, anon + cache - inactive) and (
            bench.table.reading(other).used == anon + cache - inactive - active
        )

    live.until(quiet, "the machine's figures to be those of /proc/vmstat")
