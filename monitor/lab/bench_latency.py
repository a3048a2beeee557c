"""`outrace bench latency`: from the crossing in the kernel to the decision and to the SIGKILL, and beside the floor
(`monitor.lab.floor`): the same crossings, the same victims, in turns, in one run.

Every figure of the monitor comes from the real daemon's own records: the crossing's time is taken by the BPF program,
the other two by the hot process right after deciding and right after the last signal of the first round went out.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from monitor.errors import MonitorError
from monitor.kernel import loader
from monitor.lab.bench import STATISTICS, Row, bench, fill_pods, number, progress, ratio, shares, summary
from monitor.lab.bench import state_dir as temporary_state_dir
from monitor.lab.child import Child, Hog
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode, LabPod

_PATIENCE_S = 30.0


@dataclass(slots=True)
class Samples:
    """Microseconds from the crossing until it was seen (decided) and until the last signal."""

    seen: list[float] = field(default_factory=list)
    signalled: list[float] = field(default_factory=list)

    def read(self, daemon: LabDaemon, victim: LabPod, since: int) -> None:
        """The eviction logged from ``since`` on. MonitorError if there is none, or it is another pod's."""
        record = daemon.message("evicting", _PATIENCE_S, since)
        if record is None or daemon.message("evicted", _PATIENCE_S, since) is None:
            raise MonitorError(f"an eviction was not reported: {daemon.complaint()}")
        if record["uid"] != victim.uid:
            raise MonitorError(f"the wrong pod was evicted: {record['pod']}")
        if not record["crossed_ns"]:  # a pass decided before the record of the crossing was read
            progress("not timed: decided by a pass before the crossing's record was read")
            return
        self.seen.append((record["decided_ns"] - record["crossed_ns"]) / 1000)
        self.signalled.append((record["signalled_ns"] - record["crossed_ns"]) / 1000)


def evictions(out: Samples, daemon: LabDaemon, victim: LabPod, n: int, mib: int) -> None:
    """``n`` processes of ``victim`` that take ``mib`` MiB, one after the other, and are evicted for it."""
    node = daemon.node
    for _ in range(n):
        since = len(daemon.log)
        hog = node.start_hog(victim, mib=mib)
        hog.go()
        out.read(daemon, victim, since)
        node.end(hog)


NODE_BYTES = 512 * MIB
HOGS = 4
HOG_MIB = 16
#: The hogs take 64 MiB together; the threshold lies in the middle of that.
THRESHOLD = NODE_BYTES - HOGS * HOG_MIB * MIB // 2
PODS = 110
CPUS = os.cpu_count() or 1
#: Twice as many as most of these machines have CPUs. (Of those that fork there is one for each CPU.)
COMPILERS = 4
#: One process that takes twice this much runs into the threshold. (Processes that come and go leave 10 MiB and more
#: behind, until a grace period of RCU is over: with 32 MiB they crossed it by themselves, once in 500 times.)
MARGIN_MIB = 32
CHURN_MARGIN_MIB = 96
#: The next crossing is made when no more than this of the last one's memory is still charged.
_BACK = 4 * MIB


def observe_crossings(daemon: LabDaemon, hogs: list[Hog], crossings: int) -> list[float]:
    """Let the hogs cross the threshold together, again and again; microseconds from each crossing to its decision."""
    out: list[float] = []
    since = len(daemon.log)
    while len(out) < crossings:
        for hog in hogs:
            hog.go()
        for hog in hogs:
            hog.expect("grown")
        for hog in hogs:
            hog.free()
        new = daemon.log[since:]
        since += len(new)
        decided = (r for r in new if r.get("msg") == "would evict" and r["crossed_ns"])
        out += [(r["decided_ns"] - r["crossed_ns"]) / 1000 for r in decided]
    return out


def add_pods(node: LabNode, pods: int) -> LabPod:
    """So many pods, and the one whose processes are killed."""
    fill_pods(node, pods - 1)
    return node.add_pod("victim", "BestEffort", containers=2, grace_s=0)


def observed(state_dir: Path, crossings: int) -> Row:
    """The decisions of a monitor that only observes, with processes that cross together."""
    with LabNode("latency", NODE_BYTES) as node:
        victim = add_pods(node, PODS)
        threshold = f"memory.available<{THRESHOLD - node.usage()}"
        with LabDaemon(node, "--eviction-hard", threshold, state_dir=state_dir, keep_pins=True) as daemon:
            hogs = [node.start_hog(victim, mib=HOG_MIB) for _ in range(HOGS)]
            row = summary("crossing_to_decision", observe_crossings(daemon, hogs, crossings))
            if lost := daemon.lost():
                progress(f"events lost: {lost}")
    progress(f"{row['name']}: p50 {row['p50']:.0f} us, p99 {row['p99']:.0f} us")
    return row


