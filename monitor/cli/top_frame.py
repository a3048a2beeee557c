"""What `outrace top` shows, as data: the node, kubepods and the pods, growth, and the kernel's next victim."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from monitor.cli.daemons import Daemon, described
from monitor.errors import MonitorError
from monitor.kernel import cgroupfs, meminfo
from monitor.kernel.cgroupfs import Hierarchy, Reading
from monitor.kernel.oom_candidates import Owner, candidates, total_pages
from monitor.link.daemon_socket import LIVE_PATH, SUMMARY_PATH
from monitor.pods.cgroup_tree import of_pods
from monitor.pods.model import FoundPod
from monitor.pods.source import open_for
from monitor.policy.compat import quotient
from monitor.policy.ranking import Candidate, Key
from monitor.policy.releases import Era, era
from monitor.policy.signals import MEMORY_SIGNALS, OF_DOMAIN, Observation, used
from monitor.policy.thresholds import Threshold, kubelets
from monitor.race.badness import likely_victim
from monitor.settings.config import RunConfig
from monitor.side.node_state import pod_owners
from monitor.side.pod_watch import pod_message

FILES = "cgroup files"
#: What is shown of a pod besides its figures.
_OF_SPEC = ("cgroup", "qos", "priority", "spec_known", "critical", "request")
_UNKNOWN = {**dict.fromkeys(_OF_SPEC), "spec_known": False}
_NAMES = ("namespace", "name", "uid")
Readings = dict[str, Reading]
Frame = Mapping[str, Any]


class Node:
    """The node a frame is about: the machine, or the cgroup given as ``--node-cgroup``; and its pods, until `close`."""

    def __init__(self, config: RunConfig, daemon: Daemon | None = None, is_live: bool = False) -> None:
        """``daemon``: its figures are shown; None: those of the cgroup files. ``is_live``: frames follow each other,
        and the daemon's hot process is not asked for them. Raises MonitorError.
        """
        self.config = config
        self.daemon = daemon
        self.is_live = is_live
        self._era = era(config.policy)
        self.hierarchy = cgroupfs.detect()
        self._memory = meminfo.MemTotal()
        self.path = self.hierarchy.root
        if config.node_cgroup is not None:
            self.path = cgroupfs.resolve(self.hierarchy, config.node_cgroup)
        self._look()
        #: What the daemon reported with the last frame (`monitor.side.endpoints`); None: no daemon answered.
        self.reported: dict[str, Any] | None = None
        mine = [t for t in config.thresholds() if t.signal in MEMORY_SIGNALS]
        # What a kubelet has in place of outrace's own signals is shown beside them.
        self.compared = [t for t in kubelets(mine) if t not in mine]
        self.thresholds = [*self.compared, *mine]
        self.source = open_for(config, self.hierarchy, meminfo.mem_total(), self.path)

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
        self.reported = None
        domains, pods, origin = self._read()
        reported: dict[str, Any] = self.reported or {}
        node, signals, stalls = domains["node"], _signals(domains), reported.get("stalls", {})
        for pod in pods:
            pod["stall_ratio"] = stalls.get(pod["uid"])
        return {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "source": origin,
            "hierarchy": {"version": self.hierarchy.version, "root": str(self.hierarchy.root)},
            "node": {"cgroup": str(self.path), **node.figures()},
            "signals": {name: {"available": o.available, "capacity": o.capacity} for name, o in signals.items()},
            "kubepods": domains["kubepods"].figures() if "kubepods" in domains else None,
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
        }

    def kubepods(self) -> Path | None:
        """The cgroup that holds all pods, if there is one."""
        return of_pods(self.hierarchy, self.path, self.source.pods.values(), self.config.cgroup_root)

    def _read(self) -> tuple[Readings, list[dict[str, Any]], str]:
        """The domains, the pods, and where the figures come from."""
        if self.daemon is None:
            return *self._read_files(), FILES
        try:
            summary = json.loads(self.daemon.get(LIVE_PATH if self.is_live else SUMMARY_PATH))
            domains, pods = from_summary(summary, self.source.pods, self._era)
            self.capacity = domains["node"].capacity or self.capacity
            self.reported = {"status": {}, **summary.get("outrace", {})}
            return domains, pods, f"daemon {self.daemon}"
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as e:
            origin = f"{FILES} (the daemon {self.daemon} gave no usable answer: {type(e).__name__} {e})"
        except OSError as e:
            origin = f"{FILES} (the daemon {self.daemon} does not answer: {e})"
        return *self._read_files(), origin

    def _read_files(self) -> tuple[Readings, list[dict[str, Any]]]:
        domains = {"node": cgroupfs.read_cgroup(self.hierarchy, self.path, self.capacity)}
        kubepods = self.kubepods()
        if kubepods is not None:
            # Without a limit of its own (pods not enforced) it may use what is not reserved.
            domains["kubepods"] = cgroupfs.read_cgroup(self.hierarchy, kubepods, self.whole - self.config.reserved)
        pods = []
        for pod in self.source.pods.values():
            try:
                pods.append({**_identity(pod, self._era), **cgroupfs.read_cgroup(self.hierarchy, pod.cgroup).figures()})
            except cgroupfs.CgroupGone:
                continue  # it ended since the poll; the next one knows
        return domains, pods


def _signals(domains: Readings) -> dict[str, Observation]:
    """What is available by each memory signal, in bytes, and the capacity that it is of."""
    seen: dict[str, Observation] = {}
    for name, reading in domains.items():
        if (capacity := reading.capacity) is not None:
            figures = reading.usage, reading.inactive_file, reading.active_file
            seen |= {signal: Observation(capacity - used(signal, *figures), capacity, 0) for signal in OF_DOMAIN[name]}
    return seen


def threshold_row(threshold: Threshold, seen: Observation | None) -> dict[str, Any]:
    """A threshold, with what is left until ``seen`` is at it; it is met strictly below. None: it is not observed."""
    quantity = None if seen is None else threshold.quantity(seen.capacity)
    distance = None if seen is None or quantity is None else seen.available - quantity
    return {
        "signal": threshold.signal,
        "kind": "hard" if threshold.hard else "soft",
        "value": str(threshold.value),
        "quantity": quantity,
        "available": None if seen is None else seen.available,
        "distance": distance,
        "met": distance is not None and distance < 0,
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
        begin_s = at_s - SPAN_S
        while len(self._seen) > 1 and self._seen[1][0] <= begin_s:
            self._seen.popleft()
        found: dict[str, int | None] = {}
        for key, size in sizes.items():
            # A figure holds until the next one: at the begin of the span it is the last one before.
            start_s, start = next((max(then_s, begin_s), then[key]) for then_s, then in self._seen if key in then)
            took_s = at_s - start_s
            found[key] = None if took_s < _LEAST_S else round((size - start) / took_s)
        return found


#: A look at all processes (some 60 us each) is repeated after this long, or after so many times what it took: at most
#: 2 % of a CPU on a node that is short of memory.
_LOOK_S, _SHARE = 5.0, 50
#: What the kernel has for itself on the machine; none of it is in the usage of the root cgroup.
_MACHINE = ("Slab", "KernelStack", "PageTables", "SecPageTables", "Percpu")
#: The same of a cgroup on kernels before 5.18, which have no line `kernel` (Documentation/admin-guide/cgroup-v2.rst).
_OF_CGROUP = ("slab", "kernel_stack", "pagetables", "percpu", "vmalloc")


def composition(hierarchy: Hierarchy, path: Path | None) -> dict[str, int | None]:
    """`anon`, `shmem` and `kernel` of a cgroup, or of the machine at the root, in bytes; None: not known here."""
    found: Sequence[int | None] = (None, None, None)
    with suppress(MonitorError, OSError):  # removed, or not readable
        if path == hierarchy.root:
            stat = meminfo.read()
            found = stat.get("AnonPages"), stat.get("Shmem"), _sum(stat, _MACHINE)
        elif path is not None:
            stat = cgroupfs.memory_stat(path)
            found = stat.get("anon"), stat.get("shmem"), stat.get("kernel", _sum(stat, _OF_CGROUP))
            if hierarchy.version == 1:
                found = stat.get("total_rss"), stat.get("total_shmem"), _kernel_v1(path)
    return dict(zip(("anon", "shmem", "kernel"), found, strict=True))


def _sum(stat: Mapping[str, int], names: Iterable[str]) -> int | None:
    return sum(stat[name] for name in names if name in stat) or None


def _kernel_v1(path: Path) -> int | None:
    with suppress(MonitorError):  # where kernel memory is not accounted (cgroup.memory=nokmem)
        return cgroupfs.amount(path, "memory.kmem.usage_in_bytes")
    return None


class Looked(NamedTuple):
    """``victim`` as it is shown; ``scores``: the lowest and highest oom_score_adj by the uid of a pod."""

    victim: Mapping[str, Any] | None = None
    scores: Mapping[str, tuple[int, int]] = {}
    problem: str = ""


class ProcessLooks:
    """Looks at the processes now and then. ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = 0.0
        self._last = Looked()

    def look(self, hierarchy: Hierarchy, node: Path, owner: Callable[[Path], Owner | None]) -> Looked:
        began = self._clock()
        if began >= self._due:
            try:
                self._last = _looked(hierarchy, node, owner)
            except (MonitorError, OSError) as error:
                self._last = Looked(problem=f"the processes cannot be read: {error}")
            ended = self._clock()
            self._due = ended + max(_LOOK_S, _SHARE * (ended - began))
        return self._last


