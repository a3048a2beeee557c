"""`outrace bench stall`: files of a pod no longer fit beside another one. Is the other one named, and evicted in time?

And loads that wait for memory or a disk without another pod's fault, of which no pod may be evicted.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import click

from monitor.errors import EXIT_FAILURE, EXIT_OK, CannotError, MonitorError
from monitor.kernel import meminfo, pressure
from monitor.lab.bench import Found, Listed, Row, bench, number, progress
from monitor.lab.child import PATIENCE_S, Child, Janitor
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode, LabPod
from monitor.lab.race import spread

NODE_BYTES = 128 * MIB
#: Of the load `starting`: the interpreters of its pods have 5 to 9 MiB each, which do not fit into the other for ever.
LARGE_NODE_BYTES = 192 * MIB
#: Of the reader; of a pod that grows beside it, which then fits or not; of the one that is at its own limit.
FILE_MIB, HOG_MIB, RATE_MIB, SMALL_FILE_MIB, SMALL_HOG_MIB, OWN_LIMIT = 80, 90, 45, 40, 40, 48 * MIB
#: A program reads so much once, or writes it; so many pods start together, each with files of so much; so much is
#: swapped out and never read, by a pod at its own limit: one without displaced the reader's files first, in 10 runs of
#: 10, and was evicted in 8.
STREAM_MIB, STARTING, START_MIB, SWAPPED_MIB = 1000, 20, 8, 160
#: Sizes are known every 5 s.
_SAMPLE_S, _BEFORE_S, _QUIET_S, _MOST_S = 0.25, 6.0, 30.0, 45.0
#: Load -> whether the pod that grows is to be evicted.
LOADS = dict.fromkeys(("neighbour", "fits", "own-limit", "backup", "writer", "starting", "swap"), False)
LOADS["neighbour"] = True
SHARE = 50
RULE = "stall: pod>{share}%,grace=5s,evict\n"
RELAXING = "stall: pod>{share}%,grace=5s,evict,relax\n"


class Seen(NamedTuple):
    """One run. Seconds, from the loss of half of the speed but ``back_s``, which is from the eviction; None: it did not
    happen. ``cold_s``: its baseline, until half of the speed where all pages are read from disk with no other pod
    beside. ``slowest``: of the speed before. ``evicted``: names.
    """

    named_s: float | None
    evicted_s: float | None
    back_s: float | None
    cold_s: float | None
    slowest: float
    evicted: tuple[str, ...]


def count(node: LabNode, child: Child, pod: LabPod) -> None:
    """On v1 a v2 hierarchy beside it has the pressure files, in cgroups of the same paths (systemd's hybrid)."""
    if node.hierarchy.version == 1 and (v2 := pressure.unified(node.hierarchy)) is not None:
        beside = v2 / pod.containers["c0"].relative_to(node.hierarchy.root)
        node.also_remove(v2 / node.cgroup.name)
        beside.mkdir(parents=True, exist_ok=True)
        (beside / "cgroup.procs").write_text(str(child.pid))


def run(load: str, node: LabNode, daemon: LabDaemon, directory: str) -> Seen:
    """One run of a load, with the pods' files in a directory."""

    def begin(pod: LabPod, kind: str, mib: int) -> Child:
        path = f"{directory}/{pod.name}-{mib}"
        child = node.begin(pod, "monitor.lab.workers:files", kind=kind, path=path, mib=mib)
        count(node, child, pod)
        return child

    own = node.add_pod("reader", limit=OWN_LIMIT if load == "own-limit" else 0)
    other = node.add_pod("other", limit=OWN_LIMIT if load == "swap" else 0)
    starting = [node.add_pod(f"starting-{number}") for number in range(STARTING if load == "starting" else 0)]
    daemon.wait_for_pods(own, other, *starting)
    # What waits by its own fault has all of its files from the beginning.
    reader = begin(own, "map", FILE_MIB if load in ("neighbour", "own-limit") else SMALL_FILE_MIB)
    reader.expect("ready")
    sizes = {"neighbour": HOG_MIB, "swap": SWAPPED_MIB}
    hog = node.start_hog(other, mib=sizes.get(load, SMALL_HOG_MIB), rate=RATE_MIB)
    count(node, hog, other)
    before = statistics.median(speed(reader) for _ in range(int(_BEFORE_S / _SAMPLE_S)))
    since = len(daemon.log)
    try:
        if load in ("neighbour", "fits", "swap"):
            hog.go()
        elif load in ("backup", "writer"):
            begin(other, "stream" if load == "backup" else "write", STREAM_MIB).expect("ready")
        for child in [begin(pod, "once", START_MIB) for pod in starting]:
            child.expect("ready")
    except MonitorError:
        # The log of an eviction arrives after its signal.
        if daemon.wait_for(lambda record: record.get("msg") == "evicting", PATIENCE_S / 20, since) is None:
            raise
        evicted = evictions(daemon, since)
        return Seen(None, None, None, None, 0.0, evicted)
    seen = watch(daemon, reader, before, since, LOADS[load])
    # Last: files that were read before the stall would be a cause of it.
    return seen._replace(cold_s=cold(reader, before)) if LOADS[load] else seen


def cold(reader: Child, before: float) -> float:
    """Seconds in which it reads its files again, to half of its speed."""
    reader.send("drop")
    reader.expect("counted")
    began = time.monotonic()
    while speed(reader) <= before / 2 and time.monotonic() - began < _MOST_S:
        pass
    return time.monotonic() - began


def watch(daemon: LabDaemon, reader: Child, before: float, since: int, evicts: bool) -> Seen:
    """Until the reader is as fast as half of before again; where no pod is to be evicted, for a fixed time."""
    began = time.monotonic()
    lost = named = evicted = back = None
    slowest = before
    while (now := time.monotonic()) - began < (_MOST_S if evicts else _QUIET_S):
        pages = speed(reader)
        slowest = min(slowest, pages)
        if lost is None and pages < before / 2:
            lost = now
        log = [(r.get("msg"), r.get("pod"), r.get("cause")) for r in daemon.log[since:]]
        is_named = ("a pod waits for memory that it had", "lab/reader", "lab/other") in log
        named = named or (now if is_named else None)
        evicted = evicted or (now if any(msg == "evicting" for msg, *_ in log) else None)
        if evicts and evicted is not None and pages > before / 2:
            back = now
            break
    times = _from(lost, named), _from(lost, evicted), _from(evicted, back)
    return Seen(*times, None, slowest / before, evictions(daemon, since))


def evictions(daemon: LabDaemon, since: int) -> tuple[str, ...]:
    return tuple(str(record["pod"]) for record in daemon.log[since:] if record.get("msg") == "evicting")


def speed(reader: Child, sample_s: float = _SAMPLE_S) -> float:
    """Pages a second that the reader touches within so many seconds, 0 where it is dead."""

    def touched() -> int:
        reader.send("count")
        return int(reader.answer().partition(" ")[2] or 0)

    touched()
    began = time.monotonic()
    time.sleep(sample_s)
    return touched() / (time.monotonic() - began)


def _from(first: float | None, then: float | None) -> float | None:
    return None if first is None or then is None else max(0.0, then - first)


def play(load: str, share: int, directory: str) -> Seen:
    """One run, on a node and with a daemon of its own, which has evicted no pod before."""
    with LabNode("stall", LARGE_NODE_BYTES if load == "starting" else NODE_BYTES, swaps=load == "swap") as node:
        own = Path(directory) / "own.yaml"
        own.write_text(RULE.format(share=share))
        # No threshold is met by page cache: what is evicted is evicted for a stall.
        options = ("--enforce", "--config", str(own), "--eviction-hard", "memory.reclaimable<1Mi")
        with LabDaemon(node, *options) as daemon:
            return run(load, node, daemon, directory)


def row(load: str, runs: list[Seen], wrong: int) -> Row:
    """Medians and maxima in seconds."""
    made: Row = {"name": load, "unit": "s", "runs": len(runs), "wrong": wrong}
    for key in ("named_s", "evicted_s", "back_s", "cold_s"):
        _, p50, most = spread(runs, key)
        made |= {} if most is None else {key: p50, f"{key}_max": most}
    made["evicted"] = sum(bool(one.evicted) for one in runs)
    made["slowest"] = min(one.slowest for one in runs)
    return made


@bench("name runs evicted wrong named_s named_s_max evicted_s evicted_s_max back_s back_s_max cold_s slowest")
@number("--runs", 10, "Runs of each load.")
@click.option("--loads", type=Listed(click.Choice(list(LOADS))), help="Only these; swap only where there is some.")
@number("--share", SHARE, "Percent of the time for which a stalled pod waits; emulated CPUs wait for less.", most=99)
def stall(runs: int, loads: tuple[str, ...] | None, share: int) -> Found:
    """Let files of a pod be displaced by another pod that grows; and loads that wait by no other pod's fault.

    Seconds from the loss of half of the reader's speed: until the log names the other pod, until it is evicted; and
    from there until the reader has half of its speed again, and cold: how long it takes to that with all of its files
    on the disk and no other pod beside. wrong: evictions of a pod that is not at fault.
    """
    if pressure.waited(pressure.PROC) is None:
        raise CannotError("this kernel has no PSI", "boot with psi=1")
    has_swap = meminfo.swap_in_use() is not None
    if not has_swap and "swap" in (loads or ()):
        raise CannotError("this machine has no swap", "swapon some, or leave swap out of --loads")
    rows = []
    # On a disk: /tmp may be a tmpfs, whose pages are not file pages. For all runs: large files are written once.
    directory, janitor = tempfile.mkdtemp(prefix="outrace-bench-", dir="/var/tmp"), Janitor()
    janitor.send(directory)
    for load in loads or [load for load in LOADS if load != "swap" or has_swap]:
        seen, right = [], ("lab/other",) if LOADS[load] else ()
        for _ in range(runs):
            seen.append(play(load, share, directory))
            progress(f"{load}: {len(seen)} of {runs}: {seen[-1]}")
        rows.append(row(load, seen, sum(one.evicted not in ((), right) for one in seen)))
    janitor.finish()
    return Found(rows, code=EXIT_FAILURE if any(one["wrong"] for one in rows) else EXIT_OK)
