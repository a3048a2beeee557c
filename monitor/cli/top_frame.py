"""What `outrace top` shows, as data: the node, kubepods and the pods, their growth, and what the daemon reports."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from monitor.cli.daemons import Daemon
from monitor.errors import MonitorError
from monitor.kernel import cgroupfs, meminfo
from monitor.kernel.cgroupfs import Reading
from monitor.link.daemon_socket import SUMMARY_PATH
from monitor.pods.model import FoundPod
from monitor.pods.source import open_for
from monitor.policy.compat import quotient
from monitor.policy.ranking import Candidate, Key
from monitor.policy.releases import Era, era
from monitor.policy.signals import MEMORY_SIGNALS, OF_DOMAIN, Observation, used
from monitor.policy.thresholds import Threshold, kubelets
from monitor.settings.config import RunConfig
from monitor.side.pod_watch import pod_message

FILES = "cgroup files"
#: What is shown of a pod besides its figures.
_OF_SPEC = ("cgroup", "qos", "priority", "spec_known", "critical", "request")
_UNKNOWN = {**dict.fromkeys(_OF_SPEC), "spec_known": False}
_NAMES = ("namespace", "name", "uid")
#: Of the daemon's status; keys that may be missing in the answer of an older daemon.
_STATUS = ("mode", "rung", "trigger", "armed", "bound_bytes", "not_ready", "conditions", "lost")
Readings = dict[str, Reading]
#: The domains, the pods, and what the daemon reports with them (`monitor.side.endpoints`).
Found = tuple[Readings, list[dict[str, Any]], Mapping[str, Any]]
Frame = Mapping[str, Any]


class Node:
    """The node a frame is about: the machine, or the cgroup given as ``--node-cgroup``; and its pods, until `close`."""

    def __init__(self, config: RunConfig, daemon: Daemon | None = None) -> None:
        """``daemon``: its figures are shown; None: those of the cgroup files. Raises MonitorError."""
        self.config = config
        self.daemon = daemon
        self._era = era(config.policy)
        self.hierarchy = cgroupfs.detect()
        self._memory = meminfo.MemTotal()
        self.path = self.hierarchy.root
        if config.node_cgroup is not None:
            self.path = cgroupfs.resolve(self.hierarchy, config.node_cgroup)
        self._look()
        mine = [t for t in config.thresholds() if t.signal in MEMORY_SIGNALS]
        # What a kubelet has in place of outrace's own signals is shown beside them.
        self.compared = [t for t in kubelets(mine) if t not in mine]
        self.thresholds = [*self.compared, *mine]
        self.source = open_for(config, self.hierarchy, meminfo.mem_total(), self.path)
        self._trends = Trends()

    def close(self) -> None:
        self.source.close()

    def _look(self) -> None:
        """`whole`: bytes of the machine or the cgroup; `capacity`: what is available of, without huge pages."""
        own = None if self.config.node_cgroup is None else cgroupfs.limit(self.path)
        self.whole = own or self._memory.now()
        self.capacity = self.whole - (self._memory.huge_pages() if self.config.huge_pages_apart else 0)

    def frame(self) -> dict[str, Any]:
        """One frame; sizes in bytes. The source of the pods is polled, and gives their requests and priorities."""
        source = self.source
        source.poll()
        self._look()  # plugged memory and a changed limit show in the next frame
        domains, pods, reported = self._read_files() if self.daemon is None else self._asked(self.daemon)
        node, signals, stalls = domains["node"], _signals(domains), reported.get("stalls", {})
        sizes = {pod["uid"]: pod["working_set"] for pod in pods}
        growth = self._trends.growth(
            time.monotonic(), sizes | {name: domain.working_set for name, domain in domains.items()}
        )
        for pod in pods:
            pod |= {"stall_ratio": stalls.get(pod["uid"]), "growth_bytes_per_s": growth[pod["uid"]]}
        shown = {name: {**one.figures(), "growth_bytes_per_s": growth[name]} for name, one in domains.items()}
        return {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "source": FILES if self.daemon is None else f"daemon {self.daemon}",
            "hierarchy": {"version": self.hierarchy.version, "root": str(self.hierarchy.root)},
            "node": {"cgroup": str(self.path), **shown["node"]},
            "signals": {name: {"available": o.available, "capacity": o.capacity} for name, o in signals.items()},
            "kubepods": shown.get("kubepods"),
            "thresholds": [
                threshold_row(one, signals[one.signal]) | {"compared": one in self.compared}
                for one in self.thresholds
                if one.signal in signals  # else it is not observed, so never met
            ],
            "braked": reported.get("braked"),
            "held": reported.get("held", []),
            "pods": _ordered(pods, self._era),
            **script_figures(node),
            "unlisted": source.unlisted_text(),
            "problems": list(source.problems),
            "kernel_victim": reported.get("kernel_victim"),
            "daemon": reported.get("daemon"),
        }

    def _asked(self, daemon: Daemon) -> Found:
        """Raises MonitorError."""
        try:
            summary = json.loads(daemon.get(SUMMARY_PATH))
            reported = {"status": {}, **summary.get("outrace", {})}
            known = {"name": daemon.name, "pid": daemon.info.hot_pid, "version": daemon.info.version}
            reported["daemon"] = known | {key: reported["status"].get(key) for key in _STATUS}
            return *from_summary(summary, self.source.pods, self._era), reported
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as e:
            problem = f"the daemon {daemon} gave no usable answer: {type(e).__name__} {e}"
        except OSError as e:
            problem = f"the daemon {daemon} does not answer: {e}"
        raise MonitorError(problem, "look without it: --no-daemon")

    def _read_files(self) -> Found:
        domains = {"node": cgroupfs.read_cgroup(self.hierarchy, self.path, self.capacity)}
        if (kubepods := self.source.kubepods) is not None:
            # Without a limit of its own (pods not enforced) it may use what is not reserved.
            domains["kubepods"] = cgroupfs.read_cgroup(self.hierarchy, kubepods, self.whole - self.config.reserved)
        pods = []
        for pod in self.source.pods.values():
            try:
                pods.append({**_identity(pod, self._era), **cgroupfs.read_cgroup(self.hierarchy, pod.cgroup).figures()})
            except cgroupfs.CgroupGone:
                continue  # it ended since the poll; the next one knows
        return domains, pods, {}


def _signals(domains: Readings) -> dict[str, Observation]:
    """What is available by each memory signal, in bytes, and the capacity that it is of."""
    seen: dict[str, Observation] = {}
    for name, reading in domains.items():
        if (capacity := reading.capacity) is not None:
            figures = reading.usage, reading.inactive_file, reading.active_file
            seen |= {signal: Observation(capacity - used(signal, *figures), capacity, 0) for signal in OF_DOMAIN[name]}
    return seen


def threshold_row(threshold: Threshold, seen: Observation) -> dict[str, Any]:
    """A threshold, with what is left until ``seen`` is at it; it is met strictly below."""
    quantity = threshold.quantity(seen.capacity)
    distance = seen.available - quantity
    return {
        "signal": threshold.signal,
        "kind": "hard" if threshold.hard else "soft",
        "value": str(threshold.value),
        "quantity": quantity,
        "available": seen.available,
        "distance": distance,
        "met": distance < 0,
    }


def from_summary(
    summary: Mapping[str, Any], found: Mapping[str, FoundPod], rules: Era
) -> tuple[Readings, list[dict[str, Any]]]:
    """The domains and pods of a Summary; a pod not in ``found`` has no request. KeyError and the like if it is none."""
    domains = {"node": _reading(summary["node"]["memory"])}
    for container in summary["node"].get("systemContainers", ()):
        if container["name"] == "pods":
            domains.setdefault("kubepods", _reading(container["memory"]))
    pods = []
    for entry in summary["pods"]:
        if "memory" not in entry:
            continue
        names = {key: entry["podRef"][key] for key in _NAMES}
        known = _identity(found[names["uid"]], rules) if names["uid"] in found else _UNKNOWN
        pods.append({**names, **known, **_reading(entry["memory"]).figures()})
    return domains, pods


def _reading(memory: Mapping[str, Any]) -> Reading:
    """A Summary's memory. Its capacity is what the kubelet takes percentages of: available + working set."""
    working_set, available = memory["workingSetBytes"], memory.get("availableBytes")
    capacity = None if available is None else available + working_set
    return Reading(memory["usageBytes"], memory["inactiveFileBytes"], memory["activeFileBytes"], capacity=capacity)