def _looked(hierarchy: Hierarchy, node: Path, owner: Callable[[Path], Owner | None]) -> Looked:
    found = candidates(hierarchy, node, owner)
    taken = likely_victim(found, total_pages(hierarchy, node), None if node == hierarchy.root else str(node))
    scores: dict[str, tuple[int, int]] = {}
    for one in found:
        if one.pod is not None:
            lowest, highest = scores.get(one.pod, (one.oom_score_adj, one.oom_score_adj))
            scores[one.pod] = min(lowest, one.oom_score_adj), max(highest, one.oom_score_adj)
    if taken is None:
        return Looked(None, scores)
    process = taken.process
    names = {"pid": process.pid, "comm": process.comm, "pod": process.pod_name, "uid": process.pod}
    return Looked({**names, "points": taken.points, "rss": process.rss, "oom_score_adj": process.oom_score_adj}, scores)


#: Keys that may be missing in the answer of an older daemon.
_STATUS = ("mode", "rung", "trigger", "armed", "bound_bytes", "not_ready", "conditions", "lost")


class Sampler:
    """Looks at the node of ``config``, or of ``daemon``, which it follows; ``is_live`` as for `Node`. MonitorError."""

    def __init__(self, config: RunConfig, daemon: Daemon | None, is_live: bool) -> None:
        self.node = Node(config, daemon, is_live)
        self._trends = Trends()
        self._looks = ProcessLooks()

    def close(self) -> None:
        self.node.close()

    def sample(self) -> Frame:
        """One look. May take some seconds where a daemon hangs. Raises MonitorError."""
        self._follow()
        node = self.node
        frame = node.frame()
        pods = {pod["uid"]: pod for pod in frame["pods"]}
        sizes = {uid: pod["working_set"] for uid, pod in pods.items()}
        domains = {"node": node.path, "kubepods": node.kubepods()}
        sizes |= {name: frame[name]["working_set"] for name in domains if frame[name]}
        growth = self._trends.growth(time.monotonic(), sizes)
        looked = self._looks.look(node.hierarchy, node.path, pod_owners(node.source.pods))
        for name, path in domains.items():
            if frame[name] is not None:
                frame[name] |= {**composition(node.hierarchy, path), "growth_bytes_per_s": growth[name]}
        for uid, pod in pods.items():
            score = looked.scores.get(uid)
            pod["oom_score_adj"] = None if score is None else {"lowest": score[0], "highest": score[1]}
            pod["growth_bytes_per_s"] = growth[uid]
        frame |= {"kernel_victim": looked.victim, "daemon": self._daemon()}
        frame["problems"] = [*frame["problems"], *([looked.problem] if looked.problem else [])]
        return frame

    def _follow(self) -> None:
        """Take the daemon's configuration of now. One that does not answer keeps the last one: the frame says so."""
        node = self.node
        if node.daemon is None:
            return
        try:
            now = described(node.daemon.socket)
        except (OSError, ValueError, TypeError):
            return
        if now.config == node.daemon.config:
            node.daemon = now  # of another process, perhaps
            return
        self.node = Node(now.config, now, node.is_live)  # raises: then the old one stays
        node.close()

    def _daemon(self) -> dict[str, Any] | None:
        """The daemon that answered, and how it works; None without a daemon."""
        daemon = self.node.daemon
        if self.node.reported is None or daemon is None:
            return None
        known = {"name": daemon.name, "pid": daemon.info.hot_pid, "version": daemon.info.version}
        return known | {key: self.node.reported["status"].get(key) for key in _STATUS}
