"""`outrace bench race`: eviction against the OOM killer, margin by margin, beside what polling achieves in one run; and
`outrace demo`: a few such races on a small node out of one cgroup.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from itertools import product
from typing import Any

import click

from monitor.cli.output import emit, format_bytes, output_option
from monitor.errors import EXIT_FAILURE, EXIT_OK, ConfigError
from monitor.lab.bench import Found, Listed, Row, Size, bench, mode_option, number, progress, row_lines, trigger_option
from monitor.lab.daemon import LabDaemon
from monitor.lab.hog import CHECKED
from monitor.lab.node import MIB, LabNode, require_root
from monitor.lab.race import HoldResult, HoldStage, Poller, RaceResult, populate, run_hold, run_race, sizes, spread
from monitor.settings.config import HOLD
from monitor.settings.options import HOOKS

KIB = 1 << 10
MARGINS = (1 * MIB, 2 * MIB, 4 * MIB, 8 * MIB)
KERNEL_MARGINS = (256 * KIB, 512 * KIB, 1 * MIB, 2 * MIB)
HOGS = (1, 2, 4)
#: What polls: name, interval in microseconds.
POLLERS = (("poll 1 ms", 1_000), ("poll 100 ms (earlyoom's floor)", 100_000), ("poll 10 s (kubelet)", 10_000_000))
NODE_BYTES = 256 * MIB
HOLD_MARGINS = (8 * MIB, 32 * MIB, 100 * MIB)
_HOLD_NODE = 512 * MIB
_COLUMNS = "name runs held oom killed right grew_p50_bytes grew_max_bytes brake_p50 brake_max least_left_bytes failed"


def _row(name: str, results: Sequence[RaceResult]) -> Row:
    won = [r for r in results if r.winner == "eviction"]
    _, p50, most = spread(results, "detection_us")
    _, kill_p50, kill_max = spread(results, "kill_us")
    return {
        "name": name,
        "unit": "us",
        "runs": len(results),
        "wins": len(won),
        "p50": p50,
        "max": most,
        "kill_p50": kill_p50,
        "kill_max": kill_max,
        "least_left_bytes": spread(won, "headroom_bytes")[0],
    }


def _kill_races(runs: int, quick: bool, no_baselines: bool, margins: Any, hogs: Any, loads: Any) -> list[Row]:
    if any(margin > NODE_BYTES // 2 for margin in margins or ()):
        raise ConfigError("--margin is more than half of the node", f"give at most {NODE_BYTES // 2 // MIB}Mi")
    small, few = margins or (KERNEL_MARGINS[:1] if quick else KERNEL_MARGINS), hogs or HOGS[:1]
    margins, loads = margins or ((2 * MIB,) if quick else MARGINS), loads or ("4k", "thp")
    cases = [*(("user", margin, hogs or HOGS) for margin in margins), *(("kernel", margin, few) for margin in small)]
    rows: list[Row] = []
    with LabNode("race", NODE_BYTES) as node:
        pod, directory = populate(node), node.state_dir()

        def add(name: str, watcher: LabDaemon | Poller, margin: int, number: int, kind: str) -> None:
            name = f"{name} hogs={number} pages={kind} margin={format_bytes(margin)}"
            rows.append(_row(name, [run_race(node, pod, watcher, number, kind) for _ in range(runs)]))
            progress("{name}: {wins} of {runs}".format_map(rows[-1]))

        for trigger, margin, counts in cases:  # each with a monitor of its own: a threshold is a start-up option
            options = ("--enforce", "--trigger", trigger, "--eviction-hard", f"memory.available<{margin}")
            with LabDaemon(node, *options, state_dir=directory) as daemon:
                time.sleep(1.0)  # until the end of its start
                for number, kind in product(counts, loads):
                    add(trigger, daemon, margin, number, kind)
        for (name, interval_us), margin, kind in product(() if no_baselines else POLLERS, margins, loads):
            add(name, Poller(margin, interval_us), margin, 1, kind)
    return rows


# -- mode hold: load by load, held at the crossing, and let go on with its data checked --------------------------------


def hold_row(name: str, results: Sequence[HoldResult]) -> Row:
    """One line of the table: counts of runs, bytes, and microseconds from the crossing to the brake in force."""
    _, grew_p50, grew_max = spread(results, "grew_bytes")
    _, brake_p50, brake_max = spread(results, "brake_us")
    return {
        "name": name,
        "unit": "us",
        "runs": len(results),
        "held": sum(r.held for r in results),
        "oom": sum(r.oom_kills for r in results),
        "killed": sum(bool(r.killed or (r.evictions and not r.held)) for r in results),
        "right": sum(r.is_whole for r in results),
        "grew_p50_bytes": grew_p50,
        "grew_max_bytes": grew_max,
        "brake_p50": brake_p50,
        "brake_max": brake_max,
        "least_left_bytes": spread(results, "left_bytes")[0],
        "failed": sum(r.failed_calls > 0 for r in results),
        "brakes": dict(Counter(r.brake for r in results if r.brake)),
        "ended": dict(Counter(r.ended for r in results if r.ended)),
        "changed": sorted({line for r in results for line in r.changed}),
    }


def _hold_races(runs: int, margins: Any, hogs: Any, loads: Any) -> Found:
    """Every load with every count of processes at every margin. Exit code 1 where a run was not as it has to be."""
    for line in margins:
        sizes(_HOLD_NODE, line)  # refused before the first race
    rows, clean = [], True
    for line in margins:
        given = ("--mode", HOLD, "--eviction-hard", f"memory.available<{line}")
        with LabNode("race", _HOLD_NODE, with_freezer=True) as node:
            stage = HoldStage(node, line)
            with LabDaemon(node, *given) as daemon:
                for kind, count in product(loads, hogs):
                    results = [run_hold(stage, daemon, kind, count) for _ in range(runs)]
                    rows.append(hold_row(f"{kind} hogs={count} margin={format_bytes(line)}", results))
                    troubles = list(filter(None, (result.trouble() for result in results)))
                    clean = clean and not troubles
                    progress("{name}: held {held}, right {right} of {runs}, OOM kills {oom}".format_map(rows[-1]))
                    for trouble in troubles:
                        progress(f"  {trouble}")
    return Found(rows, {}, EXIT_OK if clean else EXIT_FAILURE, _COLUMNS)


@bench("name wins runs p50 max kill_p50 kill_max least_left_bytes")
@number("--runs", 20, "Races of each kind.")
@click.option("--quick", is_flag=True, help="One margin of each kind (2Mi; 256Ki in the kernel; 32Mi in mode hold).")
@click.option("--no-baselines", is_flag=True, help="Leave out the pollers, which mode hold has none of.")
@click.option("--margin", type=Listed(Size()), help="Distances from the limit. [1Mi to 8Mi; 8Mi to 100Mi in mode hold]")
@click.option("--hogs", type=Listed(click.IntRange(1, 16)), help="How many processes. [1,2,4]")
@click.option(
    "--load",
    metavar="NAME,...",
    type=Listed(click.Choice(tuple(CHECKED))),
    help=f"Only these of {', '.join(CHECKED)}. [4k,thp; all in mode hold]",
)
@mode_option
def race(runs: int, quick: bool, no_baselines: bool, mode: str, margin: Any, hogs: Any, load: Any) -> list[Row] | Found:
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
        margin = margin or (HOLD_MARGINS[1:2] if quick else HOLD_MARGINS)
        return _hold_races(runs, margin, hogs or HOGS, load or CHECKED)
    return _kill_races(runs, quick, no_baselines, margin, hogs, load)


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
    require_root("demo")
    if node_memory < 128 * MIB:
        raise ConfigError(f"--node-memory {format_bytes(node_memory)} is too small", "give it at least 128Mi")
    if margin > node_memory // 2:
        raise ConfigError(f"--margin {format_bytes(margin)} is more than half the node", "give it less")
    given = (f"--{name}={value}" for name, value in how.items())
    options = ("--enforce", *given, "--eviction-hard", f"memory.available<{margin}")
    results: list[RaceResult] = []
    kind = "thp" if thp else "4k"
    with LabNode("demo", node_memory) as node:
        victim = populate(node)
        with nullcontext() if no_monitor else LabDaemon(node, *options) as daemon:
            for i in range(runs):
                results.append(run_race(node, victim, daemon, hogs, kind))
                if sys.stderr.isatty():
                    click.echo(f"\rrace {i + 1} of {runs}: {results[-1].winner} ", err=True, nl=i + 1 == runs)
    wins = sum(r.winner == "eviction" for r in results)
    answer = {"runs": [asdict(r) for r in results], "wins": wins, "losses": len(results) - wins}
    rows = [{**asdict(r), "run": n} for n, r in enumerate(results, 1)]
    for row in rows:
        row["oom_victims"] = [f"{v.get('victim_comm', '')}[{v['victim_pid']}]" for v in row["oom_victims"]]
    columns = "run winner detection_us kill_us trigger headroom_bytes evicted oom_victims"
    emit(output, answer, lambda: [*row_lines(columns, rows), "", f"eviction won {wins} of {len(results)}"])
