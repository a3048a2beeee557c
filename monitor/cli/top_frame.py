"""What `outrace top` shows, as data: the node, kubepods and the pods in memory order, from a daemon or from files."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from monitor.cli.daemons import Daemon
from monitor.kernel import cgroupfs, meminfo
from monitor.kernel.cgroupfs import MemoryReading
from monitor.link.daemon_socket import LIVE_PATH, SUMMARY_PATH
from monitor.pods.kubepods import of_pods
from monitor.pods.model import FoundPod, PodSource
from monitor.policy.ranking import Candidate, memory_order
from monitor.policy.releases import CURRENT, Era, era
from monitor.policy.signals import MEMORY_SIGNALS, OF_DOMAIN, used
from monitor.policy.thresholds import Threshold, kubelets
from monitor.settings.config import RunConfig
from monitor.side.pod_watch import pod_message

_FILES = "cgroup files"
#: What is shown of a pod besides its figures.
_OF_SPEC = ("cgroup", "qos", "priority", "spec_known", "critical", "request")
_UNKNOWN = {**dict.fromkeys(_OF_SPEC), "spec_known": False}
_NAMES = ("namespace", "name", "uid")
Readings = dict[str, MemoryReading]


class Node:
    """The node a frame is about: the machine, or the cgroup given as ``--node-cgroup``."""

    def __init__(self, config: RunConfig, daemon: Daemon | None = None, is_live: bool = False) -> None:
        """``daemon``: its figures are shown; None: those of the cgroup files. ``is_live``: frames follow each other,
        and the daemon's hot process is not asked for them.
        """
        self.config = config
        self.daemon = daemon
        self.is_live = is_live
        self._era = era(config.policy)
        self.hierarchy = cgroupfs.detect()
        self.mem_total = meminfo.mem_total()
        self.path = self.hierarchy.root
        if config.node_cgroup is not None:
            self.path = cgroupfs.resolve(self.hierarchy, config.node_cgroup)
        self.capacity = self._capacity_now()
        #: What the daemon reported with the last frame (`monitor.side.endpoints`); None: no daemon answered.
        self.reported: dict[str, Any] | None = None
        mine = [t for t in config.thresholds() if t.signal in MEMORY_SIGNALS]
        # What a kubelet has in place of outrace's own signals is shown beside them.
        self.compared = [t for t in kubelets(mine) if t not in mine]
        self.thresholds = [*self.compared, *mine]

    def _capacity_now(self) -> int:
        own = None if self.config.node_cgroup is None else cgroupfs.limit(self.path)
        return own or meminfo.mem_total()

    def frame(self, source: PodSource) -> dict[str, Any]:
        """One frame; sizes in bytes. ``source`` is polled for the pods and gives their requests and priorities."""
        source.poll()
        self.capacity = self._capacity_now()  # plugged memory and a changed limit show in the next frame
        self.reported = None
        domains, pods, origin = self._read(source.pods)
        reported: dict[str, Any] = self.reported or {}
        node = domains["node"]
        signals = _signals(domains)
        return {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "source": origin,
            "hierarchy": {"version": self.hierarchy.version, "root": str(self.hierarchy.root)},
            "node": {"cgroup": str(self.path), **asdict(node)},
            "signals": signals,
            "kubepods": asdict(domains["kubepods"]) if "kubepods" in domains else None,
            "thresholds": _distances(self.thresholds, signals, self.compared),
            "forecasts": reported.get("forecasts", []),
            "braked": reported.get("braked"),
            "held": reported.get("held", []),
            "pods": _ordered(pods, self._era),
            **script_figures(node),
            "unlisted": source.unlisted_text(),
            "problems": list(source.problems),
        }

    def kubepods(self, found: Mapping[str, FoundPod]) -> Path | None:
        """The cgroup that holds all pods, if there is one."""
        return of_pods(self.hierarchy, self.path, found.values(), self.config.cgroup_root)

    def _read(self, found: Mapping[str, FoundPod]) -> tuple[Readings, list[dict[str, Any]], str]:
        """The domains, the pods, and where the figures come from."""
        if self.daemon is None:
            return *self._read_files(found), _FILES
        try:
            summary = json.loads(self.daemon.get(LIVE_PATH if self.is_live else SUMMARY_PATH))
            domains, pods = from_summary(summary, found, self._era)
            self.capacity = domains["node"].capacity or self.capacity
            self.reported = {"status": {}, **summary.get("outrace", {})}
            return domains, pods, f"daemon {self.daemon}"
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as e:
            origin = f"{_FILES} (the daemon {self.daemon} gave no usable answer: {type(e).__name__} {e})"
        except OSError as e:
            origin = f"{_FILES} (the daemon {self.daemon} does not answer: {e})"
        return *self._read_files(found), origin

    def _read_files(self, found: Mapping[str, FoundPod]) -> tuple[Readings, list[dict[str, Any]]]:
        if self.path == self.hierarchy.root:
            domains = {"node": cgroupfs.read_node(self.hierarchy, self.capacity)}
        else:
            domains = {"node": cgroupfs.read_cgroup(self.hierarchy, self.path, self.capacity)}
        kubepods = self.kubepods(found)
        if kubepods is not None:
            # Without a limit of its own (pods not enforced) it may use what is not reserved.
            capacity = self.capacity - self.config.reserved
            domains["kubepods"] = cgroupfs.read_cgroup(self.hierarchy, kubepods, capacity)
        pods = []
        for pod in found.values():
            try:
                pods.append({**_identity(pod, self._era), **asdict(cgroupfs.read_cgroup(self.hierarchy, pod.cgroup))})
            except cgroupfs.CgroupGone:
                continue  # it ended since the poll; the next one knows
        return domains, pods


def _signals(domains: Readings) -> dict[str, dict[str, int]]:
    """What is available by each memory signal, in bytes, and the capacity that it is of."""
    seen: dict[str, dict[str, int]] = {}
    for name, reading in domains.items():
        if (capacity := reading.capacity) is not None:
            figures = reading.usage, reading.inactive_file, reading.active_file
            for signal in OF_DOMAIN[name]:
                seen[signal] = {"available": capacity - used(signal, *figures), "capacity": capacity}
    return seen


def from_summary(
    summary: Mapping[str, Any], found: Mapping[str, FoundPod], rules: Era = CURRENT
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
        who = {key: entry["podRef"][key] for key in _NAMES}
        known = _identity(found[who["uid"]], rules) if who["uid"] in found else _UNKNOWN
        pods.append({**who, **known, **asdict(_reading(entry["memory"]))})
    return domains, pods


def _reading(memory: Mapping[str, Any]) -> MemoryReading:
    """A Summary's memory. Its capacity is what the kubelet takes percentages of: available + working set."""
    working_set, available = memory["workingSetBytes"], memory.get("availableBytes")
    return MemoryReading(
        usage=memory["usageBytes"],
        inactive_file=memory["inactiveFileBytes"],
        active_file=memory["activeFileBytes"],
        working_set=working_set,
        capacity=None if available is None else available + working_set,
        available=available,
    )


