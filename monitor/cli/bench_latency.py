"""`outrace bench latency`: from the crossing in the kernel to the decision, and to the SIGKILL, quiet and disturbed.

Every figure comes from the real daemon's own records: the crossing's time is taken by the BPF program, the other two
by the hot process right after deciding and right after the last signal of the first round went out.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from monitor.cli.latency_floor import monitored, paired, ratio
from monitor.cli.output import output_option, print_json, print_table
from monitor.errors import MonitorError
from monitor.kernel import loader, mounts
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, Hog, LabNode, LabPod

NODE_BYTES = 512 * MIB
HOGS = 4
HOG_MIB = 16
#: The hogs take 64 MiB together; the threshold lies in the middle of that.
THRESHOLD = NODE_BYTES - HOGS * HOG_MIB * MIB // 2
KILL_PODS = 110
SCRAPE_S = 0.05


def summary(name: str, values: list[float], unit: str = "us") -> dict[str, Any]:
    """One row in the form every bench prints."""
    values = sorted(values)
    if not values:
        raise MonitorError(f"{name}: nothing was measured")
    return {
        "name": name,
        "unit": unit,
        "n": len(values),
        "p50": statistics.median(values),
        "p99": values[min(len(values) - 1, math.ceil(0.99 * len(values)) - 1)],
        "max": values[-1],
    }


def fill_pods(node: LabNode, pods: int) -> list[LabPod]:
    """``pods`` pods of two containers (three cgroups each), a sleeping process in every one."""
    made = []
    for i in range(pods):
        pod = node.add_pod(f"p{i}", ("Burstable", "BestEffort")[i % 2], request=MIB * (i % 2 == 0), containers=2)
        made.append(pod)
        put_sleeper(pod)
    return made


def put_sleeper(pod: LabPod) -> None:
    """A process of half a megabyte that does nothing, in the pod's first container.

    It dies with the pod (or the node).
    """
    joined = subprocess.Popen(
        ["/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs" && echo in && exec sleep 100000', str(pod.containers["c0"])],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert joined.stdout is not None
    joined.stdout.readline()
    joined.stdout.close()
    _sleepers.append(joined)


_sleepers: list[subprocess.Popen[bytes]] = []


def reap_sleepers() -> None:
    """Collect those that were killed; their pods are gone."""
    _sleepers[:] = [p for p in _sleepers if p.poll() is None]


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
        daemon.poll()
        fresh, since = daemon.log[since:], len(daemon.log)
        out.extend(
            (r["decided_ns"] - r["crossed_ns"]) / 1000
            for r in fresh
            if r.get("msg") == "would evict" and r["crossed_ns"]
        )
        if len(daemon.log) > 10_000:
            del daemon.log[:]
            since = 0
    return out


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[Path]:
    """A file system of 512 KiB of its own (tmpfs) mounted on ``directory``; `fill` leaves not one byte free."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"outrace-bench", os.fsencode(directory), b"tmpfs", 0, b"size=512k,mode=0700"):
        raise MonitorError(f"cannot mount a tmpfs on {directory}: {os.strerror(ctypes.get_errno())}")
    try:
        yield directory
    finally:
        libc.umount2(os.fsencode(directory), 2)  # MNT_DETACH


def fill(directory: Path) -> None:
    with contextlib.suppress(OSError), open(directory / "ballast", "wb", buffering=0) as file:  # ENOSPC is the aim
        while True:
            file.write(bytes(4096))


@contextlib.contextmanager
def scraping(daemon: LabDaemon, interval_s: float) -> Iterator[list[int]]:
    """Somebody reads /metrics every ``interval_s``; yields the list of statuses."""
    statuses: list[int] = []
    stop = threading.Event()

    def scrape() -> None:
        while not stop.wait(interval_s):
            statuses.append(daemon.get("/metrics")[0])

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield statuses
    finally:
        stop.set()
        thread.join()


