"""The Prometheus metrics, read at the moment of the scrape: counters from the shared page, memory from the BPF table.

Every label but a pod's name has a closed set of values that exist from the start at 0, so a rate can be computed from
the first event on; a pod's series exist exactly as long as the pod. Base units everywhere: bytes and seconds.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from monitor import __version__
from monitor.actions.reclaim import RESULTS
from monitor.kernel import limits
from monitor.kernel.cgroupfs import Reading
from monitor.kernel.charging import NAMES
from monitor.kernel.procfs import stat_fields
from monitor.kernel.troubles import CALLS
from monitor.link.counters import HISTOGRAMS, LATENCY_BUCKETS_US, MESSAGES
from monitor.policy.layout import DELETE_IMAGES
from monitor.policy.releases import era
from monitor.policy.signals import ALL_SIGNALS, CONDITION, IN_BYTES, OF_DOMAIN, RESOURCE, used
from monitor.policy.stall import KUBEPODS, MACHINE
from monitor.policy.suspension import REASONS
from monitor.race.events import NODE
from monitor.race.reported import HELD_FOR, HOLD_ENDS
from monitor.side.disk_watch import DiskWatch
from monitor.side.export.families import counter, gauge, histogram
from monitor.side.export.http import Response
from monitor.side.export.log import Log, LogBudget
from monitor.side.health import Health
from monitor.side.holds import Holds
from monitor.side.incidents import TooLargeError
from monitor.side.node_state import Figures, NodeState

if TYPE_CHECKING:
    from monitor.pods.model import FoundPod
    from monitor.side.cluster.cluster import Cluster
    from monitor.side.export.http import Server
    from monitor.side.process_watch import ProcessWatch
    from monitor.side.races import Races

SCOPES = ("memcg", "global")
CONDITIONS = tuple(dict.fromkeys(CONDITION.values()))
#: What passes through the rings -> how the shared counters of the reader call it.
RECORDS = ("cross", "step", "signal", "oom", "kill", "exit", "reclaim")

_HISTOGRAM_HELP = {
    "detection_us": "Time from a threshold crossed in the kernel to the decision.",
    "kill_us": "Time from a threshold crossed in the kernel to SIGKILL sent.",
    "hold_us": "Time from a threshold crossed in the kernel to a pod held.",
    "gone_us": "Time from a threshold crossed in the kernel to the pod's cgroup empty.",
    "memory_return_us": "Time from the end of a pod's last process to its memory given back.",
}
_COUNTERS = {
    "passes": "Passes of the eviction policy.",
    "evictions": "Pods evicted.",
    "eviction_failures": "Evictions after which processes were left.",
    "holds": "Pods held at a crossing, or in the pass after it.",
    "oom_exiting": "OOM victims marked that were exiting already: the kernel killed nothing.",
    "memory_kept": "Ended pods whose cgroup kept some memory: page cache, tmpfs, slab.",
    "eviction_waits": "Times the next eviction waited for a pending release of memory.",
    "side_starts": "Starts of the helper process.",
    "side_hangs": "Helper processes that were killed because they hung.",
    "arms": "Times the fine-grained program was attached.",
    "disarms": "Times the fine-grained program was detached.",
    "rests": "Times that the hot process paused reading steps, kills and reclaim, after a fifth of its time.",
    "looks": "Samples of the headroom while the fine-grained program was detached.",
    "sweeps": "Complete sweeps of all memory cgroups.",
    "sweeps_given_up": "Sweeps that began again because memory cgroups ended faster than they could be counted.",
    "loops": "Turns of the hot event loop.",
}
#: Gauges of one shared counter each: name -> counter, help. Nanoseconds become seconds.
_GAUGES = {
    "sweep_partial": ("sweep_partial", "1 while a sweep has begun and is not complete."),
    "sweep_took_seconds": ("sweep_took_ns", "CPU time of the last complete sweep of all memory cgroups."),
    "sweep_max_seconds": ("sweep_max_ns", "CPU time of the longest sweep of all memory cgroups."),
    "sweep_turn_max_seconds": ("sweep_turn_max_ns", "Longest part of a sweep in one turn of the hot event loop."),
    "pods_uncounted": ("pods_uncounted", "Pods not watched: their cgroup is too deep for the programs in the kernel."),
    "armed": ("armed", "1 while the fine-grained program is attached."),
    "memory_return_bound_seconds": ("return_bound_ns", "Longest wait for an ended pod's memory before an eviction."),
}
#: Figures of a domain: name -> help. (`Reading` has them by these names.)
_DOMAIN = {
    "capacity": "Memory of the domain.",
    "usage": "Memory in use.",
    "inactive_file": "Inactive file pages.",
    "active_file": "Active file pages.",
    "working_set": "Usage without inactive file.",
    "available": "Capacity without working set.",
}


@dataclass(eq=False)
class Metrics(Collector):
    """Collects from the helper's parts. ``late()``: those that are None at first, or for ever."""

    health: Health
    holds: Holds
    log: Log
    processes: ProcessWatch
    server: Server
    late: Callable[[], tuple[Races | None, Cluster | None]]

    def __post_init__(self) -> None:
        self.node, self.figures = self.health.node, self.health.figures
        self.registry = CollectorRegistry(auto_describe=False)  # registering must not read the world
        self.registry.register(self)

    def render(self, accept: str) -> Response:
        """The exposition in the format the client asks for (text 0.0.4 or OpenMetrics)."""
        encoder, content_type = choose_encoder(accept)
        return Response(200, content_type, encoder(self.registry))

    def collect(self) -> Iterator[Metric]:
        domains = self.figures.domains()
        yield from self._daemon()
        for name, text in _DOMAIN.items():
            values = {domain: getattr(reading, name) for domain, reading in domains.items()}
            yield gauge(f"memory_{name}_bytes", text, values, "domain")
        yield from pod_metrics(self.node, self.figures, self.log.budget)
        yield from hold_metrics(self.node, self.holds)
        yield from self._signals(domains)
        yield from self._policy()
        yield from self._records()
        yield from self._side()
        races, cluster = self.late()
        if races is not None:
            yield from race_metrics(races, self.node.named_pods())
        if cluster is not None:
            yield from cluster_metrics(cluster)

    def _daemon(self) -> Iterator[Metric]:
        node, stats = self.node, self.figures.stats
        build = {"version": __version__, "python": platform.python_version(), "kernel": platform.release()}
        build |= {"mode": node.config.mode, "trigger": node.config.trigger}
        yield InfoMetricFamily("outrace_build", "Version and mode.", build)
        yield gauge("ready", "1 when decisions can be made.", not self.health.not_ready())
        for name, (slot, text) in _GAUGES.items():
            yield gauge(name, text, stats.get(slot) / (1e9 if slot.endswith("_ns") else 1))
        bound = self.figures.bound()
        yield gauge("unseen_bytes_bound", "Bytes that can change now before outrace knows.", bound.unseen_bytes)
        text = "Time until memory is sampled again; 0 where the kernel reports it."
        yield gauge("unseen_seconds_bound", text, bound.unseen_ns / 1e9)
        text = "Times the table of page caches of memory cgroups was full; such page cache counts as working set."
        yield counter("memory_cgroups_uncounted", text, self.figures.counted().get("uncounted", 0))
        yield from reclaim_metrics(self.health.disks)
        rungs = {name: name == node.config.rung for name in NAMES}
        yield gauge("hook_rung", "1 for the hook in use.", rungs, "rung")
        yield gauge("pods", "Pods watched.", len(node.pods))
        text = "Pods with a cgroup that their source does not list (yet): not watched, never evicted."
        source = self.health.watch.source
        yield gauge("pods_unlisted", text, len(source.unlisted))
        text = "1 while the kubelet or API server that pods come from does not answer: its last pods stay in use."
        yield gauge("pods_source_failing", text, source.is_failing)
        unknown = sum(not found.pod.spec_known for found in node.pods.values())
        yield gauge("pods_spec_unknown", "Pods watched whose spec, and so their priority, is not known.", unknown)
        for name, text in _COUNTERS.items():
            yield counter(name, text, stats.get(name))
        bounds = [bound / 1e6 for bound in LATENCY_BUCKETS_US]
        for name in HISTOGRAMS:
            counts, total = stats.histogram(name)
            seconds = f"{name.removesuffix('_us')}_seconds"
            yield histogram(seconds, _HISTOGRAM_HELP[name], {"": (bounds, counts, total / 1e6)})

    def _signals(self, domains: dict[str, Reading]) -> Iterator[Metric]:
        """What each signal reads and is compared with: in bytes, or a count of inodes or process ids."""
        node = self.node
        seen = memory_signals(node, domains)
        seen |= {signal: (o.available, o.capacity) for signal, o in self.health.disks.observations.items()}
        # What nothing observes here is never compared.
        thresholds = {(t.signal, "hard" if t.hard else "soft"): t for t in node.thresholds if t.signal in seen}
        for unit in ("bytes", "count"):
            mine = {s: figures for s, figures in seen.items() if (RESOURCE[s] in IN_BYTES) == (unit == "bytes")}
            available = {s: free for s, (free, _) in mine.items()}
            capacity = {s: total for s, (_, total) in mine.items()}
            compared = {key: t for key, t in thresholds.items() if t.operator and t.signal in mine}
            quantities = {key: t.quantity(capacity[t.signal]) for key, t in compared.items()}
            yield gauge(f"signal_available_{unit}", "Amount available by the signal.", available, "signal")
            yield gauge(f"signal_capacity_{unit}", "Capacity behind the signal.", capacity, "signal")
            yield gauge(f"threshold_{unit}", "Threshold of the signal.", quantities, "signal", "kind")
        met = {(entry["signal"], entry["kind"]) for entry in node.met}
        crossed = {key: key in met for key in thresholds}
        yield gauge("threshold_met", "1 while less than the threshold is available.", crossed, "signal", "kind")

    def _policy(self) -> Iterator[Metric]:
        node, counts, stats = self.node, self.figures.counts, self.figures.stats
        # What has labels is counted by the helper and starts at 0 with it; these two are the hot process's own counts.
        yield counter("pods_chosen", "Pods chosen for eviction, since the daemon started.", stats.get("decisions"))
        text = "Processes the OOM killer killed, since the daemon started."
        yield counter("oom_victims", text, stats.get("oom_kills"))
        conditions = {name: name in node.conditions for name in CONDITIONS}
        yield gauge("node_condition", "1 while the node condition holds.", conditions, "condition")
        reason = ((node.state and node.state.braked) or {}).get("reason")
        held = {name: name == reason for name in REASONS}
        text = "1 while evictions for memory are suspended because they would not help."
        yield gauge("evictions_braked", text, held, "reason")
        braked = {name: stats.get(f"braked_{name}") for name in REASONS}
        yield counter("eviction_brakes", "Times evictions were suspended, since the daemon started.", braked, "reason")
        decisions = {(signal, node.config.mode): counts.decisions[signal] for signal in (*ALL_SIGNALS, "local-storage")}
        yield counter("decisions", "Pods chosen for eviction, since the helper started.", decisions, "signal", "mode")
        text = "Processes killed by the OOM killer, at a cgroup's limit or of the machine, since the helper started."
        yield counter("oom_kills", text, {scope: counts.oom_kills[scope] for scope in SCOPES}, "scope")
        text = "Memory of ended pods that reclaim freed (mostly page cache), since the helper started."
        yield counter("given_back_bytes", text, counts.given_back_bytes)

    def _records(self) -> Iterator[Metric]:
        stats, kernel = self.figures.stats, self.figures.counted()
        written = {kind: max(0, kernel.get(f"emitted_{kind}", 0) - stats.get(f"base_{kind}")) for kind in RECORDS}
        records = {(kind, "kernel"): n for kind, n in written.items()}
        records |= {(kind, "reader"): stats.get(f"records_{kind}") for kind in RECORDS}
        text = "Records written by the BPF programs, and read by the hot process."
        yield counter("records", text, records, "kind", "side")
        lost = {f"ring_{kind}": 0 for kind in (*RECORDS, "proc")} | self.figures.lost()
        lost |= {"log": self.log.dropped}
        yield counter("events_lost", "Records dropped at a full ring, channel or queue.", lost, "where")
        dropped = {name: stats.get(f"dropped_{name}") for name in MESSAGES}
        text = "Messages to the helper process that were dropped, by type."
        yield counter("channel_dropped", text, dropped, "message")
        failed = {call: stats.get(f"errors_{call}") for call in CALLS}
        yield counter("errors", "System calls of the hot process that failed, by purpose.", failed, "call")

    def _side(self) -> Iterator[Metric]:
        scores, server = self.processes.scores, self.server
        yield counter("oom_score_adj_mismatches", "Processes seen with another oom_score_adj.", scores.mismatches)
        yield counter("oom_score_adj_written", "Values of oom_score_adj written.", scores.written)
        yield counter("oom_score_adj_denied", "Writes the kernel refused (EACCES).", scores.denied)
        marks = self.processes.marks
        marked = list(marks.marks.values()) if marks is not None else []
        text = "Pods whose processes have oom_score_adj 1000 because the policy would evict them next."
        yield gauge("oom_guided_pods", text, sum(mark.raised > 0 for mark in marked))
        yield counter("http_refused", "Requests and connections refused because too many wait.", server.refused)
        yield counter("http_cut", "Connections closed: slow, or replaced by a new one.", server.cut)
        resident, cpu = {}, {}
        for name, pid in (("hot", self.node.hot_pid), ("side", self.node.side_pid)):
            with suppress(FileNotFoundError, ProcessLookupError):  # it is gone
                fields = stat_fields(f"/proc/{pid}")
                resident[name] = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
                cpu[name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        yield gauge("process_resident_memory_bytes", "Resident memory.", resident, "process")
        yield counter("process_cpu_seconds", "CPU time used.", cpu, "process")


def memory_signals(node: NodeState, domains: Mapping[str, Reading]) -> dict[str, tuple[int, int]]:
    """Signal -> available and capacity (bytes): the kubelet's, and those of outrace's own that have thresholds."""
    wanted = {threshold.signal for threshold in node.thresholds}
    seen: dict[str, tuple[int, int]] = {}
    for name, reading in domains.items():
        kubelets, *others = OF_DOMAIN[name]
        total = reading.capacity or 0  # of a domain it is known
        for signal in (kubelets, *wanted.intersection(others)):
            seen[signal] = total - used(signal, reading.usage, reading.inactive_file, reading.active_file), total
    return seen


def reclaim_metrics(disks: DiskWatch) -> Iterator[Metric]:
    """What node-level clean-up did, since the helper started."""
    runs = {(DELETE_IMAGES, result): disks.cleanups[result] for result in RESULTS}
    text = "Clean-ups of the node before an eviction, by action and result."
    yield counter("reclaim_runs", text, runs, "action", "result")


def hold_metrics(node: NodeState, holds: Holds) -> Iterator[Metric]:
    """Of pods that are held. What is counted here starts at 0 with the helper."""
    reasons = [one.reason for one in node.held.values()]
    held = {reason: reasons.count(reason) for reason in HELD_FOR}
    yield gauge("pods_held", "Held pods, by reason: `victim`, the policy's next, or `grows`.", held, "reason")
    yield gauge("longest_hold_seconds", "Age of the oldest hold; 0 without one.", node.longest_hold_s())
    begun = {reason: holds.begun[reason] for reason in HELD_FOR}
    yield counter("holds_begun", "Holds that began, since the helper started.", begun, "reason")
    ended = {why: holds.ended[why] for why in HOLD_ENDS}
    yield counter("holds_ended", "Holds that ended, by reason, since the helper started.", ended, "why")


def cluster_metrics(cluster: Cluster) -> Iterator[Metric]:
    """Of what is written to the API server."""
    reports = cluster.reports
    text = "Time from a pod's SIGKILL, or its end in a grace, to its status accepted by the API server."
    yield histogram("cluster_status_seconds", text, {"": reports.seconds.shown})
    text = "Statuses of evicted pods, by outcome; only `taken` is certain to stay."
    yield counter("cluster_statuses", text, dict(reports.fates), "outcome")
    text = "Times a kubelet replaced such a status by another phase, and outrace wrote it again."
    yield counter("cluster_statuses_erased", text, reports.erased)
    if cluster.evictions is not None:
        asked = cluster.evictions
        text = "Time from a decision to its eviction accepted by the API server (--evict-by api)."
        yield histogram("cluster_eviction_seconds", text, {"": asked.seconds.shown})
        text = "Requests to evict a pod, by answer; `budget`: a PodDisruptionBudget refuses it."
        yield counter("cluster_evictions", text, dict(asked.outcomes), "outcome")
    yield counter("cluster_events", "Events that the API server accepted.", reports.events_sent)
    text = "Events that the API server refused, or beyond the limit of the queue."
    yield counter("cluster_events_dropped", text, reports.events_dropped)
    yield gauge("cluster_records_waiting", "Evictions whose events are not sent yet.", reports.waiting)


# Metrics of single pods, and the limits of pods, node and kubepods. A limit that is not set, swap on a machine
# without, and what a pod has never caused are absent: 0 would say something else.
_POD = ("namespace", "pod")
_LIMITS = "Limits and protections of the cgroup: min, low, high, max, swap_max; soft on cgroup v1."
_SWAP = "Memory in swap; no part of usage or working set."
_OVER = "Records of a pod beyond its budget, only counted: steps of memory, SIGKILLs, processes, reclaim, log lines."


def pod_metrics(node: NodeState, figures: Figures, budget: LogBudget) -> Iterator[Metric]:
    """Memory, limits, and what is over a budget."""
    request = era(node.config.policy).request
    pods = node.named_pods()
    used = {key: reading for key, found in pods.items() if (reading := figures.used(found.cgroup)) is not None}
    usage = {key: reading.usage for key, reading in used.items()}
    working_set = {key: reading.working_set for key, reading in used.items()}
    requests = {key: request(found.pod, "memory").value for key, found in pods.items()}
    yield gauge("pod_memory_usage_bytes", "Memory in use by the pod.", usage, *_POD)
    yield gauge("pod_memory_working_set_bytes", "The pod's working set.", working_set, *_POD)
    yield gauge("pod_memory_request_bytes", "The pod's memory request.", requests, *_POD)
    yield from limit_metrics(node)
    caused: dict[tuple[str, str, str], int] = {}
    for key, found in pods.items():
        numbers = figures.over(found) | {"log_lines": budget.left_out["/".join(key)]}
        caused |= {(*key, what): n for what, n in numbers.items() if n}
    yield counter("pod_over_budget", _OVER, caused, *_POD, "what")


def limit_metrics(node: NodeState) -> Iterator[Metric]:
    """Limits, and swap where the machine has any."""
    has_swap = bool(limits.machine_swap())
    domains = {("node",): node.node_path}
    if node.kubepods is not None:
        domains[("kubepods",)] = node.kubepods
    pods = {name: found.cgroup for name, found in node.named_pods().items()}
    for prefix, labels, cgroups in (("", ("domain",), domains), ("pod_", _POD, pods)):
        looks = {key: limits.read(node.hierarchy, path, has_swap) for key, path in cgroups.items()}
        # The pod source reports a cgroup that was removed.
        read = {key: found for key, found in looks.items() if found is not None}
        swap = {key: found.pop("swap") for key, found in read.items() if "swap" in found}
        limited = {(*key, name): n for key, found in read.items() for name, n in found.items()}
        yield gauge(f"{prefix}memory_limit_bytes", _LIMITS, limited, *labels, "limit")
        yield gauge(f"{prefix}memory_swap_bytes", _SWAP, swap, *labels)


_ALERTS = {
    "sent": "Alerts that a receiver accepted; again when more is known of one.",
    "failed": "Requests that failed; outrace sends the alerts again.",
    "dropped": "Alerts dropped: a full queue, or a receiver that refuses them.",
}


def race_metrics(races: Races, pods: Mapping[tuple[str, str], FoundPod]) -> Iterator[Metric]:
    """``pods``: by namespace and name."""
    judge, store, recorder = races.judge, races.judge.store, races.recorder
    yield counter("race", "Episodes of pressure that are over, by verdict.", judge.verdicts, "verdict")
    yield counter("incident_flags", "Flags given with verdicts on episodes of pressure.", judge.flags, "flag")
    seconds = {verdict: found.shown for verdict, found in judge.margin_s.items()}
    nbytes = {verdict: found.shown for verdict, found in judge.margin_bytes.items()}
    yield histogram("race_margin_seconds", "Time by which races were won or lost, by verdict.", seconds, "verdict")
    yield histogram("race_margin_bytes", "Bytes by which races were won or lost, by verdict.", nbytes, "verdict")
    text = "1 while the kernel would kill another pod than the policy would evict; 0 also while no threshold is near."
    yield gauge("victim_mismatch", text, races.kernels_victim()[1])
    yield from _stalls(races, pods)

    yield gauge("incidents_stored", "Incidents in the store.", store.stored or 0)
    failing = judge.files.failing is not None and not isinstance(judge.files.failing, TooLargeError)
    yield gauge("incident_store_failing", "1 while incidents cannot be stored.", failing)
    yield counter("incidents_lost", "Incidents that are not stored: refused, or dropped before.", judge.dropped)

    counters = races.alerts.counters
    for name, text in _ALERTS.items():
        yield counter(f"alerts_{name}", text, {to: counts[name] for to, counts in counters.items()}, "receiver")
    waiting = {to: counts["waiting"] for to, counts in counters.items()}
    yield gauge("alerts_waiting", "Alerts that are not accepted yet.", waiting, "receiver")

    written, dropped = (recorder.written, recorder.dropped) if recorder is not None else (0, 0)
    text = "Bytes written to the recording since the helper started; 0 without --record."
    yield gauge("recording_bytes", text, written)
    text = "Inputs missing in the recording: channel, queue or disk was full."
    yield counter("recording_dropped", text, dropped)
    failing = recorder is not None and recorder.failing
    yield gauge("recording_failing", "1 while the recording cannot be written.", failing)


def _stalls(races: Races, pods: Mapping[tuple[str, str], FoundPod]) -> Iterator[Metric]:
    stalls = races.stalls
    yield counter("stalls", "Stalls that lasted for their grace.", stalls.counted)
    yield counter("stalls_relaxed", "Times that memory.high of a stalled pod was raised.", stalls.relaxing.counted)
    shares = stalls.shares
    of_pods = {names: shares[found.pod.uid] for names, found in pods.items() if found.pod.uid in shares}
    text = "Part of the last second in which a pod waited because of memory; absent where the kernel does not say."
    yield gauge("pod_stall_ratio", text, of_pods, "namespace", "pod")
    domains = {(domain,): shares[key] for key, domain in ((MACHINE, NODE), (KUBEPODS, KUBEPODS)) if key in shares}
    yield gauge("stall_ratio", "The same of the machine and of all pods, where a rule watches them.", domains, "domain")
