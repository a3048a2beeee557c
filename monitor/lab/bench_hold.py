"""`outrace bench race --mode hold`: load by load, held at the crossing, and let go on with its data checked."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from monitor.cli.finite import Finite
from monitor.cli.output import format_bytes
from monitor.errors import EXIT_FAILURE, EXIT_OK, ConfigError
from monitor.kernel import loader
from monitor.lab.bench import Found, Listed, Row, Size, print_rows, progress, state_dir
from monitor.lab.checked import KINDS
from monitor.lab.daemon import LabDaemon
from monitor.lab.hold_race import HoldResult, HoldStage, Sizes, run_hold
from monitor.lab.node import MIB, LabNode
from monitor.settings.config import ENFORCE, HOLD

F = TypeVar("F", bound=Callable[..., Any])

NODE_BYTES = 512 * MIB
MARGINS = (8 * MIB, 32 * MIB, 100 * MIB)
HOGS = (1, 2, 4)
WATCH_S = 1.0
COLUMNS = "name runs held oom killed right grew_p50_bytes grew_max_bytes brake_p50 brake_max least_left_bytes failed"


def row(name: str, results: Sequence[HoldResult]) -> Row:
    """One line of the table: counts of runs, bytes, and microseconds from the crossing to the brake in force."""
    grew = sorted(r.grew_bytes for r in results if r.grew_bytes is not None)
    brake = sorted(r.brake_us for r in results if r.brake_us is not None)
    return {
        "name": name,
        "unit": "us",
        "runs": len(results),
        "held": sum(r.outcome == "held" for r in results),
        "oom": sum(r.oom_kills for r in results),
        "killed": sum(r.outcome == "killed" or bool(r.killed) for r in results),
        "right": sum(r.is_whole for r in results),
        "grew_p50_bytes": statistics.median(grew) if grew else None,
        "grew_max_bytes": grew[-1] if grew else None,
        "brake_p50": statistics.median(brake) if brake else None,
        "brake_max": brake[-1] if brake else None,
        "least_left_bytes": min((r.left_bytes for r in results if r.left_bytes is not None), default=None),
        "failed": sum(r.failed_calls > 0 for r in results),
        "brakes": dict(Counter(r.brake for r in results if r.brake)),
        "ended": dict(Counter(r.ended for r in results if r.ended)),
        "changed": sorted({line for r in results for line in r.changed}),
    }


def options(command: F) -> F:
    """The options of `bench race` that are of mode hold."""
    for option in (
        click.option(
            "--mode",
            default=ENFORCE,
            show_default=True,
            type=click.Choice((ENFORCE, HOLD)),
            help="Whether the pod is killed or held at the crossing.",
        ),
        click.option(
            "--load",
            metavar="NAME,...",
            type=Listed(click.Choice(tuple(KINDS))),
            help=f"In mode hold: only these of {', '.join(KINDS)}.",
        ),
        click.option("--hogs", type=Listed(click.IntRange(1, 16)), help="In mode hold: how many processes. [1,2,4]"),
        click.option("--margin", type=Listed(Size()), help="In mode hold: distances from the limit. [8Mi,32Mi,100Mi]"),
        click.option(
            "--node-memory", type=Size(), help="In mode hold: memory of the node. Less takes smaller margins. [512Mi]"
        ),
        click.option("--watch", type=Finite(0.1), help="In mode hold: seconds that a hold is watched. [1]"),
    ):
        command = option(command)
    return command


def refuse(hold: Mapping[str, object]) -> None:
    """Raises ConfigError for an option of mode hold in another mode."""
    for name, value in hold.items():
        if value is not None:
            raise ConfigError(f"--{name.replace('_', '-')} is of races in mode hold", f"give --mode {HOLD} too")


def hold_races(
    runs: int,
    quick: bool,
    load: tuple[str, ...] | None,
    hogs: tuple[int, ...] | None,
    margin: tuple[int, ...] | None,
    node_memory: int | None,
    watch: float | None,
) -> Found:
    """Every load with every count of processes at every margin. Exit code 1 where a run was not as it has to be."""
    size = node_memory or NODE_BYTES
    margins = margin or (MARGINS[1:2] if quick else MARGINS)
    for line in margins:
        if not Sizes.of(size, line).fits():
            room = f"what leaves room on a node of {format_bytes(size)}"
            raise ConfigError(f"--margin {format_bytes(line)} is more than {room}", "give it less, or the node more")
    rows, clean = [], True
    with LabNode("race", size, with_freezer=True) as node, state_dir(node) as directory:
        instance = loader.instance_directory(directory)
        for line in margins:
            stage = HoldStage(node, line)
            given = ("--mode", HOLD, "--eviction-hard", f"memory.available<{line}")
            with LabDaemon(node, *given, state_dir=directory, keep_pins=True) as daemon:
                for kind in load or KINDS:
                    for count in hogs or HOGS:
                        name, results = f"{kind} hogs={count} margin={format_bytes(line)}", list[HoldResult]()
                        for number in range(1, runs + 1):
                            results.append(run_hold(stage, daemon, kind, count, watch or WATCH_S))
                            if trouble := results[-1].trouble():
                                clean = False
                                progress(f"{name}, run {number}: {trouble}")
                        rows.append(row(name, results))
                        progress("{name}: held {held}, right {right} of {runs}, OOM kills {oom}".format_map(rows[-1]))
            stage.leave()
        loader.unload(instance)
    return Found(rows, {}, EXIT_OK if clean else EXIT_FAILURE, lambda: print_rows(COLUMNS, rows))
