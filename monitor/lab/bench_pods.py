"""`outrace bench pods`: a full node whose pods come and go while one of them crosses the threshold again and again.

110 pods in 330 cgroups; every second one goes with its cgroups, one comes under a new name, one changes in place. What
is looked for is what only time shows: memory that grows, crossings that are missed, records that the kernel wrote and
nobody read, pods that are still in /metrics after they have gone.
"""

from __future__ import annotations

import json
import statistics
import time
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field

from monitor.cli.output import print_table
from monitor.errors import EXIT_FINDINGS, EXIT_OK, MonitorError
from monitor.lab.bench import (
    Found,
    Row,
    add_sleeping_pod,
    bench,
    fill_pods,
    number,
    reap_sleepers,
    state_dir,
    summary,
)
from monitor.lab.bench_footprint import memory, side_of
from monitor.lab.child import Hog
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode, LabPod

NODE_BYTES = 512 * MIB
HOG_MIB = 64
#: The threshold lies in the middle of what the hog takes: 32 MiB of drift in the other pods do not matter.
HALF = HOG_MIB * MIB // 2
RECORDS = ("cross", "step", "signal", "oom", "kill", "exit")
#: Allocators and caches find their size in this time; growth is measured from then on.
WARM_UP_S = 20.0
#: Growth beyond this over the run is a leak.
GROWTH_TARGET = 2 * MIB
CHURN_S = 1.0
#: How long numbers that lag (a manifest just removed, a record under way) get to become equal at the end.
SETTLE_S = 10.0


@dataclass
class Crossings:
    """What the hog did, and which decisions the daemon reported; times in CLOCK_MONOTONIC nanoseconds."""

    made: list[tuple[int, int]] = field(default_factory=list)  # growth began, growth was complete
    decided: list[int] = field(default_factory=list)  # crossed_ns of each decision

    def grow(self, hog: Hog) -> None:
        """One crossing: take the memory, give it back."""
        began = time.monotonic_ns()
        hog.go()
        self.made.append((began, int(hog.expect("grown"))))
        hog.free()

    def read(self, daemon: LabDaemon) -> None:
        """Take in the decisions logged since the last call."""
        daemon.poll()
        self.decided += [r["crossed_ns"] for r in daemon.log if r.get("msg") == "would evict" and r["crossed_ns"]]
        daemon.log.clear()

    def row(self) -> Row:
        """``missed``: growths without a decision; ``strange``: decisions on a crossing that the bench did not make."""
        times = sorted(self.decided)
        seen = matched = 0
        for began, ended in self.made:
            inside = bisect_left(times, ended + 1) - bisect_left(times, began)
            seen += inside > 0
            matched += inside
        return {
            "name": "crossings",
            "made": len(self.made),
            "seen": seen,
            "missed": len(self.made) - seen,
            "strange": len(times) - matched,
        }


