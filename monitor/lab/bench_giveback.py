"""`outrace bench giveback`: how long the memory of a killed process takes to come back after its last exit.

A process of a pod that holds one kind of memory is killed; from the moment its pidfd says that it is gone, the usage
of its pod is read until nothing of it is left. What stays for half a second is asked for as the monitor asks for it.
Quiet, and beside two busy processes for each CPU: the bound that the monitor waits for is made of these figures
(monitor/hot/patience.py).
"""

from __future__ import annotations

import os
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
from monitor.hot.leaving import NOTHING
from monitor.kernel.readable import readable
from monitor.lab.bench import STATISTICS, Row, bench, number, state_dir, summary
from monitor.lab.child import Hog
from monitor.lab.daemon import LabDaemon
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
        readable(pidfd)
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


def nobody_else(directory: Path) -> bool:
    """A pod of page tables crosses the threshold under --enforce: whether it alone died."""
    with LabNode("bench-giveback", RACE_MIB * MIB) as node:
        hog_pod, calm_pod = node.add_pod("tables"), node.add_pod("innocent")
        with _monitor(node, directory) as d:
            calm = node.fill(calm_pod, CALM_MIB)
            node.start_hog(hog_pod, kind="tables", mib=RACE_MIB).go()
            return (
                d.message("evicted", pod="lab/tables") is not None
                and calm.process.poll() is None
                and node.oom_kills() == 0
            )


def in_time(directory: Path) -> bool:
    """A pod of a tmpfs that outlives it crosses, and as soon as it is gone another takes what is left at full speed:
    whether it was evicted before the OOM killer came.
    """
    tmpfs = tempfile.TemporaryDirectory(prefix="outrace-bench-", dir="/dev/shm")
    with LabNode("bench-giveback", RACE_MIB * MIB) as node, tmpfs as files:
        hog_pod, fast_pod = node.add_pod("files"), node.add_pod("grower", priority=1)
        with _monitor(node, directory) as d:
            fast = node.start_hog(fast_pod, mib=RACE_MIB)
            hog = node.start_hog(hog_pod, kind="shmem", path=f"{files}/file", mib=RACE_MIB)
            hog.go()
            hog.wait()
            fast.go()
            fast.wait()
            return d.message("evicted", pod="lab/grower") is not None and node.oom_kills() == 0


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


def rows(kind: str, state: str, found: list[Return]) -> list[Row]:
    made = [summary(f"{kind}, {state}: SIGKILL to exit", [one.died_ns // 1000 for one in found])]
    if back := [one.back_ns // 1000 for one in found if one.back_ns is not None]:
        made.append(summary(f"{kind}, {state}: exit to memory back", back))
    for what, values in (
        ("charged at the exit", [one.at_exit for one in found]),
        ("kept", [one.kept for one in found]),
        ("kept when asked for", [one.kept_when_asked for one in found]),
    ):
        if max(values) > NOTHING:
            made.append(summary(f"{kind}, {state}: {what}", values, "bytes"))
    return made


def _races(runs: int) -> list[Row]:
    with LabNode("bench-giveback", MIB) as owner, state_dir(owner) as directory:
        return [
            {"name": name, "runs": runs, "wins": sum(race(directory) for _ in range(runs))}
            for name, race in (
                ("page tables: nobody else died", nobody_else),
                ("growth meanwhile: in time", in_time),
            )
        ]


@bench(f"{STATISTICS} runs wins")
@number("--runs", 20, "Kills of each kind of memory, quiet and busy.")
@number("--mib", 64, "MiB of memory of each process.", 8)
@number("--races", 10, "Evictions in each of the two situations.", 0)
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="Only these kinds of memory.")
def giveback(runs: int, mib: int, races: int, kinds: tuple[str, ...]) -> list[Row]:
    """Measure how long the memory of a killed process takes to come back.

    From its last exit to the memory given back, for anonymous memory, page tables, tmpfs that goes with the process,
    sockets, negative dentries and page cache; quiet, and beside two busy processes for each CPU. Then what the monitor
    makes of it: evictions of a pod of page tables beside one that is innocent, and of one whose memory stays while
    another takes the rest.
    """
    found: list[Row] = []
    with LabNode("bench-giveback", (2 * mib + 64) * MIB) as node:
        for state, load in (("quiet", 0), ("busy", 2 * (os.cpu_count() or 1))):
            with busy(load):
                for kind in kinds or KINDS:
                    found += rows(kind, state, [one(node, kind, mib, i) for i in range(runs)])
    return found + (_races(races) if races else [])