@contextlib.contextmanager
def neighbours(node: LabNode, kind: str, pods: Sequence[LabPod]) -> Iterator[None]:
    """``compile``, ``churn`` (in these pods) or no load (``""``)."""
    cgroups = {"compile": [node.hierarchy.root] * COMPILERS, "churn": [pod.containers["c0"] for pod in pods]}
    with contextlib.ExitStack() as stack:
        for cgroup in cgroups.get(kind, ()):
            child = Child("monitor.lab.workers:neighbour", kind=kind, cgroup=cgroup)
            stack.callback(child.close)
            child.expect("ready")
        yield


def at_floor(
    out: Samples, state_dir: Path, node: LabNode, victim: LabPod, available_below: int, n: int, mib: int
) -> None:
    """As `evictions`, by the bare loop, which is given the hog's pid beforehand."""
    pins = loader.ensure_loaded(state_dir, loader.AUTO)[0]
    floor = Child("monitor.lab.floor:floor", pins=pins, cgroup=node.cgroup, available_below=available_below)
    with contextlib.closing(floor):
        floor.expect("ready")
        for _ in range(n):
            hog = node.start_hog(victim, mib=mib)
            before = node.usage()
            floor.send(f"aim {hog.pid}")
            floor.expect("aimed")
            hog.go()
            crossed, seen, killed = map(int, floor.expect("killed").split())
            out.seen.append((seen - crossed) / 1000)
            out.signalled.append((killed - crossed) / 1000)
            hog.process.wait()
            deadline = time.monotonic() + 5.0
            while node.usage() > before + _BACK and time.monotonic() < deadline:
                time.sleep(0.001)
            node.end(hog)


def paired(
    node: LabNode, victim: LabPod, pods: Sequence[LabPod], state_dir: Path, kind: str, n: int, turns: int
) -> tuple[Samples, Samples]:
    """``n`` kills each beside neighbours of ``kind``, in turns: the monitor's samples and the floor's. The threshold
    lies a margin above what is in use when the neighbours are there.
    """
    ours, floor = Samples(), Samples()
    margin = CHURN_MARGIN_MIB if kind == "churn" else MARGIN_MIB
    for kills in shares(n, turns):
        with neighbours(node, kind, pods):
            threshold = node.memory_bytes - node.usage() - margin * MIB
            options = ("--enforce", "--eviction-hard", f"memory.available<{threshold}")
            with LabDaemon(node, *options, state_dir=state_dir, keep_pins=True) as daemon:
                evictions(ours, daemon, victim, kills, 2 * margin)
            at_floor(floor, state_dir, node, victim, threshold, kills, 2 * margin)
        progress(f"{kind or 'quiet'}: {len(floor.signalled)} of {n}")
    return ours, floor


def against_floor(state_dir: Path, kills: int, turns: int, pods: int) -> list[Row]:
    """The monitor and the floor: quiet, beside compilers at nice 19, with processes that come and go."""
    rows = []
    with LabNode("latency", NODE_BYTES) as node:
        victim = add_pods(node, pods - CPUS)
        # What comes and goes leaves up to 17 MiB behind for a while: it is not to be evicted for that.
        busy = [node.add_pod(f"busy{i}", priority=1000) for i in range(CPUS)]
        for kind, label in (("", "quiet"), ("compile", "beside_compilers"), ("churn", "with_churn")):
            ours, floor = paired(node, victim, busy, state_dir, kind, kills, turns)
            base = summary(f"floor_to_sigkill_{label}", floor.signalled)
            sigkill = summary(f"crossing_to_sigkill_{label}", ours.signalled)
            rows += [summary(f"floor_to_seen_{label}", floor.seen), base]
            rows += [summary(f"crossing_to_decision_{label}", ours.seen), sigkill]
            rows.append(ratio(f"sigkill_to_floor_{label}", sigkill, base))
    return rows


@bench(STATISTICS)
@number("--crossings", 1000, "Crossings to observe.")
@number("--kills", 300, "Evictions to measure.")
@click.option("--floor-only", is_flag=True, help="Only the comparison with the floor.")
@number("--turns", 6, "Turns of monitor and floor.")
@number("--pods", PODS, "Pods beside the floor.", 3)
def latency(crossings: int, kills: int, floor_only: bool, turns: int, pods: int) -> list[Row]:
    """Measure crossing to decision (4 processes at full speed, observe mode, 110 pods).

    Then, in turns, the SIGKILL of the monitor and that of the floor: a bare Python loop on the same ring that knows
    only the processes to kill. The rows sigkill_to_floor_* are the ratio of the two.
    """
    with temporary_state_dir() as state_dir:
        rows = [] if floor_only else [observed(state_dir, crossings)]
        return rows + against_floor(state_dir, kills, turns, pods)