def measure(label: str, state_dir: Path, crossings: int, n_kills: int, disturbed: bool) -> list[dict[str, Any]]:
    """Both figures once; ``disturbed``: /metrics scraped every 50 ms, the disk of the state dir full."""
    rows = []
    with LabNode("latency", NODE_BYTES) as node:
        pods = fill_pods(node, KILL_PODS - 1)
        del pods
        victim = node.add_pod("victim", "BestEffort", containers=2, grace_s=0)
        threshold = f"memory.available<{THRESHOLD - node.usage()}"
        for enforce in (False, True):
            options = ("--eviction-hard", threshold, *(("--enforce",) if enforce else ()))
            with contextlib.ExitStack() as stack:
                daemon = stack.enter_context(LabDaemon(node, *options, state_dir=state_dir, keep_pins=True))
                if disturbed:
                    fill(state_dir)
                    stack.enter_context(scraping(daemon, SCRAPE_S))
                if enforce:
                    got = monitored(daemon, node, victim, n_kills, HOGS * HOG_MIB)
                    rows.append(summary(f"crossing_to_sigkill{label}", got.signalled))
                else:
                    hogs = [node.start_hog(victim, mib=HOG_MIB) for _ in range(HOGS)]
                    rows.append(summary(f"crossing_to_decision{label}", observe_crossings(daemon, hogs, crossings)))
                    for hog in hogs:
                        hog.close()
                        node.children.remove(hog)
                lost = {k: v for k, v in daemon.metrics().items() if k.startswith("outrace_events_lost_total") and v}
                if lost:
                    click.echo(f"events lost: {lost}", err=True)
                with contextlib.suppress(FileNotFoundError):
                    (state_dir / "ballast").unlink()
            click.echo(f"{rows[-1]['name']}: p50 {rows[-1]['p50']:.0f} us, p99 {rows[-1]['p99']:.0f} us", err=True)
        _sleepers_end()
    return rows


def against_floor(state_dir: Path, n_kills: int, turns: int, n_pods: int) -> list[dict[str, Any]]:
    """The monitor and the floor: quiet, beside compilers at nice 19, with processes that come and go."""
    rows = []
    with LabNode("latency", NODE_BYTES) as node:
        fill_pods(node, n_pods - 1 - (os.cpu_count() or 1))
        victim = node.add_pod("victim", "BestEffort", containers=2, grace_s=0)
        # What comes and goes leaves up to 17 MiB behind for a while: it is not to be evicted for that.
        busy = [node.add_pod(f"busy{i}", priority=1000) for i in range(os.cpu_count() or 1)]
        for kind, label in (("", "quiet"), ("compile", "beside_compilers"), ("churn", "with_churn")):
            ours, floor = paired(node, victim, busy, state_dir, kind, n_kills, turns)
            at_floor = summary(f"floor_to_sigkill_{label}", floor.signalled)
            at_ours = summary(f"crossing_to_sigkill_{label}", ours.signalled)
            rows += [
                summary(f"floor_to_seen_{label}", floor.seen),
                at_floor,
                summary(f"crossing_to_decision_{label}", ours.seen),
                at_ours,
                ratio(f"sigkill_to_floor_{label}", at_ours, at_floor),
            ]
        _sleepers_end()
    return rows


def _sleepers_end() -> None:
    for process in _sleepers:
        process.kill()
        process.wait()
    _sleepers.clear()


def _shown(value: float, unit: str) -> str:
    return f"{value:.2f}" if unit == "ratio" else f"{value:.0f}"


@click.command()
@click.option("--crossings", default=1000, show_default=True, type=click.IntRange(1), help="Crossings to observe.")
@click.option(
    "--kills", "n_kills", default=300, show_default=True, type=click.IntRange(1), help="Evictions to measure."
)
@click.option("--no-disturbance", is_flag=True, help="Leave out the runs under scraping and with a full disk.")
@click.option("--floor-only", is_flag=True, help="Only the comparison with the floor.")
@click.option("--turns", default=6, show_default=True, type=click.IntRange(1), help="Turns of monitor and floor.")
@click.option("--pods", default=KILL_PODS, show_default=True, type=click.IntRange(3), help="Pods beside the floor.")
@output_option
def latency(
    crossings: int, n_kills: int, no_disturbance: bool, floor_only: bool, turns: int, pods: int, output: str
) -> None:
    """Measure crossing to decision (4 processes at full speed, observe mode) and to SIGKILL (110 pods, enforce mode).

    Then both again while /metrics is scraped every 50 ms and the disk of the state dir is full. Then, in turns, the
    SIGKILL of the monitor and that of the floor: a bare Python loop on the same ring that knows nothing but whom to
    kill. The rows sigkill_to_floor_* are the ratio of the two.
    """
    mounts.ensure()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="outrace-bench-") as name, small_disk(Path(name)) as state_dir:
        try:
            rows = []
            if not floor_only:
                rows += measure("", state_dir, crossings, n_kills, disturbed=False)
                if not no_disturbance:
                    rows += measure("_disturbed", state_dir, crossings, n_kills, disturbed=True)
            rows += against_floor(state_dir, n_kills, turns, pods)
        finally:
            loader.unload(loader.instance_directory(state_dir))
    if output == "json":
        print_json({"bench": "latency", "results": rows})
    else:
        print_table(
            ("what", "unit", "n", "p50", "p99", "max"),
            [(r["name"], r["unit"], r["n"], *(_shown(r[k], r["unit"]) for k in ("p50", "p99", "max"))) for r in rows],
        )
    click.echo(f"took {time.monotonic() - began:.0f} s", err=True)
