"""The node as the helper knows it: pods, the last `state` of the hot process, memory figures."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from monitor.kernel import bounds, cgroupfs, meminfo
from monitor.kernel.bounds import Bound
from monitor.kernel.cgroupfs import Hierarchy, Reading
from monitor.kernel.charging import POLL
from monitor.kernel.oom_candidates import Owner
from monitor.kernel.pins import TRACEPOINT
from monitor.link.counters import SharedStats
from monitor.link.messages import Decision, PodHeld, SideMessage, State
from monitor.pods.model import FoundPod
from monitor.policy.pods import Pod
from monitor.policy.thresholds import Threshold
from monitor.race.events import Gone, KubeletEvicted, Refused, Stalled
from monitor.settings.config import RunConfig

if TYPE_CHECKING:
    from monitor.kernel.domains import DomainTable
    from monitor.kernel.pins import Counters, Pins

#: What other threads report to the main loop. With --evict-by api: a decision that the API server accepted or refused,
#: and the end of its pod. A pod that is reported as Evicted, for whatever reason. A pod that stalls.
OtherEviction = Decision | Refused | Gone | KubeletEvicted | Stalled


class Inbox(SimpleQueue[OtherEviction]):
    """The reports of other threads to the main loop, which ``wake()`` makes turn."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def report(self, about: OtherEviction) -> None:
        """From any thread."""
        self.put(about)
        self._wake()


@dataclass
class NodeState:
    """``capacity`` is the node's memory in bytes.

    The main loop replaces whole values (a worker ``takers``); other threads read
    them. Nothing here is locked, because nothing is changed in place.
    """

    config: RunConfig
    hierarchy: Hierarchy
    capacity: int
    hot_pid: int
    side_pid: int
    kubepods: Path | None = None
    pods: Mapping[str, FoundPod] = field(default_factory=dict)
    first_seen: Mapping[str, float] = field(default_factory=dict)  # uid -> Unix seconds
    state: State | None = None
    synced: bool = False
    held: Mapping[str, PodHeld] = field(default_factory=dict)  # uid -> the newest message about its hold
    started: float = field(default_factory=time.time)
    takers: tuple[str, ...] = ()  # the processes that take the memory while evictions are suspended, largest first
    thresholds: tuple[Threshold, ...] = ()

    @property
    def conditions(self) -> Sequence[str]:
        return self.state.conditions if self.state is not None else ()

    @property
    def met(self) -> Sequence[Mapping[str, str]]:
        return self.state.met if self.state is not None else ()

    @property
    def braked(self) -> dict[str, Any] | None:
        """Why evictions are suspended, since when, and the largest users of the memory; None while they are not."""
        braked = self.state and self.state.braked
        if braked is None:
            return None
        held_s = max(0.0, (time.monotonic_ns() - braked["since_ns"]) / 1e9)
        return {**{k: v for k, v in braked.items() if k != "since_ns"}, "held_s": held_s, "takers": list(self.takers)}

    @property
    def node_path(self) -> Path:
        return Path(self.config.node_cgroup) if self.config.node_cgroup else self.hierarchy.root

    def named_pods(self) -> dict[tuple[str, str], FoundPod]:
        """The pods by (namespace, name), as metrics name them.

        A pod that was deleted and made again has another uid and the same name: the older one is shown as ``name~uid``
        while it is there, because a series that appears twice makes the whole scrape invalid.
        """
        named: dict[tuple[str, str], FoundPod] = {}
        for found in self.pods.values():
            namespace, name = key = found.pod.namespace, found.pod.name
            if (older := named.pop(key, None)) is not None:
                named[namespace, f"{name}~{older.pod.uid}"] = older
            named[key] = found
        return named

    def is_at_cap(self, uid: str, limit: int | None) -> bool:
        """Whether this limit (bytes) is the cap that a pod is held with."""
        held = self.held.get(uid)
        return held is not None and bool(held.cap) and limit == held.cap

    def held_names(self) -> str:
        return ", ".join(sorted(held.pod_name for held in self.held.values()))

    def longest_hold_s(self) -> float:
        since = min((held.since_ns for held in self.held.values()), default=None)
        return 0.0 if since is None else max(0.0, (time.monotonic_ns() - since) / 1e9)

    def shown_holds(self) -> list[dict[str, Any]]:
        """What is shown of each held pod: bytes, and seconds since it began and until its time limit."""
        now_ns = time.monotonic_ns()
        return [
            {
                "pod": held.pod_name,
                "uid": uid,
                **{name: getattr(held, name) for name in ("reason", "brake", "usage", "signal", "available", "step")},
                "cap": held.cap or None,
                "second_line": held.second_line or None,
                "held_s": max(0.0, (now_ns - held.since_ns) / 1e9),
                "left_s": max(0.0, (held.until_ns - now_ns) / 1e9),
            }
            for uid, held in self.held.items()
        ]


def label(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.name}"


