"""`outrace bench footprint`: what the monitor itself costs: time to be ready, memory, CPU while nothing happens.

It watches the whole machine with the default thresholds, as on a node far from pressure, and is given pods that do
nothing. Times are the daemon's own (CLOCK_MONOTONIC, the `ready` record of the hot process); memory and CPU are the
kernel's (smaps_rollup, schedstat of every thread).
"""

from __future__ import annotations

import compileall
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import psutil

from monitor.cli.output import output_option, print_json, print_table
from monitor.errors import CannotError, MonitorError
from monitor.kernel import loader
from monitor.lab.bench_latency import summary
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode, require_root

#: What the project promises. Milliseconds, bytes, milliseconds per minute.
TARGETS = {
    "ready_cold": 3000.0,
    "ready_warm": 300.0,
    "rss_hot": 40.0 * MIB,
    "rss_tree": 90.0 * MIB,
    "idle_hot": 20.0,
}
NODE_BYTES = 512 * MIB
#: What a start leaves behind (late audits of pods, the first sweep's pages) is over by then.
SETTLE_S = 3.0
#: Idle CPU is also given per window, because others on the machine (a process killed anywhere) can wake the monitor.
WINDOW_S = 5.0


def processes(pid: int) -> list[int]:
    """``pid`` and every process below it."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def memory(pid: int) -> tuple[int, int]:
    """Bytes resident (Rss) and its fair share of them (Pss: what is shared counts once among those who share it).

    Not psutil's `memory_info`: statm lags behind by what each CPU has counted, up to 64 pages of each kind.
    """
    values = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        key, kib = line.split()[:2]
        values[key] = int(kib) * 1024
    return values["Rss:"], values["Pss:"]


def cpu_ns(pid: int) -> int:
    """CPU time of all threads of a process in nanoseconds: exact, where clock ticks of /proc/PID/stat are 10 ms."""
    return sum(
        int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
        for task in os.listdir(f"/proc/{pid}/task")
    )


def side_of(daemon: LabDaemon) -> int:
    """The side process of a daemon that is ready."""
    children = processes(daemon.pid)[1:]
    if len(children) != 1:
        raise MonitorError(f"the hot process has {len(children)} children instead of its side process")
    return children[0]


class Starts:
    """Starts of the daemon on one node, timed; ``look`` sees each while it runs."""

    def __init__(self, node: LabNode, state_dir: Path) -> None:
        self.node = node
        self.state_dir = state_dir

    def time(self, look: Callable[[LabDaemon], None] | None = None, *, keep_pins: bool) -> float:
        """Milliseconds from the start of the command to the hot process being ready."""
        with LabDaemon(self.node, state_dir=self.state_dir, machine=True, keep_pins=keep_pins) as daemon:
            ready = daemon.wait_for(lambda r: r.get("msg") == "ready")
            if ready is None:
                raise MonitorError(
                    f"the monitor answers /readyz but never logged that it is ready: {daemon.complaint()}"
                )
            if look is not None:
                look(daemon)
            return float((ready["ready_ns"] - daemon.started_ns) / 1e6)

    def several(self, name: str, runs: int, *, keep_pins: bool) -> dict[str, Any]:
        row = summary(name, [self.time(keep_pins=keep_pins) for _ in range(runs)], "ms")
        click.echo(f"{name}: p50 {row['p50']:.0f} ms", err=True)
        return row


def _memory_rows(daemon: LabDaemon, after: str) -> list[dict[str, Any]]:
    hot, tree = memory(daemon.pid), [memory(pid) for pid in processes(daemon.pid)]
    figures = {
        "rss_hot": hot[0],
        "pss_hot": hot[1],
        "rss_tree": sum(rss for rss, _ in tree),
        "pss_tree": sum(pss for _, pss in tree),
    }
    return [summary(name + after, [float(value)], "bytes") for name, value in figures.items()]


def _idle_rows(daemon: LabDaemon, seconds: float) -> list[dict[str, Any]]:
    """CPU of both processes while nothing happens and nobody asks, in windows of 5 s, each scaled to a minute; ``mean``
    is over all of them.

    CannotError if the machine is too close to its threshold to be disarmed.
    """
    heard = _heard(daemon.metrics())
    time.sleep(SETTLE_S)
    pids = {"idle_hot": daemon.pid, "idle_side": side_of(daemon)}
    windows = max(1, round(seconds / WINDOW_S))
    used: dict[str, list[float]] = {name: [] for name in pids}
    for _ in range(windows):
        before, began = {name: cpu_ns(pid) for name, pid in pids.items()}, time.monotonic()
        time.sleep(seconds / windows)
        to_minute = 60e-6 / (time.monotonic() - began)
        for name, pid in pids.items():
            used[name].append((cpu_ns(pid) - before[name]) * to_minute)
    metrics = daemon.metrics()
    if metrics["outrace_armed"] or metrics["outrace_arms_total"] != metrics["outrace_disarms_total"]:
        raise CannotError(
            "this machine is too close to its memory threshold: the programs were attached", "free memory and try again"
        )
    heard = _heard(metrics) - heard
    return [
        summary(name, values, "ms/min") | {"mean": statistics.mean(values), "records": heard}
        for name, values in used.items()
    ]


def _heard(metrics: dict[str, float]) -> int:
    """Records the hot process has read: processes killed anywhere on the machine wake it, so then it was not idle."""
    return int(sum(v for k, v in metrics.items() if k.startswith("outrace_records_total") and 'side="reader"' in k))


def measure(runs: int, pods: int, idle_s: float) -> list[dict[str, Any]]:
    """All rows. Raises MonitorError when the daemon does not start."""
    # Bytecode as after an installation: a checkout has none before it was run, and compiling takes half a second.
    compileall.compile_dir(Path(loader.__file__).parent.parent, quiet=2)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="outrace-bench-") as name, LabNode("footprint", NODE_BYTES) as node:
        state_dir = Path(name)
        node.also_remove(loader.instance_directory(state_dir))
        for i in range(pods):
            node.add_pod(f"p{i}", ("Burstable", "BestEffort")[i % 2], request=MIB * (i % 2 == 0), containers=2)
        starts = Starts(node, state_dir)
        try:
            rows.append(summary("ready_first", [starts.time(keep_pins=False)], "ms"))
            rows.append(starts.several("ready_cold", runs, keep_pins=False))
            starts.time(keep_pins=True)  # loads, so that the next find it loaded
            rows.append(starts.several("ready_warm", runs, keep_pins=True))

            def look(daemon: LabDaemon) -> None:
                rows.extend(_memory_rows(daemon, ""))
                rows.extend(_idle_rows(daemon, idle_s))
                rows.extend(_memory_rows(daemon, "_scraped"))

            starts.time(look, keep_pins=True)
        finally:
            loader.unload(loader.instance_directory(state_dir))
    for row in rows:
        if row["name"] in TARGETS:
            row["target"] = TARGETS[row["name"]]
    return rows


@click.command()
@click.option("--runs", default=5, show_default=True, type=click.IntRange(1), help="Starts of each kind.")
@click.option("--pods", default=110, show_default=True, type=click.IntRange(0), help="Pods described by manifests.")
@click.option("--idle", default=60.0, show_default=True, type=click.FloatRange(min=0.1), help="Seconds of idle CPU.")
@output_option
def footprint(runs: int, pods: int, idle: float, output: str) -> None:
    """Measure the monitor itself: time from the command's start to ready (first: state dir empty; cold: nothing
    loaded; warm: programs found pinned), resident memory of the hot process and of the whole tree, CPU while disarmed
    and idle.

    _scraped is after the first scrape of /metrics, which loads the library for it. Idle CPU is scaled to a minute.
    """
    require_root("bench footprint", "starts the monitor")
    rows = measure(runs, pods, idle)
    if output == "json":
        print_json({"bench": "footprint", "results": rows})
        return
    print_table(
        ("what", "unit", "n", "p50", "mean", "max", "target", "records"),
        [
            (r["name"], r["unit"], r["n"], *(_whole(r.get(k)) for k in ("p50", "mean", "max", "target", "records")))
            for r in rows
        ],
    )


def _whole(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f}"
