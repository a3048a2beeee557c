"""The part of `outrace bench latency` that compares the monitor with the floor: the same crossings, the same victims,
in turns, in one run (`monitor.lab.floor`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from monitor.cli.output import format_bytes
from monitor.errors import MonitorError
from monitor.lab.daemon import LabDaemon, Record
from monitor.lab.node import MIB, Child, Hog, LabNode, LabPod

_LAB = Path(__file__).resolve().parents[1] / "lab"
#: Neighbours of each kind: twice as many compilers as most of these machines have CPUs, and a parent for each CPU.
COMPILERS = 4
#: One process that takes twice this much runs into the threshold. (Processes that come and go leave 10 MiB and more
#: behind, until a grace period of RCU is over: with 32 MiB they crossed it by themselves, once in 500 times.)
MARGIN_MIB = 32
CHURN_MARGIN_MIB = 96
#: The next crossing is made when no more than this of the last one's memory is still charged.
_BACK = 4 * MIB


@dataclass(slots=True)
class Samples:
    """Microseconds from the crossing, by who was measured: until it was seen (decided), until the last signal."""

    seen: list[float] = field(default_factory=list)
    signalled: list[float] = field(default_factory=list)
    #: Bytes below the line at which a pass decided that came before the record of the crossing was read: no time of
    #: the crossing belongs to it.
    by_pass: list[int] = field(default_factory=list)

    def add(self, more: Samples) -> None:
        self.seen += more.seen
        self.signalled += more.signalled
        self.by_pass += more.by_pass


@contextmanager
def neighbours(node: LabNode, kind: str, pods: Sequence[LabPod]) -> Iterator[None]:
    """``compile``, ``churn`` (in these pods) or nobody (``""``)."""
    children = []
    if kind == "compile":
        children = [_neighbour(kind, node.hierarchy.root) for _ in range(COMPILERS)]
    elif kind == "churn":
        children = [_neighbour(kind, pods[i].containers["c0"]) for i in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for child in children:
            child.close()


def _neighbour(kind: str, cgroup: Path) -> Child:
    child = Child(_LAB / "neighbours.py", f"kind={kind}", f"cgroup={cgroup}")
    child.expect("ready")
    return child


def monitored(daemon: LabDaemon, node: LabNode, victim: LabPod, n: int, mib: int) -> Samples:
    """``n`` evictions by the monitor. Raises MonitorError if one is not reported or somebody else's."""
    out = Samples()
    for _ in range(n):
        daemon.poll()
        since = len(daemon.log)
        hog = node.start_hog(victim, mib=mib)
        hog.go()
        record = daemon.wait_for(lambda r: r.get("msg") == "evicting", 20.0, since)
        done = daemon.wait_for(lambda r: r.get("msg") == "evicted", 20.0, since)
        hog.close()
        node.children.remove(hog)
        if record is None or done is None:
            raise MonitorError(f"an eviction was not reported: {daemon.complaint()}")
        _note(out, record, victim)
    return out


def _note(out: Samples, record: Record, victim: LabPod) -> None:
    if record["uid"] != victim.uid:
        raise MonitorError(f"the wrong pod was evicted: {record['pod']}")
    if record["crossed_ns"]:
        out.seen.append((record["decided_ns"] - record["crossed_ns"]) / 1000)
        out.signalled.append((record["signalled_ns"] - record["crossed_ns"]) / 1000)
    else:
        out.by_pass.append(record["quantity"] - record["available"])


def floored(pin_dir: Path, node: LabNode, victim: LabPod, available_below: int, n: int, mib: int) -> Samples:
    """The same by the bare loop, which is given the hog's pid beforehand."""
    out = Samples()
    floor = Child(_LAB / "floor.py", f"pins={pin_dir}", f"cgroup={node.cgroup}", f"available_below={available_below}")
    try:
        floor.expect("ready")
        for _ in range(n):
            hog = node.start_hog(victim, mib=mib)
            _one(floor, node, hog, out)
            hog.close()
            node.children.remove(hog)
    finally:
        floor.close()
    return out


def _one(floor: Child, node: LabNode, hog: Hog, out: Samples) -> None:
    before = node.usage()
    floor.say(f"aim {hog.pid}")
    floor.expect("aimed")
    hog.go()
    crossed, seen, killed = map(int, floor.expect("killed").split())
    out.seen.append((seen - crossed) / 1000)
    out.signalled.append((killed - crossed) / 1000)
    hog.process.wait()
    deadline = time.monotonic() + 5.0
    while node.usage() > before + _BACK and time.monotonic() < deadline:
        time.sleep(0.001)


def paired(
    node: LabNode,
    victim: LabPod,
    pods: Sequence[LabPod],
    state_dir: Path,
    kind: str,
    n: int,
    turns: int,
) -> tuple[Samples, Samples]:
    """``n`` kills each beside neighbours of ``kind``, in ``turns`` turns, because what a host does to its machines
    changes within seconds: the monitor's samples and the floor's. The threshold lies a
    margin above what is in use when the neighbours are there.
    """
    ours, floor = Samples(), Samples()
    for turn in range(turns):
        kills = n * (turn + 1) // turns - n * turn // turns
        with neighbours(node, kind, pods):
            margin = CHURN_MARGIN_MIB if kind == "churn" else MARGIN_MIB
            threshold = node.memory_bytes - node.usage() - margin * MIB
            options = ("--enforce", "--eviction-hard", f"memory.available<{threshold}")
            with LabDaemon(node, *options, state_dir=state_dir, keep_pins=True) as daemon:
                pin_dir = Path(_pin_dir(daemon))
                got = monitored(daemon, node, victim, kills, 2 * margin)
            ours.add(got)
            floor.add(floored(pin_dir, node, victim, threshold, kills, 2 * margin))
        click.echo(f"{kind or 'quiet'}: {len(floor.signalled)} of {n}", err=True)
    if ours.by_pass:
        left = f"at most {format_bytes(max(ours.by_pass))} below the line"
        click.echo(
            f"not timed: {len(ours.by_pass)} decided by a pass before the crossing's record was read, {left}", err=True
        )
    return ours, floor


def _pin_dir(daemon: LabDaemon) -> str:
    from monitor.kernel import loader

    return str(loader.ensure_loaded(daemon.state_dir, loader.AUTO)[0])


def ratio(name: str, ours: dict[str, Any], floor: dict[str, Any]) -> dict[str, Any]:
    """How many times the floor, at the median and at the 99th percentile."""
    return {
        "name": name,
        "unit": "ratio",
        "n": ours["n"],
        "p50": ours["p50"] / floor["p50"],
        "p99": ours["p99"] / floor["p99"],
        "max": ours["max"] / floor["max"],
    }