def _identity(found: FoundPod, rules: Era) -> dict[str, Any]:
    message = pod_message(found, rules)
    return {k: getattr(message, k) for k in (*_NAMES, *_OF_SPEC)}


def _ordered(pods: list[dict[str, Any]], rules: Era) -> list[dict[str, Any]]:
    """The pods, the first victim first, each with how far it is above its request."""

    def place(pod: Mapping[str, Any]) -> Key:
        given = {"usage": pod["working_set"], "request": pod["request"] or 0, "critical": bool(pod["critical"])}
        same = {key: pod[key] for key in (*_NAMES, "priority")}
        return rules.memory_key(Candidate(**same, **given, qos=pod["qos"] or ""))

    order = sorted({pod["uid"]: pod for pod in pods}.values(), key=place)
    for pod in order:
        pod["over_request"] = None if pod["request"] is None else pod["working_set"] - pod["request"]
    return order


def script_figures(node: Reading) -> dict[str, int | None]:
    """What the Kubernetes documentation's memory-available scripts print, under their variables' names."""
    in_kb = None if node.available is None else quotient(node.available, 1024)
    return {
        "memory_capacity_in_bytes": node.capacity,
        "memory_usage_in_bytes": node.usage,
        "memory_total_inactive_file": node.inactive_file,
        "memory_working_set": node.working_set,
        "memory_available_in_bytes": node.available,
        "memory_available_in_kb": in_kb,
        "memory_available_in_mb": None if in_kb is None else quotient(in_kb, 1024),
    }


#: Growth is over this long: shorter spans show every batch of 64 pages as a burst.
SPAN_S = 10.0
#: Two looks closer than this say nothing about a rate.
_LEAST_S = 0.5


class Trends:
    """Working sets in bytes by key (the uid of a pod, or a domain), over the last frames. Times are seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Mapping[str, int]]] = deque()

    def growth(self, at_s: float, sizes: Mapping[str, int]) -> dict[str, int | None]:
        """Bytes a second of each key of ``sizes``, which are of now, over the last `SPAN_S`; None: not known yet."""
        self._seen.append((at_s, sizes))
        while self._seen[0][0] < at_s - SPAN_S:
            self._seen.popleft()
        found: dict[str, int | None] = {}
        for key, size in sizes.items():
            took_s, start = next((at_s - then_s, then[key]) for then_s, then in self._seen if key in then)
            found[key] = None if took_s < _LEAST_S else round((size - start) / took_s)
        return found
