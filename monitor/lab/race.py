"""One race on the real kernel: hogs in a pod of a lab node against its limit, with or without a monitor.

The winner is what killed: the OOM killer (the kernel's own counter moved) or the watcher (the hogs are dead and the
counter did not move).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from monitor.errors import MonitorError
from monitor.lab.child import Child, Hog, until
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode, LabPod

#: A race at full speed is over in a second; one that a slow poller loses by sleeping too.
RACE_TIMEOUT_S = 180.0
_OOM_KILL = "the kernel's OOM killer killed a process"
_OF_VICTIM = ("victim_pid", "victim_comm", "oom_score_adj", "invoker_pid", "pod_name")


@dataclass(frozen=True, slots=True)
class RaceResult:
    """`detection_us`: crossing to decision.

    `kill_us`: crossing to SIGKILL sent. `headroom_bytes`: between the highest usage and the limit, what was left when
    it was over. Times are None where there was no decision or no record of it.
    """

    winner: str
    detection_us: float | None
    kill_us: float | None
    evicted: str | None
    oom_victims: list[dict[str, Any]] = field(default_factory=list)
    headroom_bytes: int = 0
    trigger: str | None = None


class Monitor:
    """The daemon under test, through its log. `finish`: fields of RaceResult that it knows."""

    def __init__(self, daemon: LabDaemon) -> None:
        self.daemon = daemon
        self._since = 0

    def begin(self, hogs: list[Hog]) -> None:
        del hogs
        self._since = len(self.daemon.log)

    def finish(self, evicted: bool) -> dict[str, Any]:
        if evicted:
            if self.daemon.message("evicted", since=self._since) is None:
                raise MonitorError(f"the hogs are gone but the monitor reports no eviction: {self.daemon.complaint()}")
        else:
            # The kernel won: the monitor's own record of that arrives through its log a moment later.
            self.daemon.message(_OOM_KILL, 2.0, self._since)
        records = self.daemon.log[self._since :]
        out: dict[str, Any] = {
            "oom_victims": [{key: r.get(key) for key in _OF_VICTIM} for r in records if r.get("msg") == _OOM_KILL]
        }
        decision = next((r for r in records if r.get("msg") == "evicting"), None)
        if decision is not None:
            out["evicted"] = decision["pod"]
            out["trigger"] = decision["trigger"]
            if decision.get("crossed_ns"):
                out["detection_us"] = (decision["decided_ns"] - decision["crossed_ns"]) / 1000
                out["kill_us"] = (decision["signalled_ns"] - decision["crossed_ns"]) / 1000
        return out


class Poller:
    """A watcher that polls, in a process of its own."""

    def __init__(self, node: LabNode, margin: int, interval_us: int) -> None:
        self.node, self.margin, self.interval_us = node, margin, interval_us
        self._child: Child | None = None
        self.cpu = 0.0  # of one, in the last race

    def begin(self, hogs: list[Hog]) -> None:
        self._child = Child(
            "monitor.lab.workers:poller",
            cgroup=self.node.cgroup,
            margin=self.margin,
            interval_us=self.interval_us,
            phase_us=random.randrange(self.interval_us),  # where in its interval the race finds it
            kill=",".join(str(hog.pid) for hog in hogs),
        )
        self._child.expect("ready")
        self._child.send("go")

    def finish(self, evicted: bool) -> dict[str, Any]:
        del evicted
        assert self._child is not None
        self._child.send("stop")
        cpu_s, wall_s = self._child.expect("used").split()
        self._child.close()
        self.cpu = float(cpu_s) / float(wall_s)
        return {}


def run_race(
    node: LabNode, pod: LabPod, watcher: Monitor | Poller | None, hogs: int = 1, thp: bool = False
) -> RaceResult:
    """Start ``hogs`` processes in ``pod`` that want twice the node between them, and see what kills them. ``watcher``
    None: the race is left to the kernel.

    Raises MonitorError when the race does not end.
    """
    each = 2 * node.memory_bytes // MIB // hogs + 64
    running = [node.start_hog(pod, mib=each, pages="thp" if thp else "4k") for _ in range(hogs)]
    try:
        if watcher is not None:
            watcher.begin(running)
        node.reset_peak()
        before = node.oom_kills()
        for hog in running:
            hog.go()
        until(
            lambda: node.oom_kills() > before or all(hog.process.poll() is not None for hog in running),
            f"the end of the race on {node.cgroup.name}",
            RACE_TIMEOUT_S,
        )
        peak = node.peak()
        killed = node.oom_kills() - before
    finally:
        for hog in running:
            node.end(hog)
    known = {} if watcher is None else watcher.finish(evicted=not killed)
    if killed and not known.get("oom_victims"):
        known["oom_victims"] = [{"victim_pid": hog.pid} for hog in running if hog.process.returncode == -9][:killed]
    fields: dict[str, Any] = {"detection_us": None, "kill_us": None, "evicted": None, **known}
    return RaceResult(winner="oom" if killed else "eviction", headroom_bytes=max(0, node.memory_bytes - peak), **fields)


def populate(node: LabNode) -> LabPod:
    """Three pods, one of each QoS class, with a little memory in the first two; returns the one the hogs go into."""
    guaranteed = node.add_pod("database", "Guaranteed", request=64 * MIB, namespace="demo")
    burstable = node.add_pod("web", "Burstable", request=32 * MIB, namespace="demo")
    victim = node.add_pod("batch", "BestEffort", namespace="demo")
    node.fill(guaranteed, 32)
    node.fill(burstable, 16)
    return victim