def _identity(found: FoundPod, rules: Era) -> dict[str, Any]:
    message = pod_message(found, rules)
    return {k: getattr(message, k) for k in (*_NAMES, *_OF_SPEC)}


def _ordered(pods: list[dict[str, Any]], rules: Era) -> list[dict[str, Any]]:
    """The pods, the first victim first, each with how far it is above its request."""
    by_uid = {pod["uid"]: pod for pod in pods}
    candidates = [
        Candidate(
            uid=pod["uid"],
            namespace=pod["namespace"],
            name=pod["name"],
            priority=pod["priority"],
            request=pod["request"] or 0,
            usage=pod["working_set"],
            critical=bool(pod["critical"]),
            qos=pod["qos"] or "",
        )
        for pod in by_uid.values()
    ]
    order = [by_uid[c.uid] for c in memory_order(candidates, rules.memory_key)]
    for pod in order:
        pod["over_request"] = None if pod["request"] is None else pod["working_set"] - pod["request"]
    return order


def _distances(
    thresholds: list[Threshold], signals: Mapping[str, Mapping[str, int]], compared: list[Threshold]
) -> list[dict[str, Any]]:
    """Each threshold with the bytes left until available is at it; it is met when available is strictly below."""
    rows = []
    for threshold in thresholds:
        seen = signals.get(threshold.signal)
        if seen is None:
            continue  # not observed, so never met
        available = seen["available"]
        quantity = threshold.quantity(seen["capacity"])
        rows.append(
            {
                "signal": threshold.signal,
                "kind": "hard" if threshold.hard else "soft",
                "value": str(threshold.value),
                "quantity": quantity,
                "available": available,
                "distance": available - quantity,
                "met": available < quantity,
                "compared": threshold in compared,
            }
        )
    return rows


def script_figures(node: MemoryReading) -> dict[str, int | None]:
    """What the Kubernetes documentation's memory-available scripts print, under their variables' names.

    The shell's division truncates toward zero, also below it.
    """
    in_kb = None if node.available is None else _truncated(node.available)
    return {
        "memory_capacity_in_bytes": node.capacity,
        "memory_usage_in_bytes": node.usage,
        "memory_total_inactive_file": node.inactive_file,
        "memory_working_set": node.working_set,
        "memory_available_in_bytes": node.available,
        "memory_available_in_kb": in_kb,
        "memory_available_in_mb": None if in_kb is None else _truncated(in_kb),
    }


def _truncated(value: int) -> int:
    return value // 1024 if value >= 0 else -(-value // 1024)