def pod_owners(pods: Mapping[str, FoundPod]) -> Callable[[Path], Owner | None]:
    """A function from a cgroup to its pod: by its own path, or by one above it."""
    owners = {path: found for found in pods.values() for path in (found.cgroup, *found.containers.values())}

    def owner(cgroup: Path) -> Owner | None:
        found = next((owners[path] for path in (cgroup, *cgroup.parents) if path in owners), None)
        return None if found is None else (found.pod.uid, label(found.pod))

    return owner


_POLL_S = 0.005


@dataclass(eq=False)
class Counts:
    """For the metrics, since the helper started."""

    decisions: Counter[str] = field(default_factory=Counter)  # by signal
    oom_kills: Counter[str] = field(default_factory=Counter)  # by scope
    given_back_bytes: int = 0  # left by evicted pods, and reclaimed by the kernel on request
    bad_messages: int = 0  # of the hot process, that could not be used


@dataclass(eq=False)
class Figures:
    """What is counted of the node's memory, and elsewhere. ``send(message)`` reaches the hot process."""

    node: NodeState
    stats: SharedStats
    send: Callable[[SideMessage], bool]
    table: DomainTable | None = None
    pins: Pins | None = None
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self._counters: Counters | None = None

    def open(self) -> None:
        """Read the programs' table from now on. Raises MonitorError."""
        from monitor.kernel.domains import DomainTable
        from monitor.kernel.pins import Counters, Pins

        pins = Pins(self.node.config.pin_dir)
        self.table = DomainTable(pins)
        self.pins, self._counters = pins, Counters(pins)

    def is_counted(self) -> bool:
        """Whether the counters are of this moment: while the fine-grained programs are detached, they stand still."""
        return bool(self.stats.get("armed") and not self.stats.get("sweep_partial"))

    def bound(self) -> Bound:
        """What can move, and for how long, before outrace knows."""
        config, wait_ns = self.node.config, self.stats.get("wait_ns")
        if not self.is_counted():
            return Bound(config.max_fill_rate * wait_ns // 1_000_000_000, wait_ns)
        rate, cpus, machine = config.max_fill_rate, os.cpu_count() or 1, not config.node_cgroup
        if config.rung == POLL:
            return bounds.looked(rate, cpus, wait_ns, machine=machine)
        only, huge_page = config.rung != TRACEPOINT, meminfo.huge_page()
        return bounds.compared(rate, cpus, huge_page, machine=machine, charges_only=only, wait_ns=wait_ns)

    def counted(self) -> dict[str, int]:
        """The programs' own counters (`monitor.kernel.wire.COUNTS`); empty without them."""
        return {} if self._counters is None else self._counters.now()

    def lost(self) -> dict[str, int]:
        """Where -> how many records were dropped there: by the programs, the rings, the channel."""
        found = {f"ring_{n.removeprefix('lost_')}": count for n, count in self.counted().items() if "lost_" in n}
        found["decode"] = self.stats.get("records_bad")
        found["channel"] = self.stats.get("channel_dropped")
        found["messages"] = self.counts.bad_messages
        return found

    def over(self, found: FoundPod) -> dict[str, int]:
        """What a pod's processes caused beyond the budgets so far, by kind (`monitor.kernel.domains.OVER`)."""
        total: dict[str, int] = {}
        if self.table is not None:
            for cgroup_id in found.cgroup_ids:
                for what, n in self.table.over(cgroup_id).items():
                    total[what] = total.get(what, 0) + n
        return total

    def used(self, path: Path, counted: bool = True, limited: bool = False) -> Reading | None:
        """A cgroup's memory: exact from the BPF table where it is watched and `is_counted` (not ``counted``: never),
        else from its files; None if it is gone. ``limited``: against its own limit, which takes 19 us (measured, cgroup
        v1).
        """
        try:
            exact = None
            if counted and self.table is not None and self.is_counted():
                exact = self.table.read(cgroupfs.cgroup_id(path))
            if exact is None:
                return cgroupfs.read_cgroup(self.node.hierarchy, path)
            return exact._replace(capacity=cgroupfs.limit(path)) if limited else exact
        except cgroupfs.CgroupGone:
            return None  # removed between two looks: the pod source reports it

    def domains(self, counted: bool = True) -> dict[str, Reading]:
        """The memory of ``node`` and, where there is one, ``kubepods``, each against the capacity the policy uses.
        ``counted`` as for `used`.
        """
        node, state = self.node, self.node.state
        observation = state.observation if state is not None else {}
        found: dict[str, Reading] = {}
        for name, path in (("node", node.node_path), ("kubepods", node.kubepods)):
            if path is None:
                continue
            if name in observation:
                capacity = observation[name]["capacity"]
            else:
                capacity = node.capacity - (node.config.reserved if name == "kubepods" else 0)
            reading = self.used(path, counted)
            if reading is not None:
                found[name] = reading._replace(capacity=capacity)
        return found


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Poll shared memory (nothing can be waited on there) until the condition holds; False if it never did."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
