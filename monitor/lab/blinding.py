"""Races in a storm of events, and starts of the daemon in the midst of one (`outrace bench storm`)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from monitor.errors import MonitorError
from monitor.kernel import cgroupfs
from monitor.lab import blinder
from monitor.lab.child import Child
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode, LabPod

NODE_BYTES = 160 * MIB
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
class Races:
    """``signalled``: microseconds from a crossing to its SIGKILL; ``by_pass``: races in which a pass came before the
    record of the crossing, which have no such time; ``lost``: those that the OOM killer won.
    """

    signalled: list[float] = field(default_factory=list)
    by_pass: int = 0
    lost: int = 0

    def add(self, more: Races) -> None:
        self.signalled += more.signalled
        self.by_pass += more.by_pass
        self.lost += more.lost


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


def add_pod(node: LabNode, kind: str) -> LabPod:
    """The pod that makes the storm."""
    pod = node.add_pod(f"storm-{kind}", containers=1)
    if kind == "reclaim":
        cgroupfs.set_limit(pod.containers["c0"], RECLAIM_LIMIT)
    return pod


@contextmanager
def storm(node: LabNode, pod: LabPod, kind: str, rate: Rate) -> Iterator[None]:
    """Four processes that do nothing else."""
    made: list[Child] = []
    try:
        for _ in range(PROCESSES):
            made.append(node.start(pod, Path(blinder.__file__), f"kind={kind}"))
        for child in made:
            child.expect("ready")
        began = time.monotonic()
        yield
        for child in made:
            assert child.process.stdin is not None
            child.process.stdin.close()
        rate.events += sum(int(child.expect("did")) for child in made)
        rate.seconds += time.monotonic() - began
    finally:
        for child in made:
            child.close()
            node.children.remove(child)


def oom_kills(pod: LabPod) -> int:
    """Processes of the pod's container that the OOM killer killed: both versions count in the victim's own cgroup."""
    path, name = pod.containers["c0"], "memory.events"
    if not (path / name).exists():
        name = "memory.oom_control"
    found = dict(line.split() for line in (path / name).read_text().splitlines())
    return int(found["oom_kill"])


def races(daemon: LabDaemon, node: LabNode, victim: LabPod, n: int) -> Races:
    """``n`` hogs that take all there is, one after the other. Raises MonitorError if another pod is evicted for one."""
    out = Races()
    for _ in range(n):
        daemon.poll()
        del daemon.log[:]
        kills = oom_kills(victim)
        base = node.usage()
        hog = node.start_hog(victim, mib=NODE_BYTES // MIB)
        hog.go()
        hog.wait(_PATIENCE_S)
        if oom_kills(victim) > kills:
            out.lost += 1
        else:
            _note(out, daemon, victim)
        hog.close()
        node.children.remove(hog)
        deadline = time.monotonic() + _PATIENCE_S
        while node.usage() > base + LINE and time.monotonic() < deadline:
            time.sleep(0.002)
    return out


def _note(out: Races, daemon: LabDaemon, victim: LabPod) -> None:
    record = daemon.wait_for(lambda r: r.get("msg") == "evicting", _PATIENCE_S)
    if record is None or daemon.wait_for(lambda r: r.get("msg") == "evicted", _PATIENCE_S) is None:
        raise MonitorError(f"an eviction was not reported: {daemon.complaint()}")
    if record["uid"] != victim.uid:
        raise MonitorError(f"the wrong pod was evicted: {record['pod']}")
    if record["crossed_ns"]:
        out.signalled.append((record["signalled_ns"] - record["crossed_ns"]) / 1000)
    else:
        out.by_pass += 1


def starts(node: LabNode, state_dir: Path, n: int) -> list[float]:
    """Milliseconds from the start of the daemon to its being ready, ``n`` times; each is killed, so that the next one
    finds the rings as they are.
    """
    out = []
    for _ in range(n):
        daemon = LabDaemon(node, *options(""), state_dir=state_dir, keep_pins=True)
        try:
            daemon.start()
            record = daemon.wait_for(lambda r: r.get("msg") == "ready", _PATIENCE_S)
            if record is None:
                raise MonitorError(f"the monitor did not say that it is ready: {daemon.complaint()}")
            out.append((record["ready_ns"] - daemon.started_ns) / 1e6)
        finally:
            if daemon.process is not None:
                daemon.process.kill()
                daemon.process.wait()
    return out
