"""`outrace bench footprint`, `overhead`: what the monitor itself costs: time to be ready, memory, CPU, page faults.

For the footprint it watches the whole machine with the default thresholds, as on a node far from pressure, and is given
pods that do nothing. Times are the daemon's own (CLOCK_MONOTONIC, the `ready` record of the hot process); memory and
CPU are the kernel's (smaps_rollup, schedstat of every thread).
"""

from __future__ import annotations

import compileall
import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil

from monitor.errors import CannotError
from monitor.kernel import cgroupfs, loader
from monitor.kernel.domains import POD, DomainTable, ceiling_pages
from monitor.kernel.pins import OOM, PROCS, Pins, Ring
from monitor.kernel.sweeping import Sweeper
from monitor.lab.bench import STATISTICS, Row, bench, number, progress, summary
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode

#: What the project promises. Milliseconds, bytes, milliseconds per minute.
TARGETS = {"ready_cold": 3e3, "ready_warm": 300.0, "rss_hot": 40.0 * MIB, "rss_tree": 90.0 * MIB, "idle_hot": 20.0}
NODE_BYTES = 512 * MIB
#: What a start leaves behind (late audits of pods, the first sweep's pages) is over by then.
SETTLE_S = 3.0
#: Idle CPU is also given per window, because others on the machine (a process killed anywhere) can wake the monitor.
WINDOW_S = 5.0