class Churn:
    """Pods that come, go and change; the hog's pod is not among them."""

    def __init__(self, node: LabNode, pods: list[LabPod]) -> None:
        self.node = node
        self.pods = deque(pods)
        self.turns = 0

    def turn(self) -> None:
        """One pod goes with its cgroups, one comes, one changes in place."""
        self.turns += 1
        self.node.remove_pod(self.pods.popleft())
        self.pods.append(add_sleeping_pod(self.node, f"new{self.turns}", self.turns % 2 == 0))
        self._change(self.pods[len(self.pods) // 2])
        reap_sleepers()

    def _change(self, pod: LabPod) -> None:
        """Give it another priority: below all others, so that the first victim keeps changing too."""
        manifest = json.loads(pod.manifest.read_text())
        manifest["spec"]["priority"] = -self.turns
        unfinished = pod.manifest.with_name(f".{pod.manifest.name}.new")
        unfinished.write_text(json.dumps(manifest))
        unfinished.rename(pod.manifest)


def growth(name: str, samples: list[tuple[float, int]], warm_up_s: float) -> Row:
    """How far the last quarter of (second, bytes) samples lies above the median of the first one after the warm-up."""
    values = [value for at, value in samples if at >= warm_up_s] or [value for _, value in samples]
    quarter = max(1, len(values) // 4)
    base = statistics.median(values[:quarter])
    row = summary(name, [value - base for value in values[-quarter:]], "bytes")
    return {**row, "n": len(values), "target": GROWTH_TARGET}


def run(node: LabNode, daemon: LabDaemon, hog: Hog, churn: Churn, duration_s: float, period_s: float) -> list[Row]:
    """Churn and cross for ``duration_s``; the rows."""
    pids = {"hot": daemon.pid, "side": side_of(daemon)}
    rss: dict[str, list[tuple[float, int]]] = {name: [] for name in pids}
    crossings = Crossings()
    daemon.metrics()  # the first scrape loads its library: not a leak
    began = time.monotonic()
    next_churn = next_growth = began
    while (now := time.monotonic()) < began + duration_s:
        if now >= next_churn:
            next_churn += CHURN_S
            churn.turn()
            for name, pid in pids.items():
                rss[name].append((now - began, memory(pid)[0]))
            crossings.read(daemon)
        if now >= next_growth:
            next_growth = max(now, next_growth + period_s)
            crossings.grow(hog)
        time.sleep(max(0.0, min(next_churn, next_growth, began + duration_s) - time.monotonic()))
    if side_of(daemon) != pids["side"]:
        raise MonitorError(f"the side process ended during the run: {daemon.complaint()}")
    rows = _settled(node, daemon)
    crossings.read(daemon)
    warm_up = min(WARM_UP_S, duration_s / 4)
    rows[:0] = [
        *(growth(f"{name}_rss_growth", samples, warm_up) for name, samples in rss.items()),
        *(summary(f"{name}_rss", [float(value) for _, value in samples], "bytes") for name, samples in rss.items()),
        crossings.row(),
    ]
    return rows


def _settled(node: LabNode, daemon: LabDaemon) -> list[Row]:
    """Both sides of the rings, the pods and what was lost, once they agree or after ``SETTLE_S``."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        rows = compare(node, daemon.metrics())
        if not any(map(differs, rows)) or time.monotonic() > deadline:
            return rows
        time.sleep(0.1)


def compare(node: LabNode, metrics: dict[str, float]) -> list[Row]:
    """Rows ``records_KIND``, ``lost`` and ``pods`` from one scrape."""
    rows: list[Row] = []
    for kind in RECORDS:
        sides = {s: int(metrics[f'outrace_records_total{{kind="{kind}",side="{s}"}}']) for s in ("kernel", "reader")}
        rows.append({"name": f"records_{kind}", **sides})
    lost = sum(value for key, value in metrics.items() if key.startswith("outrace_events_lost_total"))
    rows.append({"name": "lost", "events": int(lost)})
    wanted = {f'outrace_pod_memory_usage_bytes{{namespace="{p.namespace}",pod="{p.name}"}}' for p in node.pods.values()}
    series = {key for key in metrics if key.startswith("outrace_pod_memory_usage_bytes{")}
    rows.append(
        {
            "name": "pods",
            "manifests": len(list(node.manifests.glob("*.json"))),
            "gauge": int(metrics["outrace_pods"]),
            "series": len(series),
            "stale": len(series - wanted),
            "absent": len(wanted - series),
        }
    )
    return rows


def differs(row: Row) -> bool:
    """Whether the row is a finding: something missed, lost, unread or left behind, or memory that grew."""
    if row["name"].endswith("_rss_growth"):
        return bool(row["p50"] > row["target"])
    if row["name"].startswith("records_"):
        return bool(row["kernel"] != row["reader"])
    if row["name"] == "pods":
        return bool(row["stale"] or row["absent"] or not row["manifests"] == row["gauge"] == row["series"])
    return bool(row.get("missed") or row.get("strange") or row.get("events"))


@bench()
@number("--duration", 300.0, "Seconds of churn.")
@number("--pods", 110, "Pods, 3 cgroups each.", 4)
@number("--period", 0.5, "Seconds per crossing.", 0.05)
def pods(duration: float, pods: int, period: float) -> Found:
    """Run a full node whose manifests churn once a second while one pod crosses the threshold: memory growth of both
    processes, crossings made and seen, records written by the kernel and read, pods in /metrics.

    Exit code 4 if a crossing was missed, a record was lost, a pod was left behind, or memory grew by more than 2 MiB.
    """
    with LabNode("pods", NODE_BYTES) as node, state_dir(node) as directory:
        churn = Churn(node, fill_pods(node, pods - 1))
        hog = node.start_hog(node.add_pod("hog", "BestEffort", containers=2), mib=HOG_MIB)
        threshold = f"memory.available<{NODE_BYTES - node.usage() - HALF}"
        with LabDaemon(node, "--eviction-hard", threshold, state_dir=directory) as daemon:
            rows = run(node, daemon, hog, churn, duration, period)
    reap_sleepers()
    return Found(rows, code=EXIT_FINDINGS if any(map(differs, rows)) else EXIT_OK, show=lambda: _show(rows))


def _show(rows: list[Row]) -> None:
    print_table(
        ("what", "verdict", "figures"), [(r["name"], "DIFFERS" if differs(r) else "ok", _figures(r)) for r in rows]
    )


def _figures(row: Row) -> str:
    return "  ".join(f"{k}={v:.0f}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items() if k != "name")
