"""`outrace bench race`: eviction against the OOM killer, margin by margin, beside what polling achieves in one run; and
`outrace demo`: a few such races on a small node out of one cgroup.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from monitor.cli.output import Finite, emit, format_bytes, output_option
from monitor.errors import EXIT_FAILURE, EXIT_OK, CannotError, ConfigError
from monitor.kernel import meminfo
from monitor.lab.bench import (
    Found,
    Listed,
    Row,
    Size,
    bench,
    mode_option,
    number,
    progress,
    row_lines,
    state_dir,
    trigger_option,
)
from monitor.lab.checked import KINDS
from monitor.lab.child import until
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode, LabPod
from monitor.lab.race import HoldResult, HoldStage, Poller, RaceResult, Sizes, populate, run_hold, run_race
from monitor.settings.config import HOLD, fastest_fill
from monitor.settings.options import HOOKS
from monitor.sources.source import MIN_LOOK_NS, RESERVE_NS

KIB = 1 << 10
MARGINS = (1 * MIB, 2 * MIB, 4 * MIB, 8 * MIB)
KERNEL_MARGINS = (256 * KIB, 512 * KIB, 1 * MIB, 2 * MIB)
HOGS = (1, 2, 4)
#: What polls: name, interval in microseconds.
POLLERS = (("poll 1 ms", 1_000), ("poll 100 ms (earlyoom's floor)", 100_000), ("poll 10 s (kubelet)", 10_000_000))
NODE_BYTES = 256 * MIB
HOLD_MARGINS = (8 * MIB, 32 * MIB, 100 * MIB)
_HOLD_NODE = 512 * MIB
_HOLD_COLUMNS = (
    "name runs held oom killed right grew_p50_bytes grew_max_bytes brake_p50 brake_max least_left_bytes failed"
)


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _row(name: str, results: Sequence[RaceResult]) -> Row:
    kills = [r.kill_us for r in results if r.kill_us is not None]
    detections = [r.detection_us for r in results if r.detection_us is not None]
    return {
        "name": name,
        "unit": "us",
        "runs": len(results),
        "wins": sum(r.winner == "eviction" for r in results),
        "p50": _median(detections),
        "max": max(detections, default=None),
        "kill_p50": _median(kills),
        "kill_max": max(kills, default=None),
        "least_left_bytes": min((r.headroom_bytes for r in results if r.winner == "eviction"), default=None),
    }


class Bench:
    def __init__(self, runs: int, node: LabNode, pod: LabPod, state_dir: Path) -> None:
        self.runs, self.node, self.pod, self.state_dir = runs, node, pod, state_dir
        self.rows: list[Row] = []

    def add(self, name: str, results: Sequence[RaceResult]) -> None:
        self.rows.append(_row(name, results))
        progress("{name}: {wins} of {runs}".format_map(self.rows[-1]))

    def monitored(self, trigger: str, margin: int, hog_counts: Sequence[int]) -> None:
        """Races under the monitor, started anew for each margin: a threshold is a start-up option."""
        options = ("--enforce", "--trigger", trigger, "--eviction-hard", f"memory.available<{margin}")
        with LabDaemon(self.node, *options, state_dir=self.state_dir, keep_pins=True) as daemon:
            time.sleep(1.0)  # until the end of its start
            for hogs in hog_counts:
                self.both_pages(trigger, margin, hogs, daemon)

    def both_pages(self, name: str, margin: int, hogs: int, watcher: LabDaemon | Poller) -> None:
        for thp in (False, True):
            results = [run_race(self.node, self.pod, watcher, hogs, thp) for _ in range(self.runs)]
            self.add(f"{name} {_where(hogs, thp, margin)}", results)


def from_detached(rows: Bench) -> None:
    """Races that begin with the fine-grained programs detached: were they attached in time?

    Huge pages only: with 4K pages the machine is six times slower and the outcome is the easier one.
    """
    size = 4 * fastest_fill() * (MIN_LOOK_NS + RESERVE_NS) // 1_000_000_000
    if size > meminfo.mem_total() // 2:
        progress(f"races from detached left out: they need a node of {format_bytes(size)}")
        return
    margin = 8 * MIB
    with LabNode("detached", size) as node:
        pod = populate(node)
        options = ("--enforce", "--eviction-hard", f"memory.available<{margin}")
        with LabDaemon(node, *options, state_dir=rows.state_dir, keep_pins=True) as daemon:
            for hogs in (1, 2):
                results = []
                for _ in range(rows.runs):
                    until(lambda: not daemon.metrics()["outrace_armed"], "the monitor to detach", 30, 0.1)
                    results.append(run_race(node, pod, daemon, hogs, thp=True))
                rows.add(f"user from detached {_where(hogs, True, margin)}", results)


def _where(hogs: int, thp: bool, margin: int) -> str:
    return f"hogs={hogs} pages={'thp' if thp else '4k'} margin={format_bytes(margin)}"


# -- mode hold: load by load, held at the crossing, and let go on with its data checked --------------------------------


def hold_row(name: str, results: Sequence[HoldResult]) -> Row:
    """One line of the table: counts of runs, bytes, and microseconds from the crossing to the brake in force."""
    grew = [r.grew_bytes for r in results if r.grew_bytes is not None]
    brake = [r.brake_us for r in results if r.brake_us is not None]
    return {
        "name": name,
        "unit": "us",
        "runs": len(results),
        "held": sum(r.outcome == "held" for r in results),
        "oom": sum(r.oom_kills for r in results),
        "killed": sum(r.outcome == "killed" or bool(r.killed) for r in results),
        "right": sum(r.is_whole for r in results),
        "grew_p50_bytes": _median(grew),
        "grew_max_bytes": max(grew, default=None),
        "brake_p50": _median(brake),
        "brake_max": max(brake, default=None),
        "least_left_bytes": min((r.left_bytes for r in results if r.left_bytes is not None), default=None),
        "failed": sum(r.failed_calls > 0 for r in results),
        "brakes": dict(Counter(r.brake for r in results if r.brake)),
        "ended": dict(Counter(r.ended for r in results if r.ended)),
        "changed": sorted({line for r in results for line in r.changed}),
    }


def _hold_races(
    runs: int,
    quick: bool,
    load: tuple[str, ...] | None,
    hogs: tuple[int, ...] | None,
    margin: tuple[int, ...] | None,
    watch: float | None,
) -> Found:
    """Every load with every count of processes at every margin. Exit code 1 where a run was not as it has to be."""
    margins = margin or (HOLD_MARGINS[1:2] if quick else HOLD_MARGINS)
    for line in margins:
        if not Sizes.of(_HOLD_NODE, line).fits():
            raise ConfigError(f"--margin {format_bytes(line)} is more than leaves room on the node", "give less")
    rows, clean = [], True
    for line in margins:
        given = ("--mode", HOLD, "--eviction-hard", f"memory.available<{line}")
        with LabNode("race", _HOLD_NODE, with_freezer=True) as node:
            stage = HoldStage(node, line)
            with LabDaemon(node, *given) as daemon:
                for kind in load or KINDS:
                    for count in hogs or HOGS:
                        name, results = f"{kind} hogs={count} margin={format_bytes(line)}", list[HoldResult]()
                        for number in range(1, runs + 1):
                            results.append(run_hold(stage, daemon, kind, count, watch or 1.0))
                            if trouble := results[-1].trouble():
                                clean = False
                                progress(f"{name}, run {number}: {trouble}")
                        rows.append(hold_row(name, results))
                        progress("{name}: held {held}, right {right} of {runs}, OOM kills {oom}".format_map(rows[-1]))
    return Found(rows, {}, EXIT_OK if clean else EXIT_FAILURE, _HOLD_COLUMNS)


@bench("name wins runs p50 max kill_p50 kill_max least_left_bytes")
@number("--runs", 20, "Races of each kind.")
@click.option("--quick", is_flag=True, help="One margin of each kind (2Mi; 256Ki in the kernel; 32Mi in mode hold).")
@click.option("--no-baselines", is_flag=True, help="Leave out the pollers.")
@click.option("--watch", type=Finite(0.1), help="In mode hold: seconds that a hold is watched. [1]")
@click.option("--margin", type=Listed(Size()), help="In mode hold: distances from the limit. [8Mi,32Mi,100Mi]")
@click.option("--hogs", type=Listed(click.IntRange(1, 16)), help="In mode hold: how many processes. [1,2,4]")
@click.option(
    "--load",
    metavar="NAME,...",
    type=Listed(click.Choice(tuple(KINDS))),
    help=f"In mode hold: only these of {', '.join(KINDS)}.",
)
@mode_option
def race(runs: int, quick: bool, no_baselines: bool, mode: str, **hold: Any) -> list[Row] | Found:
    """Race the OOM killer.

    1, 2 and 4 processes at full speed, 4K and huge pages, several margins; with the trigger in the kernel down to 256
    KiB; and, in the same run, pollers of the same counters with everything the monitor has but its events.

    p50 and max are crossing to decision in microseconds; kill_* are crossing to SIGKILL sent.

    With --mode hold the growing pod is held, and released when another pod has freed its memory. grew_* is its growth
    during the hold, brake_* the time from the crossing to the hold. right counts the runs in which all its processes
    continued with every byte intact, failed those with a system call that failed or returned short. Exit code 1 unless
    all pods were held, none was OOM-killed, and all are right.
    """
    if mode == HOLD:
        if no_baselines:
            raise ConfigError("--no-baselines is of races in mode enforce", "leave it out")
        return _hold_races(runs, quick, **hold)
    for name in (name for name, value in hold.items() if value is not None):
        raise ConfigError(f"--{name} is of races in mode hold", f"give --mode {HOLD} too")
    with LabNode("race", NODE_BYTES) as node, state_dir(node) as directory:
        rows = Bench(runs, node, populate(node), directory)
        margins = (2 * MIB,) if quick else MARGINS
        for margin in margins:
            rows.monitored("user", margin, HOGS)
        for margin in KERNEL_MARGINS[:1] if quick else KERNEL_MARGINS:
            rows.monitored("kernel", margin, (1,))
        if not quick:
            from_detached(rows)
        for name, interval_us in () if no_baselines else POLLERS:
            for margin in margins:
                rows.both_pages(name, margin, 1, Poller(margin, interval_us))
    return rows.rows


@click.command()
@number("--runs", 3, "Number of races.")
@click.option("--margin", default="8Mi", show_default=True, type=Size(), help="Evict when less than this is available.")
@click.option("--node-memory", default="512Mi", show_default=True, type=Size(), help="Memory of the node, a cgroup.")
@number("--hogs", 1, "Processes that allocate together.", 1, 64)
@click.option("--thp", is_flag=True, help="Let the processes use huge pages.")
@trigger_option
@click.option("--hooks", default="auto", show_default=True, type=click.Choice(HOOKS), help="Hook that watches memory.")
@click.option("--no-monitor", is_flag=True, help="Start no monitor: the kernel acts alone.")
@output_option
def demo(
    runs: int, margin: int, node_memory: int, hogs: int, thp: bool, no_monitor: bool, output: str, **how: str
) -> None:
    """Build a small node out of a cgroup (three pods, one of each QoS class), let processes in one pod take memory
    as fast as the kernel hands it out, and see which is first: eviction or the OOM killer.

    Only the demo's own cgroups are touched, and they are removed however it ends.

    \b
    Examples:
      outrace demo
      outrace demo --runs 20 --margin 2Mi -o json
      outrace demo --no-monitor
    """
    if os.geteuid() != 0:
        raise CannotError("outrace demo must be root: it makes cgroups and loads BPF programs", "use sudo")
    if node_memory < 128 * MIB:
        raise ConfigError(f"--node-memory {format_bytes(node_memory)} is too small", "give it at least 128Mi")
    if margin > node_memory // 2:
        raise ConfigError(f"--margin {format_bytes(margin)} is more than half the node", "give it less")
    # A SIGTERM unwinds like Ctrl-C, so that the context managers clean up.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    given = (f"--{name}={value}" for name, value in how.items())
    options = ("--enforce", *given, "--eviction-hard", f"memory.available<{margin}")
    results: list[RaceResult] = []
    with LabNode("demo", node_memory) as node:
        victim = populate(node)
        with nullcontext() if no_monitor else LabDaemon(node, *options) as daemon:
            for i in range(runs):
                results.append(run_race(node, victim, daemon, hogs, thp))
                if sys.stderr.isatty():
                    click.echo(f"\rrace {i + 1} of {runs}: {results[-1].winner} ", err=True, nl=i + 1 == runs)
    wins = sum(r.winner == "eviction" for r in results)
    answer = {"runs": [asdict(r) for r in results], "wins": wins, "losses": len(results) - wins}
    rows = [
        {
            **asdict(r),
            "run": n,
            "oom_victims": [f"{v.get('victim_comm', '')}[{v['victim_pid']}]" for v in r.oom_victims],
        }
        for n, r in enumerate(results, 1)
    ]
    columns = "run winner detection_us kill_us trigger headroom_bytes evicted oom_victims"
    emit(output, answer, lambda: [*row_lines(columns, rows), "", f"eviction won {wins} of {len(results)}"])
