"""`outrace bench alerts`: from an OOM kill in the kernel to the alert known by Alertmanager, in a storm of kills.

The kill's time is the BPF program's, the alert's is Alertmanager's own. Nothing is left out between them: the ring, the
hot process, the channel, the episode, the verdict, the post.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from monitor.cli.output import output_option, print_json, print_table
from monitor.kernel import loader, mounts
from monitor.lab import receivers
from monitor.lab.bench_latency import summary
from monitor.lab.child import Child
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode
from monitor.lab.receivers import Alertmanager, Known, StandIn
from monitor.link.clock import wall_offset_ns
from monitor.side.alerts.rules import OWN_LIMIT

#: A victim takes twice the limit, so it dies half way.
LIMIT_MIB = 8
#: How long the first alerts are waited for at most once every pod had a kill.
WAIT_S = 30.0
SCRIPT = Path(receivers.__file__).with_name("storm.py")
NODE_BYTES = 1024 * MIB
_KILLED = "the kernel's OOM killer killed a process"


@dataclass(frozen=True)
class Storm:
    """What came of one. ``late_ms``: for each pod with a kill, from its first kill to its alert; None if it never came.

    ``lost``: what the daemon counted as lost, by where, of what is not 0.
    """

    receiver: str
    kills: int
    seconds: float
    late_ms: dict[str, float | None]
    lost: dict[str, float]


@contextmanager
def receiver(program: str | None) -> Iterator[Known]:
    """The real one if there is one, else the stand-in."""
    if program is None:
        with StandIn().running() as stand_in:
            yield stand_in
        return
    with (
        tempfile.TemporaryDirectory(prefix="outrace-bench-") as directory,
        Alertmanager(program, Path(directory)).running() as real,
    ):
        yield real


def storm(node: LabNode, pods: int, seconds: float, known: Known, state_dir: Path) -> Storm:
    """Kill in all of ``pods`` pods at once for so long, and look when the first alert of each is known."""
    made = [
        node.add_pod(f"p{i}", "Burstable", request=MIB, limit=LIMIT_MIB * MIB).containers["c0"] for i in range(pods)
    ]
    options = ("--eviction-hard", "memory.available<1Mi", "--alertmanager", known.url)
    with LabDaemon(node, *options, state_dir=state_dir, keep_pins=True) as daemon:
        child = Child(SCRIPT, f"mib={2 * LIMIT_MIB}", f"parent={os.getpid()}", *map(str, made))
        node.children.append(child)
        child.expect("ready")
        child.say("go")
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            daemon.poll()
            time.sleep(0.1)
        took = time.monotonic() - began
        assert child.process.stdin is not None
        child.process.stdin.close()
        kills = int(child.expect("killed"))
        names = {f"lab/{name}" for name in node.pods}
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            daemon.poll()
            if names <= {f"{ns}/{pod}" for name, ns, pod in known.first() if name == OWN_LIMIT}:
                break
            time.sleep(0.1)
        offset = wall_offset_ns()
        first: dict[str, int] = {}
        for record in daemon.log:
            if record.get("msg") == _KILLED and record.get("pod") in names:
                pod = record["pod"]
                first[pod] = min(record["ts_ns"], first.get(pod, record["ts_ns"]))
        fired_at = {f"{ns}/{pod}": at for (name, ns, pod), at in known.first().items() if name == OWN_LIMIT}
        late = {
            pod: (fired_at[pod] - (ts + offset) / 1e9) * 1000 if pod in fired_at else None
            for pod, ts in sorted(first.items())
        }
        return Storm(known.name, kills, took, late, lost(daemon))


def lost(daemon: LabDaemon) -> dict[str, float]:
    """Whatever the daemon lost, dropped or refused: metric -> how much, where that is not 0."""
    wanted = ("outrace_events_lost_total", "outrace_channel_dropped_total", "outrace_incidents_lost_total",
              "outrace_alerts_dropped_total", "outrace_alerts_failed_total")  # fmt: skip
    return {name: value for name, value in daemon.metrics().items() if name.startswith(wanted) and value}


@click.command()
@click.option("--pods", default=30, show_default=True, type=click.IntRange(1, 100), help="Pods in which is killed.")
@click.option("--seconds", default=20.0, show_default=True, type=click.FloatRange(1.0), help="How long it goes on.")
@click.option("--alertmanager-binary", help="Alertmanager to use; else one in PATH, else a stand-in.")
@output_option
def alerts(pods: int, seconds: float, alertmanager_binary: str | None, output: str) -> None:
    """From an OOM kill to the first alert about its pod, while pods are OOM-killed as fast as the machine can.

    p50, p99 and max are milliseconds from the mark in the kernel to Alertmanager's own time of the alert. Without an
    Alertmanager a stand-in with the same API receives them, and the answer names it.
    """
    program = receivers.find_program(alertmanager_binary)
    if program is None:
        click.echo("no alertmanager in PATH: measured to a stand-in that takes its requests", err=True)
    mounts.ensure()
    with (
        tempfile.TemporaryDirectory(prefix="outrace-bench-") as state,
        LabNode("alerts", NODE_BYTES) as node,
        receiver(program) as known,
    ):
        pins = loader.instance_directory(Path(state))
        node.also_remove(pins)
        try:
            found = storm(node, pods, seconds, known, Path(state))
        finally:
            loader.unload(pins)
    arrived = [late for late in found.late_ms.values() if late is not None]
    row: dict[str, Any] = {
        **summary("first alert of each pod", arrived, "ms"),
        "receiver": found.receiver,
        "pods": pods,
        "pods_killed_in": len(found.late_ms),
        "missing": sorted(pod for pod, late in found.late_ms.items() if late is None),
        "kills": found.kills,
        "kills_per_s": round(found.kills / found.seconds, 1),
        "lost": found.lost,
    }
    if output == "json":
        print_json({"bench": "alerts", "results": [row]})
        return
    print_table(
        ("to", "pods", "alerts", "kills/s", "p50 ms", "p99 ms", "max ms", "lost"),
        [
            (
                found.receiver,
                len(found.late_ms),
                len(arrived),
                row["kills_per_s"],
                *(f"{row[k]:.0f}" for k in ("p50", "p99", "max")),
                ", ".join(f"{name}: {n:g}" for name, n in found.lost.items()) or "nothing",
            )
        ],
    )
