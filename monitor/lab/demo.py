"""`outrace demo`: a small node out of one cgroup, and real races on the real kernel."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import NoReturn

import click

from monitor.cli.output import format_bytes, output_option, print_json, print_table
from monitor.errors import CannotError, ConfigError
from monitor.lab.bench import Size, number, trigger_option
from monitor.lab.daemon import LabDaemon
from monitor.lab.hold_race import HoldResult, HoldStage, Sizes, run_hold
from monitor.lab.node import MIB, LabNode
from monitor.lab.race import Monitor, Nobody, RaceResult, populate, run_race
from monitor.settings.config import ENFORCE, HOLD
from monitor.settings.options import HOOKS


@click.command()
@number("--runs", 3, "How many races.")
@click.option("--margin", default="8Mi", show_default=True, type=Size(), help="Evict when less than this is available.")
@click.option("--node-memory", default="512Mi", show_default=True, type=Size(), help="Memory of the node, a cgroup.")
@number("--hogs", 1, "Processes that take memory at once.", 1, 64)
@click.option("--thp", is_flag=True, help="Let the processes take huge pages.")
@trigger_option
@click.option("--hooks", default="auto", show_default=True, type=click.Choice(HOOKS), help="A rung of the hook ladder.")
@click.option(
    "--mode",
    default=ENFORCE,
    show_default=True,
    type=click.Choice((ENFORCE, HOLD)),
    help="Whether the pod is killed or held at the crossing.",
)
@click.option("--no-monitor", is_flag=True, help="Start no monitor: see what the kernel does alone.")
@output_option
def demo(
    runs: int,
    margin: int,
    node_memory: int,
    hogs: int,
    thp: bool,
    trigger: str,
    hooks: str,
    mode: str,
    no_monitor: bool,
    output: str,
) -> None:
    """Build a small node out of a cgroup (three pods, one of each QoS class), let processes in one pod take memory
    as fast as the kernel hands it out, and see who is first: eviction or the OOM killer.

    With --mode hold the pod is stopped instead, and goes on when another pod has given memory back: are its processes
    alive then, and what they had right?

    Only the demo's own cgroups are touched, and they are removed however it ends.

    \b
    Examples:
      outrace demo
      outrace demo --runs 20 --margin 2Mi -o json
      outrace demo --mode hold --hogs 4
      outrace demo --no-monitor
    """
    if os.geteuid() != 0:
        raise CannotError("outrace demo must be root: it makes cgroups and loads BPF programs", "use sudo")
    if node_memory < 128 * MIB:
        raise ConfigError(f"--node-memory {format_bytes(node_memory)} is too small", "give it at least 128Mi")
    if margin > node_memory // 2:
        raise ConfigError(f"--margin {format_bytes(margin)} is more than half the node", "give it less")
    if mode == HOLD:
        _check_hold(margin, node_memory, trigger, no_monitor)
    # A SIGTERM unwinds like Ctrl-C, so that the context managers clean up.
    signal.signal(signal.SIGTERM, _terminated)
    options = ("--mode", mode, "--trigger", trigger, "--hooks", hooks, "--eviction-hard", f"memory.available<{margin}")
    if mode == HOLD:
        _show_holds(_hold_races(runs, node_memory, margin, "thp" if thp else "4k", hogs, options), output)
        return
    results: list[RaceResult] = []
    with LabNode("demo", node_memory) as node:
        victim = populate(node)
        with nullcontext() if no_monitor else LabDaemon(node, *options) as daemon:
            watcher = Nobody() if daemon is None else Monitor(daemon)
            for i in range(runs):
                results.append(run_race(node, victim, watcher, hogs, thp))
                if sys.stderr.isatty():
                    click.echo(f"\rrace {i + 1} of {runs}: {results[-1].winner} ", err=True, nl=i + 1 == runs)
    wins = sum(r.winner == "eviction" for r in results)
    if output == "json":
        print_json({"runs": [asdict(r) for r in results], "wins": wins, "losses": len(results) - wins})
    else:
        print_table(
            ("run", "winner", "detected", "killed", "trigger", "left", "evicted", "OOM victims"),
            [
                (
                    i + 1,
                    r.winner,
                    _us(r.detection_us),
                    _us(r.kill_us),
                    r.trigger,
                    format_bytes(r.headroom_bytes),
                    r.evicted,
                    ", ".join(f"{v.get('victim_comm', '')}[{v['victim_pid']}]" for v in r.oom_victims) or None,
                )
                for i, r in enumerate(results)
            ],
        )
        click.echo(f"\neviction won {wins} of {len(results)}")


def _terminated(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _us(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f} us"


def _check_hold(margin: int, node_memory: int, trigger: str, no_monitor: bool) -> None:
    """Raises ConfigError for what has no meaning in mode hold."""
    if trigger != "user" or no_monitor:
        flag = "--no-monitor" if no_monitor else f"--trigger {trigger}"
        raise ConfigError(f"{flag} has no meaning in mode hold, in which the monitor brakes", "leave it out")
    if not Sizes.of(node_memory, margin).fits():
        sizes = f"--node-memory {format_bytes(node_memory)} with --margin {format_bytes(margin)}"
        raise ConfigError(f"{sizes} leaves no room for a pod to hold", "give the node more, or the margin less")


def _hold_races(
    runs: int, node_memory: int, margin: int, load: str, hogs: int, options: Sequence[str]
) -> list[HoldResult]:
    results: list[HoldResult] = []
    with LabNode("demo", node_memory, with_freezer=True) as node:
        stage = HoldStage(node, margin)
        with LabDaemon(node, *options) as daemon:
            for i in range(runs):
                results.append(run_hold(stage, daemon, load, hogs, 1.0))
                if sys.stderr.isatty():
                    click.echo(f"\rrace {i + 1} of {runs}: {results[-1].outcome} ", err=True, nl=i + 1 == runs)
    return results


def _show_holds(results: Sequence[HoldResult], output: str) -> None:
    held, right = sum(r.outcome == "held" for r in results), sum(r.is_whole for r in results)
    oom_kills = sum(r.oom_kills for r in results)
    if output == "json":
        print_json({"runs": [asdict(r) for r in results], "held": held, "right": right, "oom_kills": oom_kills})
        return
    print_table(
        ("run", "outcome", "braked", "by", "grew", "left", "held", "ended", "went on, data right", "OOM kills"),
        [
            (
                i + 1,
                r.outcome,
                _us(r.brake_us),
                r.brake,
                None if r.grew_bytes is None else format_bytes(r.grew_bytes),
                None if r.left_bytes is None else format_bytes(r.left_bytes),
                None if r.held_s is None else f"{r.held_s:.1f} s",
                r.ended,
                "yes" if r.is_whole else "no",
                r.oom_kills,
            )
            for i, r in enumerate(results)
        ],
    )
    click.echo(f"\nheld {held} of {len(results)}, undamaged {right}, OOM kills {oom_kills}")
