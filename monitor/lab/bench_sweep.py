"""`outrace bench sweep`: what a sweep of all memory cgroups takes, in turns as the hot process takes it, and whether it
counts right.

Cgroups are made below a lab node, each with page cache of its own; a third of them is removed again, and stays charged.
"""

from __future__ import annotations

import os
import time

import click

from monitor.hot.gauge import TURN_NS
from monitor.kernel import cgroupfs
from monitor.kernel.domains import DomainTable
from monitor.kernel.pins import Pins, counts
from monitor.kernel.sched import protect
from monitor.kernel.sweeping import Sweeper
from monitor.lab.bench import STATISTICS, Row, bench, number, summary
from monitor.lab.cgroups import Crowd
from monitor.lab.node import LabNode

NUMBERS = (100, 1_000, 17_000)
NODE_BYTES = 1 << 40
PAGES = 4
#: memory.stat has everything 2 s after the last change.
SETTLE_S = 2.2


def measure(pins: Pins, node: LabNode, number: int, sweeps: int) -> list[Row]:
    """Rows for ``number`` memory cgroups: a turn, a sweep, and by how much the sum is off."""
    parent = cgroupfs.make(node.cgroup / f"crowd{number}")
    table = DomainTable(pins)
    table.reset()
    sweeper = Sweeper(pins, table)
    links = [pins.attach(name) for name in pins.pressure]
    try:
        with Crowd(parent, number) as crowd:
            at = table.add(cgroupfs.cgroup_id(parent))
            crowd.fill(PAGES)
            crowd.kill(number // 3)
            sweeper.run()
            crowd.fill()  # what the programs count by themselves
            by_events = table.reading(at).inactive_file
            turns: list[float] = []
            whole: list[float] = []
            before = counts(pins)
            for _ in range(sweeps):
                first = len(turns)
                sweeper.begin()
                over = False
                while not over:
                    began = time.thread_time_ns()
                    over = sweeper.turn(TURN_NS)
                    turns.append((time.thread_time_ns() - began) / 1000)
                whole.append(sum(turns[first:]))
            swept = (counts(pins)["swept"] - before["swept"]) // sweeps
            time.sleep(SETTLE_S)
            reported = cgroupfs.read_cgroup(node.hierarchy, parent).inactive_file
            sweeper.run()
            exact = table.reading(at).inactive_file
        return [
            summary(f"turn_{number}", turns),
            summary(f"sweep_{number}", whole),
            summary(f"visited_{number}", [swept], "cgroups"),
            summary(f"off_after_sweep_{number}", [abs(exact - reported)], "bytes"),
            summary(f"off_by_events_{number}", [abs(by_events - reported)], "bytes"),
        ]
    finally:
        for link in links:
            os.close(link)
        table.reset()
        table.close()


@bench(STATISTICS)
@click.option(
    "--cgroups", type=click.IntRange(10), multiple=True, default=NUMBERS, show_default=True, help="Number of cgroups."
)
@number("--sweeps", 20, "Sweeps for each number of cgroups.")
def sweep(cgroups: tuple[int, ...], sweeps: int) -> list[Row]:
    """Measure sweeps of all memory cgroups, and what is wrong after them.

    "turn" is CPU time of one turn of the hot thread, "sweep" of a whole sweep; "off" is how far the sum of inactive
    file pages is from memory.stat, after a sweep and by what the programs counted since one.
    """
    with LabNode("bench-sweep", NODE_BYTES) as node:
        directory = node.load_programs()
        protect()  # as the hot process runs
        return [row for number in cgroups for row in measure(Pins.open(directory), node, number, sweeps)]
