"""`outrace demo`: a small node out of one cgroup, and real races on the real kernel."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict

import click

from monitor.cli.output import emit, format_bytes, output_option, table_lines
from monitor.errors import CannotError, ConfigError
from monitor.lab.bench import Size, number, trigger_option
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode
from monitor.lab.race import Monitor, RaceResult, populate, run_race
from monitor.settings.options import HOOKS


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
    runs: int,
    margin: int,
    node_memory: int,
    hogs: int,
    thp: bool,
    trigger: str,
    hooks: str,
    no_monitor: bool,
    output: str,
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
    options = ("--enforce", "--trigger", trigger, "--hooks", hooks, "--eviction-hard", f"memory.available<{margin}")
    results: list[RaceResult] = []
    with LabNode("demo", node_memory) as node:
        victim = populate(node)
        with nullcontext() if no_monitor else LabDaemon(node, *options) as daemon:
            watcher = None if daemon is None else Monitor(daemon)
            for i in range(runs):
                results.append(run_race(node, victim, watcher, hogs, thp))
                if sys.stderr.isatty():
                    click.echo(f"\rrace {i + 1} of {runs}: {results[-1].winner} ", err=True, nl=i + 1 == runs)
    wins = sum(r.winner == "eviction" for r in results)
    answer = {"runs": [asdict(r) for r in results], "wins": wins, "losses": len(results) - wins}
    emit(output, answer, lambda: [*_lines(results), "", f"eviction won {wins} of {len(results)}"])


def _lines(results: Sequence[RaceResult]) -> list[str]:
    rows = [
        (
            i,
            r.winner,
            _us(r.detection_us),
            _us(r.kill_us),
            r.trigger,
            format_bytes(r.headroom_bytes),
            r.evicted,
            ", ".join(f"{v.get('victim_comm', '')}[{v['victim_pid']}]" for v in r.oom_victims) or None,
        )
        for i, r in enumerate(results, 1)
    ]
    return table_lines(("run", "winner", "detected", "killed", "trigger", "left", "evicted", "OOM victims"), rows)


def _us(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f} us"
