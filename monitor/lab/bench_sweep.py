"""`outrace bench sweep`: what a sweep of all memory cgroups takes, in turns as the hot process takes it, and whether it
counts right.

Cgroups are made below a lab node, each with page cache of its own; a third of them is removed again, and stays charged.
"""

from __future__ import annotations

import math
import os
import statistics
import time

import click

from monitor.cli.output import output_option, print_json, print_table
from monitor.hot.gauge import TURN_NS
from monitor.kernel import cgroupfs
from monitor.kernel.domains import DomainTable
from monitor.kernel.pins import Pins, counts
from monitor.kernel.sched import protect
from monitor.kernel.sweeping import Sweeper
from monitor.lab.cgroups import Crowd
from monitor.lab.node import LabNode, require_root

NUMBERS = (100, 1_000, 17_000)
NODE_BYTES = 1 << 40
PAGES = 4
#: memory.stat has everything 2 s after the last change.
SETTLE_S = 2.2


def row(name: str, unit: str, values: list[float]) -> dict[str, object]:
    ordered = sorted(values)
    return {
        "name": name,
        "unit": unit,
        "n": len(ordered),
        "p50": round(statistics.median(ordered), 1),
        "p99": round(ordered[math.ceil(len(ordered) * 0.99) - 1], 1),
        "max": round(ordered[-1], 1),
    }


def measure(pins: Pins, node: LabNode, number: int, sweeps: int) -> list[dict[str, object]]:
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
            crowd.touch()  # what the programs count by themselves
            by_events = table.reading(at).inactive_file
            turns: list[float] = []
            whole: list[float] = []
            before = counts(pins)
            for _ in range(sweeps):
                spent = 0
                sweeper.begin()
                over = False
                while not over:
                    began = time.thread_time_ns()
                    over = sweeper.turn(TURN_NS)
                    took = time.thread_time_ns() - began
                    turns.append(took / 1000)
                    spent += took
                whole.append(spent / 1000)
            swept = (counts(pins)["swept"] - before["swept"]) // sweeps
            time.sleep(SETTLE_S)
            said = cgroupfs.read_cgroup(node.hierarchy, parent).inactive_file
            sweeper.run()
            exact = table.reading(at).inactive_file
        return [
            row(f"turn_{number}", "us", turns),
            row(f"sweep_{number}", "us", whole),
            row(f"visited_{number}", "cgroups", [float(swept)]),
            row(f"off_after_sweep_{number}", "bytes", [float(abs(exact - said))]),
            row(f"off_by_events_{number}", "bytes", [float(abs(by_events - said))]),
        ]
    finally:
        for link in links:
            os.close(link)
        table.reset()
        table.close()


def run(numbers: tuple[int, ...], sweeps: int) -> list[dict[str, object]]:
    """Measure on this machine. CannotError if not root or without BPF."""
    require_root("bench sweep", "loads BPF programs")
    with LabNode("bench-sweep", NODE_BYTES) as node:
        directory = node.load_programs()
        protect()  # as the hot process runs
        return [line for number in numbers for line in measure(Pins.open(directory), node, number, sweeps)]


@click.command()
@output_option
@click.option(
    "--cgroups", type=click.IntRange(min=10), multiple=True, default=NUMBERS, show_default=True, help="How many."
)
@click.option("--sweeps", type=click.IntRange(min=1), default=20, show_default=True, help="Sweeps of each number.")
def sweep(output: str, cgroups: tuple[int, ...], sweeps: int) -> None:
    """Measure sweeps of all memory cgroups, and what is wrong after them.

    "turn" is CPU time of one turn of the hot thread, "sweep" of a whole sweep; "off" is how far the sum of inactive
    file pages is from memory.stat, after a sweep and by what the programs counted since one.
    """
    rows = run(cgroups, sweeps)
    if output == "json":
        print_json({"bench": "sweep", "results": rows})
    else:
        print_table(list(rows[0]), [list(line.values()) for line in rows])
