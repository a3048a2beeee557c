"""`outrace bench storm`: who makes as many events as four processes can does not blind the monitor.

For each kind of event: crossing to SIGKILL in the storm against quiet, in turns in the same run; races lost; and how
long a daemon that is started in the midst of it takes to be ready. `spin` makes no events and takes the CPUs alone.
With `--floor` also against the bare loop (`monitor.lab.floor`) in the same storm: what that takes is the kernel's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from monitor.errors import EXIT_FAILURE, EXIT_OK, CannotError, MonitorError
from monitor.kernel import cgroupfs
from monitor.lab import blinder
from monitor.lab.bench import (
    STATISTICS,
    Found,
    Row,
    bench,
    fill_pods,
    number,
    progress,
    ratio,
    reap_sleepers,
    shares,
    state_dir,
    summary,
)
from monitor.lab.bench_latency import at_floor
from monitor.lab.child import Child
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode, LabPod
from monitor.lab.samples import Samples

KINDS = tuple(blinder.KINDS)
#: Room for the storm beside the hog: on busy CPUs the killed children of one pod held 98 MB that was not back yet.
NODE_BYTES = 256 * MIB
#: Of the pod that storms. With the priority of the hog it goes whenever it holds more than the hog, and rightly.
STORM_PRIORITY = 1000
#: From the hard threshold to the limit: 17 ms for one process that takes 4K pages as fast as it can.
MARGIN = 16 * MIB
#: A soft threshold whose grace never ends, where those that tremble at a line have it.
LINE = 16 * MIB
#: The limit of a container that has to reclaim all the time. What it holds is page cache, which is no working set: it
#: is taken from the margin, because the node's limit counts it.
RECLAIM_LIMIT = 6 * MIB
PROCESSES = 4
_PATIENCE_S = 30.0


@dataclass(slots=True)
class Rate:
    """How many events a storm made."""

    events: int = 0
    seconds: float = 0.0


def options(kind: str) -> tuple[str, ...]:
    """Of the daemon that has to stand this storm."""
    hard = ("--enforce", "--eviction-hard", f"memory.available<{MARGIN}")
    if kind != "line":
        return hard
    soft = ("--eviction-soft", f"memory.available<{NODE_BYTES - LINE}")
    return (*hard, *soft, "--eviction-soft-grace-period", "memory.available=10h")


@contextmanager
def blinding(node: LabNode, pod: LabPod, kind: str, rate: Rate) -> Iterator[None]:
    """Four processes of ``pod`` that do nothing else."""
    made: list[Child] = []
    try:
        for _ in range(PROCESSES):
            made.append(node.start(pod, "blinder", kind=kind))
        began = time.monotonic()
        yield
        for child in made:
            child.close_stdin()
        rate.events += sum(int(child.expect("did")) for child in made)
        rate.seconds += time.monotonic() - began
    finally:
        for child in made:
            node.end(child)


def races(daemon: LabDaemon, node: LabNode, victim: LabPod, n: int) -> Samples:
    """``n`` hogs that take all there is, one after the other. Raises MonitorError if another pod is evicted for one."""
    out = Samples()
    for _ in range(n):
        daemon.poll()
        del daemon.log[:]
        kills, base = node.oom_kills(victim), node.usage()
        hog = node.start_hog(victim, mib=NODE_BYTES // MIB)
        hog.go()
        hog.wait(_PATIENCE_S)
        if node.oom_kills(victim) > kills:
            out.lost += 1
        else:
            out.read(daemon, victim, 0)
        node.end(hog)
        deadline = time.monotonic() + _PATIENCE_S
        while node.usage() > base + LINE and time.monotonic() < deadline:
            time.sleep(0.002)
    return out


def starts(node: LabNode, directory: Path, n: int) -> Iterator[float]:
    """Milliseconds from the start of the daemon to its being ready; each is killed, so that the next one finds the
    rings as they are.
    """
    killed: list[LabDaemon] = []
    try:
        for _ in range(n):
            daemon = LabDaemon(node, *options(""), state_dir=directory, keep_pins=True)
            try:
                daemon.start()
                record = daemon.message("ready", _PATIENCE_S)
                if record is None:
                    raise MonitorError(f"the monitor did not say that it is ready: {daemon.complaint()}")
                yield (record["ready_ns"] - daemon.started_ns) / 1e6
            finally:
                if daemon.process is not None:
                    daemon.process.kill()
                    daemon.process.wait()
                    killed.append(daemon)
    finally:
        for daemon in killed:  # its side, which ends a moment later, still writes into the state dir
            daemon.wait_for(lambda _: False, _PATIENCE_S)


def measure(kind: str, directory: Path, n: int, turns: int, n_starts: int, n_pods: int, with_floor: bool) -> list[Row]:
    """The rows of one kind of storm."""
    quiet, stormy, floor, rate = Samples(), Samples(), Samples(), Rate()
    with LabNode("storm", NODE_BYTES) as node:
        fill_pods(node, n_pods)
        victim = node.add_pod("victim", grace_s=0)
        pod = node.add_pod(f"storm-{kind}", priority=STORM_PRIORITY)
        if kind == "reclaim":
            cgroupfs.set_limit(pod.containers["c0"], RECLAIM_LIMIT)
        for shared in shares(n, turns) if with_floor else (n,):
            with LabDaemon(node, *options(kind), state_dir=directory, keep_pins=True) as daemon:
                races(daemon, node, victim, 2)  # nobody counts what is done for the first time
                for share in shares(shared, 1 if with_floor else turns):
                    quiet.add(races(daemon, node, victim, share))
                    with blinding(node, pod, kind, rate):
                        stormy.add(races(daemon, node, victim, share))
                if lost := daemon.lost():
                    progress(f"{kind}: events lost: {lost}")
            if with_floor:
                with blinding(node, pod, kind, Rate()):
                    floor.add(at_floor(directory, node, victim, MARGIN, shared, NODE_BYTES // MIB))
        with blinding(node, pod, kind, Rate()):
            ready = list(starts(node, directory, n_starts))
    reap_sleepers()
    before, during = (
        summary(f"crossing_to_sigkill_{name}_{kind}", found.signalled)
        | {"lost": found.lost, "by_pass": len(found.by_pass)}
        for name, found in (("quiet", quiet), ("storm", stormy))
    )
    during["events_per_s"] = round(rate.events / rate.seconds)
    rows = [before, during, ratio(f"storm_to_quiet_{kind}", during, before)]
    progress(f"{kind}: p99 {rows[2]['p99']:.2f} x quiet, {stormy.lost} of {n} lost")
    if with_floor:
        bare = summary(f"crossing_to_sigkill_floor_{kind}", floor.signalled)
        rows += [bare, ratio(f"storm_to_floor_{kind}", during, bare)]
        progress(f"{kind}: p99 {rows[-1]['p99']:.2f} x the bare loop in the same storm")
    return [*rows, summary(f"start_to_ready_{kind}", ready, "ms")] if ready else rows


@bench(f"{STATISTICS} lost by_pass events_per_s")
@click.option("--only", "kinds", multiple=True, type=click.Choice(KINDS), help="Only this kind of storm; repeatable.")
@number("--races", 100, "Races in quiet and in each storm.")
@number("--turns", 5, "How often quiet and storm alternate.")
@number("--starts", 5, "Starts of the daemon in each storm.", 0)
@number("--pods", 20, "Other pods on the node.", 0)
@click.option("--floor", is_flag=True, help="Also the bare loop in each storm, in turns.")
def storm(kinds: tuple[str, ...], races: int, turns: int, starts: int, pods: int, floor: bool) -> Found:
    """Measure crossing to SIGKILL in storms of events against quiet, races lost, and starts in the midst of them.

    Four processes of one pod make events of one kind as fast as they can: SIGKILLs to a zombie or to live children,
    forks, execs, threads, memory up and down past a line, reclaim, cgroups, names. Meanwhile a hog of another pod runs
    into the threshold. Exit code 1 if a kind could not be measured.
    """
    rows: list[Row] = []
    failed: list[str] = []
    with state_dir() as directory:
        for kind in kinds or KINDS:  # one that fails after minutes costs no other its figures
            try:
                rows += measure(kind, directory, races, min(turns, races), starts, pods, floor)
            except CannotError:
                raise  # nor can the others be measured here
            except MonitorError as error:
                failed.append(kind)
                progress(f"{kind}: not measured: {error}")
    return Found(rows, {"failed": failed}, EXIT_FAILURE if failed else EXIT_OK)
