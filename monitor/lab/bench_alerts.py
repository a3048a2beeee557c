"""`outrace bench alerts`: from an OOM kill in the kernel to the alert known by Alertmanager, in a storm of kills.

The kill's time is the BPF program's, the alert's is Alertmanager's own. Nothing is left out between them: the ring, the
hot process, the channel, the episode, the verdict, the post.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from monitor.lab import receivers
from monitor.lab.bench import Row, bench, number, progress, state_dir, summary
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
NODE_BYTES = 1024 * MIB
_LOST = (
    *("outrace_channel_dropped_total", "outrace_incidents_lost_total"),
    *("outrace_alerts_dropped_total", "outrace_alerts_failed_total"),
)
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
        with StandIn() as stand_in:
            yield stand_in
        return
    with (
        tempfile.TemporaryDirectory(prefix="outrace-bench-") as directory,
        Alertmanager(program, Path(directory)).running() as real,
    ):
        yield real


def storm(node: LabNode, pods: int, seconds: float, known: Known, directory: Path) -> Storm:
    """Kill in all of ``pods`` pods at once for so long, and look when the first alert of each is known."""
    made = [
        node.add_pod(f"p{i}", "Burstable", request=MIB, limit=LIMIT_MIB * MIB).containers["c0"] for i in range(pods)
    ]
    options = ("--eviction-hard", "memory.available<1Mi", "--alertmanager", known.url)
    with LabDaemon(node, *options, state_dir=directory, keep_pins=True) as daemon:
        child = Child("oom_kills", mib=2 * LIMIT_MIB, cgroups=":".join(map(str, made)))
        node.children.append(child)
        child.expect("ready")
        child.send("go")
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            daemon.poll()
            time.sleep(0.1)
        took = time.monotonic() - began
        child.close_stdin()
        kills = int(child.expect("killed"))
        names = {f"lab/{name}" for name in node.pods}
        deadline = time.monotonic() + WAIT_S
        while not names <= (fired := _fired(known)).keys() and time.monotonic() < deadline:
            daemon.poll()
            time.sleep(0.1)
        daemon.poll()
        offset = wall_offset_ns()
        first: dict[str, int] = {}
        for record in daemon.log:
            if record.get("msg") == _KILLED and record.get("pod") in names:
                pod = record["pod"]
                first[pod] = min(record["ts_ns"], first.get(pod, record["ts_ns"]))
        late = {
            pod: (fired[pod] - (ts + offset) / 1e9) * 1000 if pod in fired else None
            for pod, ts in sorted(first.items())
        }
        return Storm(known.name, kills, took, late, daemon.lost(*_LOST))


def _fired(known: Known) -> dict[str, float]:
    """When the first alert of each pod was known."""
    return {f"{ns}/{pod}": at for (name, ns, pod), at in known.first().items() if name == OWN_LIMIT}


@bench("receiver pods_killed_in n kills_per_s p50 p99 max lost")
@number("--pods", 30, "Pods whose processes are OOM-killed.", 1, 100)
@number("--seconds", 20.0, "Seconds of kills.")
@click.option("--alertmanager-binary", metavar="FILE", help="Alertmanager to start. [one in PATH, else a stand-in]")
def alerts(pods: int, seconds: float, alertmanager_binary: str | None) -> list[Row]:
    """Measure from an OOM kill to the first alert about its pod, while pods are OOM-killed as fast as the machine can.

    p50, p99 and max are milliseconds from the mark in the kernel to Alertmanager's own time of the alert. Without an
    Alertmanager a stand-in with the same API receives them, and the answer names it.
    """
    program = receivers.find_program(alertmanager_binary)
    if program is None:
        progress("no alertmanager in PATH: measured to a stand-in that takes its requests")
    with LabNode("alerts", NODE_BYTES) as node, receiver(program) as known, state_dir(node) as directory:
        found = storm(node, pods, seconds, known, directory)
    arrived = [late for late in found.late_ms.values() if late is not None]
    row = {
        **summary("first alert of each pod", arrived, "ms"),
        "receiver": found.receiver,
        "pods": pods,
        "pods_killed_in": len(found.late_ms),
        "missing": sorted(pod for pod, late in found.late_ms.items() if late is None),
        "kills": found.kills,
        "kills_per_s": round(found.kills / found.seconds, 1),
        "lost": found.lost,
    }
    return [row]
