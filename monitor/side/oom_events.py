"""From the records of an OOM kill (reclaim, mark, SIGKILL, exit) to the events of a race."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from monitor.kernel import cgroup_procs
from monitor.kernel.wire import SI_KERNEL, OomEvent
from monitor.policy.ranking import Candidate
from monitor.race.events import (
    KUBELET,
    Event,
    Exit,
    Gone,
    Kill,
    Lost,
    Mark,
    Ranked,
    Reclaim,
    Timed,
)
from monitor.side.cgroup_names import CgroupNames, NamedCgroup
from monitor.side.export.log import Log
from monitor.side.node_state import Counts, NodeState

#: What the log has of a SIGKILL. Only the mark knows whose limit was hit and what the victim held.
_OF_KILL = ("ts_ns", "victim_pid", "victim_comm", "victim_cgroup", "invoker_pid", "invoker_comm", "si_code")


_Kind = TypeVar("_Kind", bound=Timed)


#: How often a pod that a runtime stops is checked, and for how long: a kubelet waits 30 s for one to end.
LOOK_NS, WAIT_NS = 50_000_000, 30_000_000_000


def ranked(ts_ns: int, leaders: Sequence[Sequence[Any]]) -> Ranked:
    """The first candidates for eviction, as a message has them."""
    return Ranked(ts_ns, tuple([Candidate(*fields) for fields in leaders]))


def made(kind: type[_Kind], found: Mapping[str, Any], **more: Any) -> _Kind:
    """An event with the fields of a message or of a record that are called so, and ``more``."""
    names = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in found.items() if name in names} | more)


@dataclass
class OomEvents:
    """``feed`` takes the events, in order; the log has kills. ``pressed()``: whether a threshold is, or was just,
    crossed.
    """

    node: NodeState
    names: CgroupNames
    feed: Callable[[Event], None]
    pressed: Callable[[], bool]
    log: Log
    counts: Counts

    def __post_init__(self) -> None:
        # Pods that a runtime stops, under pressure perhaps for a kubelet: until when to wait, and the name.
        self._stopping: dict[str, tuple[int, str]] = {}
        self._looked_ns = 0

    def handle(self, event: OomEvent) -> None:
        kind, at = event.kind, event.oom_cgroup
        if not self._is_of_the_node(event):
            return
        if kind == "mark" and not event.pod:  # a service's cgroup is not known by its id yet
            for one in filter(None, (event.victim_cgroup, at)):
                self.names.locate(one)
        # No daemon ran: what led to it, and what was decided, was not seen. Without BPF other things are missing.
        unseen = ("cross", "decision") if event.while_away and kind == "mark" else ()
        missing = (what for what in event.missing if what in ("cross", "oom", "kill", "exit", "decision", "reclaim"))
        for what in (*unseen, *missing):
            self.feed(Lost(event.ts_ns, event.ts_ns - 1, what, 1))
        victim = self.names.of_cgroup(event.victim_cgroup, event.pod)
        event = event._replace(pod=event.pod or victim.pod, pod_name=event.pod_name or victim.name)
        limit = self.names.of_cgroup(at, event.pod) if at else NamedCgroup("global", "global")
        if kind == "reclaim":
            self.feed(Reclaim(event.ts_ns, limit.path, limit.pod))
        elif kind == "kill":
            self._on_kill(event, victim)
        elif kind == "exit":
            self.feed(Exit(event.ts_ns, event.victim_pid, event.victim_comm, event.pod, event.pod_name))
        else:
            self._on_mark(event, victim, limit)

    def _on_kill(self, event: OomEvent, victim: NamedCgroup) -> None:
        sender = event.invoker_pid
        kill = made(
            Kill,
            event._asdict(),
            memcg=victim.path,
            sender_pid=sender,
            sender_comm=event.invoker_comm,
            ours=event.si_code != SI_KERNEL and sender in (self.node.hot_pid, self.node.side_pid),
        )
        if kill.by_runtime and self.names.is_of_a_pod(event.invoker_cgroup):
            kill = replace(kill, sender_in_pod=True)
        self.feed(kill)
        if kill.foreign:  # our own kills are reported as evictions
            text = "SIGKILL by a process: no OOM kill"
            self.log.budget("info", text, pod=event.pod_name, **{key: getattr(event, key) for key in _OF_KILL})
        if kill.by_runtime and kill.pod is not None and self.pressed():
            now = time.monotonic_ns()
            self._looked_ns = self._looked_ns if self._stopping else now
            self._stopping[kill.pod] = now + WAIT_NS, kill.pod_name or kill.pod

    def due_ns(self) -> int | None:
        """When to look next; None if no pod is being stopped."""
        return self._looked_ns + LOOK_NS if self._stopping else None

    def turn(self, now_ns: int) -> None:
        """Report the pods being stopped whose cgroup is empty or gone."""
        if not self._stopping or now_ns < self._looked_ns + LOOK_NS:
            return
        self._looked_ns = now_ns
        for uid, (until, name) in list(self._stopping.items()):
            found = self.node.pods.get(uid)
            is_over = found is None or cgroup_procs.empty(found.cgroup)
            if is_over or now_ns >= until:
                del self._stopping[uid]
            if is_over:
                self.feed(Gone(now_ns, uid, name, None, KUBELET))

    def _is_of_the_node(self, event: OomEvent) -> bool:
        """Where a cgroup is treated as the node, what is killed in the rest of the machine is no incident of this node.
        (The machine running out concerns every node. A signal or an exit counts only for a process of a pod or a
        victim.)

        The programs report the nearest watched cgroup around a victim, and the node is always watched: searching the
        tree of cgroups took 2.8 ms each time. Where they do not (nothing was watched while no daemon ran; before 6.8 a
        mark has no task, so no cgroup) the tree is searched.
        """
        at = event.oom_cgroup
        if self.node.config.node_cgroup is None or event.kind in ("kill", "exit") or event.pod or not at:
            return True
        if event.kind == "reclaim":  # frequent, and only of interest where something else happens
            return self.names.knows(at)
        if event.victim_cgroup and not event.while_away:
            return event.domain is not None
        return self.names.locate(at) or self.names.locate(event.victim_cgroup)

    def _on_mark(self, event: OomEvent, victim: NamedCgroup, limit: NamedCgroup) -> None:
        self.feed(ranked(event.ts_ns, event.order))
        at = event.oom_cgroup
        same = event.invoker_cgroup == event.victim_cgroup
        invoker = victim if same else self.names.of_process(event.invoker_pid, event.invoker_cgroup)
        mark = made(
            Mark,
            event._asdict(),
            memcg=victim.path,
            rss=event.anon_rss + event.file_rss + event.shmem_rss,
            invoker_pod=invoker.name,
            scope=limit.kind,
            oom_path=limit.path if at else None,
            oom_usage=event.oom_usage if at else None,
            oom_limit=event.oom_limit if at else None,
            group=self._is_group(victim),
            held=event.pod is not None and self.node.is_at_cap(event.pod, event.oom_limit),
        )
        self.feed(mark)
        self._log_mark(event)

    def _log_mark(self, event: OomEvent) -> None:
        left_out = {"kind", "pod", "pod_name"}
        left_out |= {name for name in ("order", "missing", "source", "resent") if not getattr(event, name)}
        fields = {name: value for name, value in event._asdict().items() if name not in left_out}
        scope = "memcg" if event.oom_cgroup or "oom" in event.missing else "global"
        level, text = "warning", "the kernel's OOM killer killed a process"
        if event.exiting:
            level, text = "info", "OOM killer chose a process that was exiting anyway"
        else:
            self.counts.oom_kills[scope] += 1
        self.log.budget(level, text, pod=event.pod_name, scope=scope, **fields)

    def _is_group(self, victim: NamedCgroup) -> bool | None:
        """Whether the victim's cgroup, or one above it, is killed as a whole; None where it is gone."""
        if self.node.hierarchy.version == 1:
            return False
        path, found = self.node.hierarchy.root / victim.path.lstrip("/"), None
        while path != self.node.hierarchy.root:
            try:
                found = bool(found) or (path / "memory.oom.group").read_text().strip() == "1"
            except OSError:
                pass  # gone; what it lay in may be there
            path = path.parent
        return found
