"""`outrace bench giveback`: how long the memory of a killed process takes to come back after its last exit.

A process of a pod that holds one kind of memory is killed; from the moment its pidfd says that it is gone, the usage
of its pod is read until nothing of it is left. What stays for half a second is asked for as the monitor asks for it.
Quiet, and beside two busy processes for each CPU: the bound that the monitor waits for is made of these figures
(monitor/hot/patience.py).
"""

from __future__ import annotations

import math
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from monitor.actions.reap import give_back
from monitor.cli.output import output_option, print_json, print_table
from monitor.hot.leaving import NOTHING
from monitor.kernel import loader
from monitor.lab.child import Hog
from monitor.lab.daemon import LabDaemon, Record
from monitor.lab.node import MIB, LabNode, LabPod

KINDS = ("anon", "tables", "shmem", "sockets", "dentries", "file")
#: Whatever is there for so long stays.
STAYS_NS = 500_000_000
_LOOK_S = 0.00025
#: Of the races: the node, its hard threshold, and what is there beside the pod that is evicted first.
RACE_MIB, LINE_MIB, CALM_MIB = 256, 64, 40


@dataclass(frozen=True, slots=True)
class Return:
    """One process that went: from SIGKILL to its exit, from there to its memory back (None: not all of it), what was
    left of how much at the exit, what stayed, and what stayed after the kernel was asked for it. Bytes, nanoseconds.
    """

    died_ns: int
    back_ns: int | None
    held: int
    at_exit: int
    kept: int
    kept_when_asked: int


def usage_fd(node: LabNode, pod: LabPod) -> int:
    name = "memory.current" if node.hierarchy.version == 2 else "memory.usage_in_bytes"
    return os.open(pod.cgroup / name, os.O_RDONLY | os.O_CLOEXEC)


def one(node: LabNode, kind: str, mib: int, number: int) -> Return:
    """Let a process take ``mib`` MiB of a kind, kill it, and see what comes back."""
    pod = node.add_pod(f"{kind}-{number}")
    usage = usage_fd(node, pod)

    def used() -> int:
        return int(os.pread(usage, 32, 0))

    hog = Hog(pod.containers["c0"], kind=kind, mib=mib)
    try:
        hog.go()
        hog.expect("grown")
        held = used()
        pidfd = os.pidfd_open(hog.pid)
        began = time.monotonic_ns()
        hog.process.kill()
        select.select([pidfd], [], [])
        gone = time.monotonic_ns()
        os.close(pidfd)
        at_exit = left = used()
        back_ns = None
        while back_ns is None and (now := time.monotonic_ns()) < gone + STAYS_NS:
            left = used()
            if left < NOTHING:
                back_ns = now - gone
            else:
                time.sleep(_LOOK_S)
        asked = left
        if back_ns is None:
            give_back(pod.cgroup)
            asked = used()
    finally:
        hog.close()
        os.close(usage)
        node.remove_pod(pod)
    return Return(gone - began, back_ns, held, at_exit, left if back_ns is None else 0, asked if back_ns is None else 0)


def _monitor(node: LabNode, directory: Path) -> LabDaemon:
    """One for each race; its programs stay pinned from the first to the last."""
    options = ("--enforce", "--eviction-hard", f"memory.available<{LINE_MIB}Mi")
    return LabDaemon(node, *options, state_dir=directory, keep_pins=True)


def _evicted(daemon: LabDaemon, name: str) -> bool:
    """Whether a pod was evicted, to its end, within the time that a lab has."""

    def is_it(record: Record) -> bool:
        return record.get("msg") == "evicted" and record.get("pod") == f"lab/{name}"

    return daemon.wait_for(is_it) is not None


def nobody_else(directory: Path) -> bool:
    """A pod of page tables crosses the threshold under --enforce: whether it alone died."""
    with LabNode("bench-giveback", RACE_MIB * MIB) as node:
        hog_pod, calm_pod = node.add_pod("tables"), node.add_pod("innocent")
        with _monitor(node, directory) as d:
            calm = node.start_hog(calm_pod, mib=CALM_MIB)
            calm.go()
            calm.expect("grown")
            node.start_hog(hog_pod, kind="tables", mib=RACE_MIB).go()
            return _evicted(d, "tables") and calm.process.poll() is None and node.oom_kills() == 0


