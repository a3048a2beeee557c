"""`outrace bench storm`: who makes as many events as four processes can does not blind the monitor.

For each kind of event: crossing to SIGKILL in the storm against quiet, in turns in the same run; races lost; and how
long a daemon that is started in the midst of it takes to be ready. `spin` makes no events and takes the CPUs alone.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import click

from monitor.cli.output import output_option, print_json, print_table
from monitor.kernel import loader, mounts
from monitor.lab import blinder, blinding
from monitor.lab.bench_latency import fill_pods, reap_sleepers, summary
from monitor.lab.daemon import LabDaemon
from monitor.lab.latency_floor import ratio
from monitor.lab.node import LabNode

KINDS = tuple(blinder.KINDS)


def measure(kind: str, state_dir: Path, n: int, turns: int, n_starts: int, n_pods: int) -> list[dict[str, Any]]:
    """The rows of one kind of storm."""
    quiet, stormy, rate = blinding.Races(), blinding.Races(), blinding.Rate()
    with LabNode("storm", blinding.NODE_BYTES) as node:
        fill_pods(node, n_pods)
        victim = node.add_pod("victim", grace_s=0)
        pod = blinding.add_pod(node, kind)
        with LabDaemon(node, *blinding.options(kind), state_dir=state_dir, keep_pins=True) as daemon:
            blinding.races(daemon, node, victim, 2)  # nobody counts what is done for the first time
            for turn in range(turns):
                share = n * (turn + 1) // turns - n * turn // turns
                quiet.add(blinding.races(daemon, node, victim, share))
                with blinding.storm(node, pod, kind, rate):
                    stormy.add(blinding.races(daemon, node, victim, share))
            lost = {k: v for k, v in daemon.metrics().items() if k.startswith("outrace_events_lost_total") and v}
            if lost:
                click.echo(f"{kind}: events lost: {lost}", err=True)
        with blinding.storm(node, pod, kind, blinding.Rate()):
            ready = blinding.starts(node, state_dir, n_starts)
    reap_sleepers()
    before, during = (
        summary(f"crossing_to_sigkill_{name}_{kind}", found.signalled)
        for name, found in (("quiet", quiet), ("storm", stormy))
    )
    for row, found in ((before, quiet), (during, stormy)):
        row |= {"lost": found.lost, "by_pass": found.by_pass}
    during["events_per_s"] = round(rate.events / rate.seconds)
    rows = [before, during, ratio(f"storm_to_quiet_{kind}", during, before)]
    if ready:
        rows.append(summary(f"start_to_ready_{kind}", ready, "ms"))
    return rows


def shown(row: dict[str, Any], key: str) -> str:
    return f"{row[key]:.2f}" if row["unit"] == "ratio" else f"{row[key]:.0f}"


@click.command()
@click.option("--only", "kinds", multiple=True, type=click.Choice(KINDS), help="Only this; may be given several times.")
@click.option("--races", "n", default=100, show_default=True, type=click.IntRange(1), help="Races quiet and in storm.")
@click.option("--turns", default=5, show_default=True, type=click.IntRange(1), help="Turns of quiet and storm.")
@click.option("--starts", default=5, show_default=True, type=click.IntRange(0), help="Starts of the daemon in it.")
@click.option("--pods", default=20, show_default=True, type=click.IntRange(0), help="Pods beside it.")
@output_option
def storm(kinds: tuple[str, ...], n: int, turns: int, starts: int, pods: int, output: str) -> None:
    """Crossing to SIGKILL in storms of events against quiet, races lost, and starts in the midst of them.

    Four processes of one pod make events of one kind as fast as they can: SIGKILLs to a zombie or to live children,
    forks, execs, threads, memory up and down past a line, reclaim, cgroups, names. Meanwhile a hog of another pod runs
    into the threshold.
    """
    mounts.ensure()
    began = time.monotonic()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="outrace-bench-") as name:
        state_dir = Path(name)
        try:
            for kind in kinds or KINDS:
                found = measure(kind, state_dir, n, min(turns, n), starts, pods)
                rows += found
                click.echo(f"{kind}: p99 {found[2]['p99']:.2f} x quiet, {found[1]['lost']} of {n} lost", err=True)
        finally:
            loader.unload(loader.instance_directory(state_dir))
    if output == "json":
        print_json({"bench": "storm", "results": rows})
    else:
        print_table(
            ("what", "unit", "n", "p50", "p99", "max", "lost", "by pass", "events/s"),
            [
                (
                    *(row[k] for k in ("name", "unit", "n")),
                    *(shown(row, k) for k in ("p50", "p99", "max")),
                    *(row.get(k) for k in ("lost", "by_pass", "events_per_s")),
                )
                for row in rows
            ],
        )
    click.echo(f"took {time.monotonic() - began:.0f} s", err=True)
