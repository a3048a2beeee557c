"""`outrace bench latency`: from the crossing in the kernel to the decision and to the SIGKILL, and beside the floor
(`monitor.lab.workers.floor`): the same crossings, the same victims, in turns, in one run.

Every figure of the monitor comes from the real daemon's own records: the crossing's time is taken by the BPF program,
the other two by the hot process right after deciding and right after the last signal of the first round went out.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import click

from monitor.errors import MonitorError
from monitor.kernel import loader
from monitor.lab.bench import STATISTICS, Row, bench, number, progress, summary
from monitor.lab.child import until
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode, LabPod

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


#: Microseconds from a crossing until it was seen (decided), and until the last signal.
Sample = tuple[float, float]


def add_pods(node: LabNode, pods: int) -> LabPod:
    """So many pods of two containers (three cgroups each), with a process in the first one that dies with the pod; the
    last has none, and its processes are those that are killed.
    """
    for i in range(pods - 1):
        pod = node.add_pod(f"p{i}", ("Burstable", "BestEffort")[i % 2], MIB * (i % 2 == 0), containers=2)
        join = partial((pod.containers["c0"] / "cgroup.procs").write_text, "0")  # so that all it takes is the pod's
        subprocess.Popen(["sleep", "100000"], stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=join)
    return node.add_pod("victim", "BestEffort", containers=2, grace_s=0)


def observed(crossings: int) -> Row:
    """The decisions of a monitor that only observes, with processes that cross the threshold together."""
    found: list[float] = []
    with LabNode("latency", NODE_BYTES) as node:
        victim = add_pods(node, PODS)
        threshold = f"memory.available<{THRESHOLD - node.usage()}"
        with LabDaemon(node, "--eviction-hard", threshold) as daemon:
            hogs = [node.start_hog(victim, mib=HOG_MIB) for _ in range(HOGS)]
            since = len(daemon.log)
            while len(found) < crossings:
                for hog in hogs:
                    hog.go()
                for hog in hogs:
                    hog.expect("grown")
                for hog in hogs:
                    hog.free()
                new = daemon.log[since:]
                since += len(new)
                decided = (r for r in new if r.get("msg") == "would evict" and r["crossed_ns"])
                found += [(r["decided_ns"] - r["crossed_ns"]) / 1000 for r in decided]
            for key, count in daemon.metrics().items():
                if key.startswith("outrace_events_lost_total") and count:
                    progress(f"{key}: {count:g}")
    row = summary("crossing_to_decision", found)
    progress(f"{row['name']}: p50 {row['p50']:.0f} us, p99 {row['p99']:.0f} us")
    return row


def against_floor(kills: int, turns: int, pods: int) -> Iterator[Row]:
    """The monitor and the floor: quiet, beside compilers at nice 19, with processes that come and go. ``kills`` of
    each, in turns, of processes that run into a threshold one after the other.
    """
    with LabNode("latency", NODE_BYTES) as node:
        victim = add_pods(node, pods - CPUS)
        # What comes and goes leaves up to 17 MiB behind for a while: it is not to be evicted for that.
        busy = [node.add_pod(f"busy{i}", priority=1000) for i in range(CPUS)]
        state_dir = node.state_dir()
        for kind, label in (("", "quiet"), ("compile", "beside_compilers"), ("churn", "with_churn")):
            ours, floor = list[Sample](), list[Sample]()
            margin = CHURN_MARGIN_MIB if kind == "churn" else MARGIN_MIB
            for turn in range(turns):  # what a host does to its machines changes within seconds
                share = kills * (turn + 1) // turns - kills * turn // turns
                with neighbours(node, kind, busy):
                    # A margin above what is in use when the neighbours are there.
                    below = node.memory_bytes - node.usage() - margin * MIB
                    ours += by_monitor(node, victim, state_dir, below, share, 2 * margin)
                    floor += by_floor(node, victim, state_dir, below, share, 2 * margin)
                progress(f"{kind or 'quiet'}: {len(floor)} of {kills}")
            yield from rows_of(label, ours, floor)


def rows_of(label: str, ours: list[Sample], floor: list[Sample]) -> list[Row]:
    names = ("floor_to_seen", "floor_to_sigkill", "crossing_to_decision", "crossing_to_sigkill")
    values = [[one[at] for one in samples] for samples in (floor, ours) for at in (0, 1)]
    rows = [summary(f"{name}_{label}", found) for name, found in zip(names, values, strict=True)]
    ratio = {key: rows[3][key] / rows[1][key] for key in ("p50", "p99", "max")}
    return [*rows, {"name": f"sigkill_to_floor_{label}", "unit": "ratio", "n": rows[3]["n"], **ratio}]


@contextmanager
def neighbours(node: LabNode, kind: str, busy: Sequence[LabPod]) -> Iterator[None]:
    """``compile``, ``churn`` (in the busy pods) or no load (``""``)."""
    own = [pod.containers["c0"] for pod in busy]
    with ExitStack() as stack:
        for cgroup in {"compile": [node.hierarchy.root] * COMPILERS, "churn": own}.get(kind, ()):
            stack.callback(node.end, node.start(cgroup, "monitor.lab.workers:neighbour", kind=kind))
        yield


def by_monitor(node: LabNode, victim: LabPod, state_dir: Path, below: int, n: int, mib: int) -> Iterator[Sample]:
    """``n`` kills by the monitor, where less than ``below`` bytes are available."""
    options = ("--enforce", "--eviction-hard", f"memory.available<{below}")
    with LabDaemon(node, *options, state_dir=state_dir) as daemon:
        for _ in range(n):
            since = len(daemon.log)
            hog = node.start_hog(victim, mib=mib)
            hog.go()
            record = daemon.told("evicting", since=since)
            daemon.told("evicted", since=since)
            if record["uid"] != victim.uid:
                raise MonitorError(f"the wrong pod was evicted: {record['pod']}")
            if crossed := record["crossed_ns"]:
                yield (record["decided_ns"] - crossed) / 1000, (record["signalled_ns"] - crossed) / 1000
            else:
                progress("not timed: decided by a pass before the crossing's record was read")
            node.end(hog)


def by_floor(node: LabNode, victim: LabPod, state_dir: Path, below: int, n: int, mib: int) -> Iterator[Sample]:
    """The same by the bare loop, which is given the hog's pid beforehand."""
    pins = loader.ensure_loaded(state_dir)[0]
    with closing(node.start(node.cgroup, "monitor.lab.workers:floor", pins=pins, available_below=below)) as floor:
        for _ in range(n):
            hog = node.start_hog(victim, mib=mib)
            before = node.usage()
            floor.send(f"aim {hog.pid}")
            floor.expect("aimed")
            hog.go()
            crossed, seen, killed = map(int, floor.expect("killed").split())
            yield (seen - crossed) / 1000, (killed - crossed) / 1000
            hog.process.wait()
            with suppress(MonitorError):
                until(lambda: node.usage() <= before + _BACK, "its memory", 5.0)  # noqa: B023 - called here
            node.end(hog)


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
    return [*([] if floor_only else [observed(crossings)]), *against_floor(kills, turns, pods)]
