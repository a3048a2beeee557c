"""Evictions of one pod by the monitor, and the times that they took."""

from __future__ import annotations

from dataclasses import dataclass, field

from monitor.errors import MonitorError
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import LabNode, LabPod

_PATIENCE_S = 30.0


@dataclass(slots=True)
class Samples:
    """Microseconds from the crossing until it was seen (decided) and until the last signal."""

    seen: list[float] = field(default_factory=list)
    signalled: list[float] = field(default_factory=list)
    #: Bytes below the line at which a pass decided that came before the record of the crossing was read: no time of
    #: the crossing belongs to it.
    by_pass: list[int] = field(default_factory=list)
    lost: int = 0  # races that the OOM killer won

    def add(self, more: Samples) -> None:
        self.seen += more.seen
        self.signalled += more.signalled
        self.by_pass += more.by_pass
        self.lost += more.lost

    def read(self, daemon: LabDaemon, victim: LabPod, since: int) -> None:
        """The eviction logged from ``since`` on. MonitorError if there is none, or it is somebody else's."""
        record = daemon.message("evicting", _PATIENCE_S, since)
        if record is None or daemon.message("evicted", _PATIENCE_S, since) is None:
            raise MonitorError(f"an eviction was not reported: {daemon.complaint()}")
        if record["uid"] != victim.uid:
            raise MonitorError(f"the wrong pod was evicted: {record['pod']}")
        if record["crossed_ns"]:
            self.seen.append((record["decided_ns"] - record["crossed_ns"]) / 1000)
            self.signalled.append((record["signalled_ns"] - record["crossed_ns"]) / 1000)
        else:
            self.by_pass.append(record["quantity"] - record["available"])


def evictions(daemon: LabDaemon, node: LabNode, victim: LabPod, n: int, mib: int) -> Samples:
    """``n`` processes of ``victim`` that take ``mib`` MiB, one after the other, and are evicted for it."""
    out = Samples()
    for _ in range(n):
        daemon.poll()
        since = len(daemon.log)
        hog = node.start_hog(victim, mib=mib)
        hog.go()
        out.read(daemon, victim, since)
        node.end(hog)
    return out
