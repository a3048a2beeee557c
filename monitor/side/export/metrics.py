"""The Prometheus metrics, read at the moment of the scrape: counters from the shared page, memory from the BPF table.

Every label has a closed set of values that exist from the start at 0, so a rate can be computed from the first event
on; a pod's series exist exactly as long as the pod. Base units everywhere: bytes and seconds.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from monitor import __version__
from monitor.kernel.rungs import NAMES
from monitor.kernel.troubles import CALLS
from monitor.link.counters import HISTOGRAMS, LATENCY_BUCKETS_US, MESSAGES
from monitor.policy.eviction_brake import REASONS
from monitor.policy.releases import era
from monitor.policy.signals import ALLOCATABLE_MEMORY, CONDITION, IN_BYTES, MEMORY, RESOURCE, SIGNALS
from monitor.side.export.budget_metrics import budget_metrics
from monitor.side.export.http import Response
from monitor.side.export.limit_metrics import limit_metrics
from monitor.side.export.race_metrics import race_metrics
from monitor.side.view import View

if TYPE_CHECKING:
    from monitor.actions.oomadj import OomScores
    from monitor.side.export.http import Server
    from monitor.side.worker import Worker

SCOPES = ("memcg", "global")
CONDITIONS = tuple(dict.fromkeys(CONDITION.values()))
#: What passes through the rings -> how the shared counters of the reader call it.
RECORDS = ("cross", "step", "signal", "oom", "kill", "exit", "reclaim")

_HISTOGRAM_HELP = {
    "detection_us": "Time from a threshold crossed in the kernel to the decision.",
    "kill_us": "Time from a threshold crossed in the kernel to SIGKILL sent.",
    "gone_us": "Time from a threshold crossed in the kernel to the pod's cgroup empty.",
    "memory_return_us": "Time from the end of a pod's last process to its memory given back.",
}
_COUNTERS = {
    "passes": "Passes of the eviction policy.",
    "evictions": "Pods evicted.",
    "eviction_failures": "Evictions that left processes behind.",
    "oom_exiting": "OOM victims marked that were exiting anyway: nobody was killed.",
    "memory_kept": "Pods that went and kept some of their memory: page cache, tmpfs, slab.",
    "eviction_waits": "Times the next pod was not evicted yet because memory of the last was coming back.",
    "eviction_waits_cut": "Such waits that were cut short because other pods grew.",
    "step_downs": "Rungs of the hook ladder left while running.",
    "side_starts": "Starts of the side process.",
    "side_hangs": "Side processes that were killed because they hung.",
    "arms": "Times the fine-grained program was attached.",
    "disarms": "Times the fine-grained program was detached.",
    "rests": "Times that steps, kills and reclaim were let be for a while: they had had a fifth of the time.",
    "looks": "Cheap looks at headroom while the fine-grained program was detached.",
    "sweeps": "Complete sweeps of all memory cgroups.",
    "sweeps_given_up": "Sweeps begun again because memory cgroups vanished faster than they could be counted.",
    "loops": "Turns of the hot event loop.",
}
_SWEEP_TIMES = {
    "took": "CPU time of the last complete sweep of all memory cgroups.",
    "max": "CPU time of the longest one.",
    "turn_max": "The most that a sweep took in one turn of the hot event loop.",
}
_TICKS = os.sysconf("SC_CLK_TCK")


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"outrace_{name}", text, value)


def _labelled(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    text: str,
    labels: tuple[str, ...],
    values: Iterable[tuple[tuple[str, ...], float]],
) -> Metric:
    family = kind(f"outrace_{name}", text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


class Metrics(Collector):
    """Collects from a `View` and from the side's own parts."""

    def __init__(self, view: View, scores: OomScores, files: Worker, lines: Worker, server: Server) -> None:
        self.view = view
        self.scores = scores
        self.files = files
        self.lines = lines
        self.server = server
        self._request = era(view.config.policy).request
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        self._lock = threading.Lock()

    def render(self, accept: str) -> Response:
        """The exposition in the format the client asks for (text 0.0.4 or OpenMetrics)."""
        encoder, content_type = choose_encoder(accept)
        with self._lock:  # a storm of scrapes gets one CPU's worth of attention, not sixteen threads
            self.view.refresh()
            return Response(200, content_type, encoder(self.registry))

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not read the world."""
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._daemon()
        yield from self._node()
        yield from self._pods()
        yield from limit_metrics(self.view)
        yield from budget_metrics(self.view)
        yield from self._policy()
        yield from self._records()
        yield from self._latencies()
        yield from self._side()
        yield from self._processes()
        if self.view.races is not None:
            yield from race_metrics(self.view.races)

    def _daemon(self) -> Iterator[Metric]:
        view, stats = self.view, self.view.stats
        yield InfoMetricFamily(
            "outrace_build",
            "Version and mode.",
            {
                "version": __version__,
                "python": platform.python_version(),
                "kernel": platform.release(),
                "mode": view.config.mode,
                "trigger": view.config.trigger,
            },
        )
        yield _gauge("ready", "1 when decisions can be made.", float(not view.not_ready()))
        yield _gauge("sweep_partial", "1 while a sweep has begun and is not complete.", stats.get("sweep_partial"))
        for name, what in _SWEEP_TIMES.items():
            yield _gauge(f"sweep_{name}_seconds", what, stats.get(f"sweep_{name}_ns") / 1e9)
        yield CounterMetricFamily(
            "outrace_memory_cgroups_uncounted",
            "Times there was no room to note the page cache of a memory cgroup, which counts as working set meanwhile.",
            view.counted().get("uncounted", 0),
        )
        uncounted = "Pods that are not watched because the programs in the kernel do not look that deep."
        yield _gauge("pods_uncounted", uncounted, stats.get("pods_uncounted"))
        yield _gauge("armed", "1 while the fine-grained program is attached.", stats.get("armed"))
        yield _gauge(
            "memory_return_bound_seconds",
            "How long memory of a pod that went is waited for before the next pod is evicted.",
            stats.get("return_bound_ns") / 1e9,
        )
        yield _gauge("unseen_bytes_bound", "Bytes that can move unseen right now.", stats.get("bound_bytes"))
        yield _gauge(
            "unseen_seconds_bound",
            "How long until the next look where nothing tells of memory that moves; 0 where the kernel does.",
            stats.get("bound_ns") / 1e9,
        )
        yield _labelled(
            GaugeMetricFamily,
            "hook_rung",
            "1 for the rung of the hook ladder that is in use.",
            ("rung",),
            (((name,), float(name == view.config.rung)) for name in NAMES),
        )
        yield _gauge("pods", "Pods watched.", len(view.pods))
        unknown = sum(not found.pod.spec_known for found in view.pods.values())
        yield _gauge("pods_spec_unknown", "Pods watched whose spec, and so their priority, is not known.", unknown)
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"outrace_{name}", text, stats.get(name))

    def _node(self) -> Iterator[Metric]:
        readings = self.view.domains()

        def family(name: str, text: str, values: Mapping[str, float | None]) -> Metric:
            present = (((domain,), value) for domain, value in values.items() if value is not None)
            return _labelled(GaugeMetricFamily, f"memory_{name}_bytes", text, ("domain",), present)

        yield family("capacity", "Memory of the domain.", {d: r.capacity for d, r in readings.items()})
        yield family("usage", "Memory in use.", {d: r.usage for d, r in readings.items()})
        yield family("inactive_file", "Inactive file pages.", {d: r.inactive_file for d, r in readings.items()})
        yield family("active_file", "Active file pages.", {d: r.active_file for d, r in readings.items()})
        yield family("working_set", "Usage without inactive file.", {d: r.working_set for d, r in readings.items()})
        yield family("available", "Capacity without working set.", {d: r.available for d, r in readings.items()})

    def _pods(self) -> Iterator[Metric]:
        labels = ("namespace", "pod")
        usage = GaugeMetricFamily("outrace_pod_memory_usage_bytes", "Memory in use by the pod.", labels=labels)
        working_set = GaugeMetricFamily("outrace_pod_memory_working_set_bytes", "The pod's working set.", labels=labels)
        request = GaugeMetricFamily("outrace_pod_memory_request_bytes", "The pod's memory request.", labels=labels)
        for key, found in self.view.named_pods().items():
            request.add_metric(key, self._request(found.pod, "memory").value)
            reading = self.view.used(found.cgroup)
            if reading is not None:
                usage.add_metric(key, reading.usage)
                working_set.add_metric(key, reading.working_set)
        yield from (usage, working_set, request)

    def _policy(self) -> Iterator[Metric]:
        view = self.view
        met = {(entry["signal"], entry["kind"]) for entry in view.met}
        domains = view.domains()
        seen = {
            signal: (domains[name].available, domains[name].capacity)
            for signal, name in ((MEMORY, "node"), (ALLOCATABLE_MEMORY, "kubepods"))
            if name in domains
        }
        if view.disks is not None:
            seen |= {signal: (o.available, o.capacity) for signal, o in view.disks.observations.items()}
        yield from self._signals("bytes", seen)
        yield from self._signals("count", seen)
        crossed = GaugeMetricFamily(
            "outrace_threshold_met", "1 while less than the threshold is available.", labels=("signal", "kind")
        )
        for threshold in view.thresholds:
            if threshold.signal in seen:  # what nothing observes here is never compared
                key = (threshold.signal, "hard" if threshold.hard else "soft")
                crossed.add_metric(key, float(key in met))
        yield crossed
        # What has labels is counted by the side and starts at 0 with it; these two are the hot process's own counts.
        chosen, victims = view.stats.get("decisions"), view.stats.get("oom_kills")
        yield CounterMetricFamily("outrace_pods_chosen", "Pods chosen for eviction, since the daemon started.", chosen)
        yield CounterMetricFamily("outrace_oom_victims", "Processes the OOM killer killed, since then.", victims)
        active = view.conditions
        yield _labelled(
            GaugeMetricFamily,
            "node_condition",
            "1 while the node condition holds.",
            ("condition",),
            (((name,), float(name in active)) for name in CONDITIONS),
        )
        braked = (view.state and view.state.braked) or {}
        yield _labelled(
            GaugeMetricFamily,
            "evictions_braked",
            "1 while evictions for memory are held because they would not help.",
            ("reason",),
            (((reason,), float(braked.get("reason") == reason)) for reason in REASONS),
        )
        yield _labelled(
            CounterMetricFamily,
            "eviction_brakes",
            "Times evictions began to be held, since the daemon started.",
            ("reason",),
            (((reason,), float(view.stats.get(f"braked_{reason}"))) for reason in REASONS),
        )
        yield _labelled(
            CounterMetricFamily,
            "decisions",
            "Pods chosen for eviction, since the side started.",
            ("signal", "mode"),
            (((signal, view.config.mode), view.decisions[signal]) for signal in (*SIGNALS, "local-storage")),
        )
        yield _labelled(
            CounterMetricFamily,
            "oom_kills",
            "Processes killed by the kernel's OOM killer, at a cgroup's limit or because the machine ran out, since "
            "the side started.",
            ("scope",),
            (((scope,), view.oom_kills[scope]) for scope in SCOPES),
        )
        yield CounterMetricFamily(
            "outrace_given_back_bytes",
            "What evicted pods left and the kernel took back when asked (page cache mostly), since the side started.",
            view.given_back_bytes,
        )
        yield CounterMetricFamily(
            "outrace_oom_kills_elsewhere",
            "Processes killed by the OOM killer outside the cgroup that is the node, since the side started.",
            view.kills_outside_node,
        )

    def _signals(self, unit: str, seen: Mapping[str, tuple[int | None, int | None]]) -> Iterator[Metric]:
        """What each signal reads and is compared with: in ``bytes``, or a ``count`` of inodes or process ids."""
        available = GaugeMetricFamily(f"outrace_signal_available_{unit}", "What the signal reads.", labels=("signal",))
        capacity = GaugeMetricFamily(f"outrace_signal_capacity_{unit}", "... out of this.", labels=("signal",))
        thresholds = GaugeMetricFamily(
            f"outrace_threshold_{unit}", "The threshold what is available is compared with.", labels=("signal", "kind")
        )
        mine = {s: numbers for s, numbers in seen.items() if (RESOURCE[s] in IN_BYTES) == (unit == "bytes")}
        for signal, (free, total) in mine.items():
            if free is not None and total is not None:
                available.add_metric((signal,), free)
                capacity.add_metric((signal,), total)
        for threshold in self.view.thresholds:
            total = mine.get(threshold.signal, (None, None))[1]
            if total is not None and threshold.operator:
                kind = "hard" if threshold.hard else "soft"
                thresholds.add_metric((threshold.signal, kind), threshold.quantity(total))
        yield from (available, capacity, thresholds)

    def _records(self) -> Iterator[Metric]:
        stats = self.view.stats
        kernel = self.view.counted()
        sides = [
            ((kind, "kernel"), float(max(0, kernel.get(f"emitted_{kind}", 0) - stats.get(f"base_{kind}"))))
            for kind in RECORDS
        ]
        sides += [((kind, "reader"), float(stats.get(f"records_{kind}"))) for kind in RECORDS]
        yield _labelled(
            CounterMetricFamily,
            "records",
            "Records written by the BPF programs, and read by the hot process.",
            ("kind", "side"),
            sides,
        )
        lost = {f"ring_{kind}": 0 for kind in (*RECORDS, "proc")} | self.view.lost()
        lost["log"] = self.lines.dropped
        lost["files"] = self.files.dropped
        lost["processes"] = self.scores.skipped
        yield _labelled(
            CounterMetricFamily,
            "events_lost",
            "What was dropped, and where: a full ring, channel or queue.",
            ("where",),
            (((where,), float(n)) for where, n in lost.items()),
        )

        dropped = (((name,), float(stats.get(f"dropped_{name}"))) for name in MESSAGES)
        yield _labelled(
            CounterMetricFamily,
            "channel_dropped",
            "Messages for the side process that were dropped, by what they tell.",
            ("message",),
            dropped,
        )

        failed = (((call,), float(stats.get(f"errors_{call}"))) for call in CALLS)
        yield _labelled(
            CounterMetricFamily,
            "errors",
            "System calls of the hot process that failed, by what for.",
            ("call",),
            failed,
        )

    def _latencies(self) -> Iterator[Metric]:
        for name in HISTOGRAMS:
            counts, total = self.view.stats.histogram(name)
            bounds = [*(str(bound / 1e6) for bound in LATENCY_BUCKETS_US), "+Inf"]
            yield HistogramMetricFamily(
                f"outrace_{name.removesuffix('_us')}_seconds",
                _HISTOGRAM_HELP[name],
                buckets=list(zip(bounds, map(float, accumulate(counts)), strict=True)),
                sum_value=total / 1e6,
            )

    def _side(self) -> Iterator[Metric]:
        scores = self.scores
        yield CounterMetricFamily(
            "outrace_oom_score_adj_mismatches", "Processes seen with another oom_score_adj.", scores.mismatches
        )
        yield CounterMetricFamily("outrace_oom_score_adj_written", "Values of oom_score_adj written.", scores.written)
        yield CounterMetricFamily("outrace_oom_score_adj_denied", "Writes the kernel refused (EACCES).", scores.denied)
        yield CounterMetricFamily(
            "outrace_state_write_failures", "Failed writes to the state dir.", self.files.failures
        )
        yield _gauge(
            "state_write_failing", "1 while the last write to the state dir failed.", self.files.failing is not None
        )
        yield _gauge("state_writes_waiting", "Writes waiting for the state dir.", self.files.waiting)
        yield CounterMetricFamily("outrace_http_refused", "Requests refused: too many wait.", self.server.refused)
        yield CounterMetricFamily("outrace_http_cut", "Connections closed: slow, or to make room.", self.server.cut)
        yield _gauge("http_connections", "HTTP connections that are open.", self.server.connections)

    def _processes(self) -> Iterator[Metric]:
        rss = GaugeMetricFamily("outrace_process_resident_memory_bytes", "Resident memory.", labels=("process",))
        cpu = CounterMetricFamily("outrace_process_cpu_seconds", "CPU time used.", labels=("process",))
        for name, pid in (("hot", self.view.hot_pid), ("side", self.view.side_pid)):
            usage = process_usage(pid)
            if usage is not None:
                rss.add_metric((name,), usage[0])
                cpu.add_metric((name,), usage[1])
        yield from (rss, cpu)


def process_usage(pid: int) -> tuple[int, float] | None:
    """(resident bytes, CPU seconds) of a process; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The second field is the command in parentheses and may hold anything: count from the last ")".
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[21]) * os.sysconf("SC_PAGE_SIZE"), (int(fields[11]) + int(fields[12])) / _TICKS