def processes(pid: int) -> list[int]:
    """``pid`` and every process below it."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def memory(pid: int) -> int:
    """Bytes resident. (statm, of psutil's `memory_info`, lags behind by up to 64 pages of each kind on each CPU.)"""
    found = dict(line.split()[:2] for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return int(found["Rss:"]) * 1024


def cpu_ns(pid: int) -> int:
    """CPU time of all threads of a process in nanoseconds: exact, where clock ticks of /proc/PID/stat are 10 ms."""
    return sum(
        int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
        for task in os.listdir(f"/proc/{pid}/task")
    )


def _memory_rows(daemon: LabDaemon, after: str) -> list[Row]:
    figures = {"rss_hot": memory(daemon.pid), "rss_tree": sum(map(memory, processes(daemon.pid)))}
    return [summary(name + after, [float(value)], "bytes") for name, value in figures.items()]


def _idle_rows(daemon: LabDaemon, seconds: float) -> list[Row]:
    """CPU of both processes while nothing happens and no client asks, in windows of 5 s, each scaled to a minute.

    CannotError if the machine is too close to its threshold to be disarmed.
    """
    time.sleep(SETTLE_S)
    pids = dict(zip(("idle_hot", "idle_side"), processes(daemon.pid), strict=True))
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
    return [summary(name, values, "ms/min") | {"mean": statistics.mean(values)} for name, values in used.items()]


@bench("name unit n p50 mean max target")
@number("--runs", 5, "Starts of each kind.")
@number("--pods", 110, "Pods described by manifests.", 0)
@number("--idle", 60.0, "Seconds of idle CPU.", 0.1)
def footprint(runs: int, pods: int, idle: float) -> list[Row]:
    """Measure the monitor itself: time from the command's start to ready (first: state dir empty; cold: nothing
    loaded; warm: programs found pinned), resident memory of the hot process and of the whole tree, CPU while disarmed
    and idle.

    _scraped is after the first scrape of /metrics, which loads the library for it. Idle CPU is scaled to a minute.
    """
    # Bytecode as after an installation: a checkout has none before it was run, and compiling takes half a second.
    compileall.compile_dir(Path(loader.__file__).parent.parent, quiet=2)
    rows: list[Row] = []
    with LabNode("footprint", NODE_BYTES) as node:
        directory = node.state_dir()
        for i in range(pods):
            node.add_pod(f"p{i}", ("Burstable", "BestEffort")[i % 2], request=MIB * (i % 2 == 0), containers=2)

        for name, times in (("first", 1), ("cold", runs), ("warm", runs)):
            took = []
            for _ in range(times):
                if name == "cold":
                    loader.unload(loader.instance_directory(directory))
                with LabDaemon(node, state_dir=directory, machine=True) as daemon:
                    took.append((daemon.told("ready")["ready_ns"] - daemon.started_ns) / 1e6)
            rows.append(summary(f"ready_{name}", took, "ms"))
            progress(f"ready_{name}: p50 {rows[-1]['p50']:.0f} ms")
        with LabDaemon(node, state_dir=directory, machine=True) as daemon:
            rows += _memory_rows(daemon, "")
            rows += _idle_rows(daemon, idle)
            rows += _memory_rows(daemon, "_scraped")
    return [row | ({"target": TARGETS[row["name"]]} if row["name"] in TARGETS else {}) for row in rows]


# What a page fault costs with the programs attached, against without. Rounds of some 50 ms alternate between nothing
# attached and one of two states, so that each is compared with the two beside it: ``armed``, with the lab node, its pod
# and its container watched as the daemon does; ``disarmed``, what stays attached far from every threshold.

FAULTS_NODE_BYTES = 256 * MIB
#: Not reached by the loop, as on a node that is armed but not under pressure: nothing crosses, everything is compared.
THRESHOLD_BYTES = 100 * MIB
LOOP_MIB = 8
ROUND_NS = 50_000_000


def ratios(measure: Callable[[], int], pins: Pins, drain: Callable[[], object], triples: int) -> dict[str, list[float]]:
    """CPU time per round in each state, divided by the mean of the rounds before and after with nothing attached."""
    states = {"armed": (*pins.pressure, *OOM, *PROCS), "disarmed": (*OOM, *PROCS)}
    found: dict[str, list[float]] = {name: [] for name in states}
    before = measure()
    for _ in range(triples):
        for state, programs in states.items():
            with ExitStack() as links:
                for name in programs:
                    links.callback(os.close, pins.attach(name))
                during = measure()
            drain()
            after = measure()
            found[state].append(2 * during / (before + after))
            before = after
    return found


@bench(STATISTICS)
@number("--triples", 100, "Rounds in each state.", 3)
def overhead(triples: int) -> list[Row]:
    """Measure what page faults cost with the programs attached.

    Ratios of CPU time per 4K page fault: 1.08 is 8 % more than with nothing attached. "armed" is the cost near a
    threshold; "disarmed" is the cost everywhere else.
    """
    with LabNode("bench-overhead", FAULTS_NODE_BYTES) as node, ExitStack() as stack:
        directory = loader.ensure_loaded(node.state_dir())[0]
        pins = Pins(directory)
        for name in OOM:
            # Pinned links would keep these attached in the rounds that are to have nothing attached.
            (directory / f"link_{name}").unlink()
        pod = node.add_pod("faulting", "Burstable", request=64 * MIB)
        # As the daemon has it: a ceiling on the node, steps of 1 MiB on the pod, a plain container.
        table = DomainTable(pins)
        stack.callback(table.close)
        table.reset()
        ceiling = ceiling_pages(node.memory_bytes, THRESHOLD_BYTES)
        table.set_ceilings(table.add(cgroupfs.cgroup_id(node.cgroup)), [ceiling], pull_above=ceiling)
        table.add(cgroupfs.cgroup_id(pod.cgroup), flags=POD, step=MIB)
        table.add(cgroupfs.cgroup_id(pod.containers["c0"]))
        Sweeper(pins, table).run()
        rings = [Ring(pins, name, lambda record: None) for name in ("events", "steps")]
        for ring in rings:
            stack.callback(ring.close)
        child = node.start(pod, "monitor.lab.workers:faults", mib=LOOP_MIB, cpu=max(os.sched_getaffinity(0)))

        def took(passes: int) -> int:
            child.send(str(passes))
            return int(child.expect("took"))

        passes = max(1, ROUND_NS // took(1))
        found = ratios(lambda: took(passes), pins, lambda: sum(ring.consume() for ring in rings), triples)
        return [summary(state, values, "ratio") for state, values in found.items()]
