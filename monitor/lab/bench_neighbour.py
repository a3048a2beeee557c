"""`outrace bench neighbour`: what a hold costs a pod that has no part in it.

Turns of alone - held - alone: the same pod touches fresh pages while nobody is held, while another pod is held, and
again while nobody is. Each turn is compared with the two beside it, so that a machine that gets slower in between does
not matter.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

import click

from monitor.errors import MonitorError
from monitor.lab.bench import STATISTICS, Row, bench, number, progress, state_dir, summary
from monitor.lab.checked import KINDS
from monitor.lab.child import Child
from monitor.lab.daemon import LabDaemon
from monitor.lab.hold_race import Holds, HoldStage, until
from monitor.lab.node import MIB, LabNode
from monitor.settings.config import HOLD
from monitor.settings.options import HOLD_BRAKES

NODE_BYTES = 512 * MIB
MARGIN = 32 * MIB
#: What the neighbour touches at once, and how far apart where its latency is measured.
TOUCHED_MIB = 1
PAUSE_US = 2000


@dataclass
class Touched:
    """Microseconds for each MiB of fresh 4K pages, with pauses; MiB a second without."""

    latency: list[float] = field(default_factory=list)
    throughput: list[float] = field(default_factory=list)

    def add(self, more: Touched) -> None:
        self.latency += more.latency
        self.throughput += more.throughput


def touch(neighbour: Child, seconds: float) -> Touched:
    """Measure both, for ``seconds`` each."""
    took = []
    for pause_us in (PAUSE_US, 0):
        neighbour.send(f"{seconds} {pause_us}")
        took.append([int(ns) for ns in neighbour.expect("took").split()])
    paused, without = took
    return Touched([ns / 1000 for ns in paused], [TOUCHED_MIB * 1e9 * len(without) / sum(without)])


def ratios(alone: list[Touched], held: list[Touched]) -> tuple[list[float], list[float]]:
    """Of each turn, against the mean of the two around it: the median latency, the throughput."""
    latency, throughput = [], []
    for n, turn in enumerate(held):
        around = alone[n : n + 2]
        medians = [statistics.median(each.latency) for each in around]
        latency.append(statistics.median(turn.latency) / statistics.mean(medians))
        throughput.append(turn.throughput[0] / statistics.mean(each.throughput[0] for each in around))
    return latency, throughput


def measure(stage: HoldStage, daemon: LabDaemon, load: str, hogs: int, turns: int, seconds: float) -> list[Row]:
    """Alone, held, alone, held, ..., alone."""
    neighbour = stage.node.start(stage.node.pods["web"], "touches", mib=TOUCHED_MIB)
    stage.load()
    touch(neighbour, seconds / 4)  # what starting itself disturbs is not counted
    alone, held = [touch(neighbour, seconds)], []
    for turn in range(turns):
        children = stage.start(load, hogs)
        holds = Holds(daemon)
        for child in children:
            child.send("go")
        until(lambda holds=holds: bool(holds.held), "a hold")  # type: ignore[misc]
        held.append(touch(neighbour, seconds))
        if holds.ended:
            raise MonitorError(f"the hold ended while it was measured: {daemon.complaint()}")
        stage.unload()
        for child in children:
            child.expect("grown")
        until(lambda holds=holds: bool(holds.ended), "the end of a hold")  # type: ignore[misc]
        for child in children:
            stage.node.end(child)
        stage.load()
        alone.append(touch(neighbour, seconds))
        progress(f"{turn + 1} of {turns}")
    return rows(alone, held)


def rows(alone: list[Touched], held: list[Touched]) -> list[Row]:
    found: list[Row] = []
    for name, turns in (("alone", alone), ("held", held)):
        every = Touched()
        for turn in turns:
            every.add(turn)
        found.append(summary(f"latency_{name}", every.latency))
        found.append(summary(f"throughput_{name}", every.throughput, "MiB/s"))
    latency, throughput = ratios(alone, held)
    found.append(summary("latency_held_to_alone", latency, "ratio"))
    found.append(summary("throughput_held_to_alone", throughput, "ratio"))
    return found


@bench(STATISTICS)
@number("--turns", 20, "Turns with a held pod.")
@number("--seconds", 1.0, "How long latency and throughput are measured, each, in a turn.", 0.1)
@number("--hogs", 4, "Processes of the pod that is held.", 1, 16)
@click.option("--load", default="4k", show_default=True, type=click.Choice(list(KINDS)), help="What it does.")
@click.option("--hold-brake", default=HOLD_BRAKES[0], show_default=True, type=click.Choice(HOLD_BRAKES))
def neighbour(turns: int, seconds: float, hogs: int, load: str, hold_brake: str) -> list[Row]:
    """Measure what a hold costs a neighbour: the page faults of a pod that has no part in it, with another pod held
    and without, in turns.

    Latency is microseconds for 1 MiB of fresh 4K pages, one every 2 ms; throughput is MiB a second without pauses. The
    ratios are of each turn against the mean of the two around it (the median latency, the throughput).
    """
    options = ("--mode", HOLD, "--hold-brake", hold_brake, "--eviction-hard", f"memory.available<{MARGIN}")
    with LabNode("neighbour", NODE_BYTES, with_freezer=True) as node, state_dir(node) as directory:
        stage = HoldStage(node, MARGIN)
        with LabDaemon(node, *options, state_dir=directory, keep_pins=True) as daemon:
            return measure(stage, daemon, load, hogs, turns, seconds)