def in_time(directory: Path) -> bool:
    """A pod of a tmpfs that outlives it crosses, and as soon as it is gone another takes what is left at full speed:
    whether it was evicted before the OOM killer came.
    """
    place = tempfile.TemporaryDirectory(prefix="outrace-bench-", dir="/dev/shm")
    with LabNode("bench-giveback", RACE_MIB * MIB) as node, place as files:
        hog_pod, fast_pod = node.add_pod("files"), node.add_pod("grower", priority=1)
        with _monitor(node, directory) as d:
            fast = node.start_hog(fast_pod, mib=RACE_MIB)
            hog = node.start_hog(hog_pod, kind="shmem", path=f"{files}/file", mib=RACE_MIB)
            hog.go()
            hog.wait()
            fast.go()
            fast.wait()
            return _evicted(d, "grower") and node.oom_kills() == 0


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that want a CPU all the time."""
    spinning = [subprocess.Popen([sys.executable, "-S", "-E", "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def rows(kind: str, state: str, found: list[Return]) -> list[dict[str, object]]:
    back = sorted(one.back_ns for one in found if one.back_ns is not None)
    made: list[dict[str, object]] = [_row(f"{kind}, {state}: SIGKILL to exit", sorted(one.died_ns for one in found))]
    if back:
        made.append(_row(f"{kind}, {state}: exit to memory back", back))
    for what, values in (
        ("charged at the exit", [one.at_exit for one in found]),
        ("kept", [one.kept for one in found]),
        ("kept when asked for", [one.kept_when_asked for one in found]),
    ):
        if max(values) > NOTHING:
            made.append(_bytes(f"{kind}, {state}: {what}", sorted(values)))
    return made


def _row(name: str, ns: list[int]) -> dict[str, object]:
    p50, p99, most = statistics.median(ns), ns[math.ceil(len(ns) * 0.99) - 1], ns[-1]
    return {"name": name, "unit": "us", "n": len(ns), "p50": int(p50) // 1000, "p99": p99 // 1000, "max": most // 1000}


def _bytes(name: str, values: list[int]) -> dict[str, object]:
    p99 = values[math.ceil(len(values) * 0.99) - 1]
    p50 = int(statistics.median(values))
    return {"name": name, "unit": "bytes", "n": len(values), "p50": p50, "p99": p99, "max": values[-1]}


def _races(runs: int) -> list[dict[str, object]]:
    with LabNode("bench-giveback", MIB) as owner, tempfile.TemporaryDirectory(prefix="outrace-bench-") as state:
        pins = loader.instance_directory(Path(state))
        owner.also_remove(pins)  # also after kill -9
        try:
            return [
                {"name": name, "runs": runs, "wins": sum(race(Path(state)) for _ in range(runs))}
                for name, race in (
                    ("page tables: nobody else died", nobody_else),
                    ("growth meanwhile: in time", in_time),
                )
            ]
        finally:
            loader.unload(pins)


@click.command()
@output_option
@click.option("--runs", type=click.IntRange(min=1), default=20, show_default=True, help="Kills of each kind and state.")
@click.option("--mib", type=click.IntRange(min=8), default=64, show_default=True, help="Memory of each process.")
@click.option("--races", type=click.IntRange(min=0), default=10, show_default=True, help="Evictions of each sort.")
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="Only these kinds of memory.")
def giveback(output: str, runs: int, mib: int, races: int, kinds: tuple[str, ...]) -> None:
    """Measure how long the memory of a killed process takes to come back.

    From its last exit to the memory given back, for anonymous memory, page tables, tmpfs that goes with the process,
    sockets, negative dentries and page cache; quiet, and beside two busy processes for each CPU. Then what the monitor
    makes of it: evictions of a pod of page tables beside one that is innocent, and of one whose memory stays while
    another takes the rest.
    """
    found: list[dict[str, object]] = []
    with LabNode("bench-giveback", (2 * mib + 64) * MIB) as node:
        for state, load in (("quiet", 0), ("busy", 2 * (os.cpu_count() or 1))):
            with busy(load):
                for kind in kinds or KINDS:
                    found += rows(kind, state, [one(node, kind, mib, i) for i in range(runs)])
    won = _races(races) if races else []
    if output == "json":
        print_json({"bench": "giveback", "results": found + won})
        return
    print_table(list(found[0]), [list(row.values()) for row in found])
    if won:
        print_table(list(won[0]), [list(row.values()) for row in won])
