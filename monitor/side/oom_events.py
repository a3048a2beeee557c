"""From the records of an OOM kill (reclaim, mark, SIGKILL, exit) to the events of a race."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from monitor.kernel import cgroup_procs
from monitor.link import messages
from monitor.link.codec import event_fields
from monitor.link.messages import Oom
from monitor.policy.ranking import Candidate
from monitor.race.events import KUBELET, Event, Exit, Gone, Kill, Lost, Mark, Ranked, Reclaim
from monitor.side.cgroup_names import CgroupNames, NamedCgroup
from monitor.side.kill_confirmation import KillConfirmation, RecordedKill
from monitor.side.view import View

_Kind = TypeVar("_Kind", bound=Event)

# OOM kills on the rest of the machine, where a cgroup is treated as the node: only counted and logged. A node that is a
# cgroup shares the machine with other work, which may be killed dozens of times a second.
#: They are logged this often at most.
LOG_INTERVAL_NS = 1_000_000_000


def is_outside_node(message: Oom, node_cgroup: str | None) -> bool:
    """Whether an `oom` message is about a process outside the cgroup that is the node, and about no limit in it.

    The programs report the nearest watched cgroup around a victim, and the node is always watched: searching the tree
    of cgroups took 2.8 ms each time. Where they do not (nothing was watched while no daemon ran; before 6.8 a mark has
    no task, so no cgroup) the caller searches the tree. A machine that runs out concerns the node too.
    """
    if node_cgroup is None or message.pod or message.while_away or message.event.domain is not None:
        return False
    return bool(message.event.victim_cgroup) and (message.event.kind != "mark" or bool(message.event.oom_cgroup))


class MachineKills:
    """Counts them in ``view.kills_outside_node`` and logs them once a second, with their number."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._unlogged: Counter[str] = Counter()
        self._logged_ns = -LOG_INTERVAL_NS

    def take(self, message: Oom) -> None:
        """One step of a kill that is not the node's."""
        if message.event.kind != "mark" or message.event.exiting:
            return
        self._view.kills_outside_node += 1
        self._unlogged[message.event.victim_comm] += 1
        self.flush()

    def flush(self) -> None:
        """Log how many there were since the last line, if that is `LOG_INTERVAL_NS` ago."""
        now = time.monotonic_ns()
        if self._unlogged and now >= self._logged_ns + LOG_INTERVAL_NS:
            names = dict(self._unlogged.most_common(3))
            kills = sum(self._unlogged.values())
            self._unlogged.clear()
            self._logged_ns = now
            self._view.log.info("OOM kills on this machine outside the node's cgroup", kills=kills, victims=names)


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
    """``feed`` takes the events, in order. ``pressed()``: whether a threshold is, or was just, crossed."""

    view: View
    names: CgroupNames
    confirmation: KillConfirmation
    feed: Callable[[Event], None]
    pressed: Callable[[], bool]

    def __post_init__(self) -> None:
        self.stopping_pods = StoppingPods(self.view, self.feed)

    def handle(self, message: messages.Oom) -> None:
        event = message.event
        kind, pod = event.kind, message.pod
        if not self._is_of_the_node(message):
            return
        if kind == "mark" and not pod:  # a service's cgroup is not known by its id yet
            self.names.locate(event.victim_cgroup)
            if event.oom_cgroup:
                self.names.locate(event.oom_cgroup)
        if message.while_away and kind == "mark":
            # No daemon ran: what led to it, and what was decided, was not seen.
            for what in ("cross", "decision"):
                self.feed(Lost(event.ts_ns, event.ts_ns - 1, what, 1))
        for what in message.missing:  # without BPF: what could not be known of this kill
            if what in ("cross", "oom", "kill", "exit", "decision", "reclaim"):
                self.feed(Lost(event.ts_ns, event.ts_ns - 1, what, 1))
        victim = self.names.of_cgroup(event.victim_cgroup, pod)
        if kind == "reclaim":
            limit = self.names.of_cgroup(event.oom_cgroup) if event.oom_cgroup else None
            memcg = "global" if limit is None else limit.path
            self.feed(Reclaim(event.ts_ns, memcg, limit.pod if limit is not None else None))
        elif kind == "kill":
            self._on_kill(message, victim)
        elif kind == "exit":
            owner = (pod or victim.pod, message.pod_name or victim.name)
            self.feed(Exit(event.ts_ns, event.victim_pid, event.victim_comm, *owner))
        else:
            self._on_mark(message, victim)

    def _on_kill(self, message: messages.Oom, victim: NamedCgroup) -> None:
        event = message.event
        sender = event.invoker_pid
        kill = made(
            Kill,
            event_fields(event),
            pod=message.pod or victim.pod,
            pod_name=message.pod_name or victim.name,
            memcg=victim.path,
            sender_pid=sender,
            sender_comm=event.invoker_comm,
            ours=event.si_code != 128 and sender in (self.view.hot_pid, self.view.side_pid),
        )
        if kill.by_runtime and self.names.is_of_a_pod(event.invoker_cgroup):
            kill = replace(kill, sender_in_pod=True)
        self.feed(kill)
        if kill.by_runtime and kill.pod is not None and self.pressed():
            self.stopping_pods.note(kill.pod, kill.pod_name or kill.pod)

    def _is_of_the_node(self, message: messages.Oom) -> bool:
        """Where a cgroup is treated as the node, what is killed in the rest of the machine is no incident of this node.

        (The machine running out concerns every node. A signal or an exit counts only for a process of a pod or a
        victim.)
        """
        event = message.event
        if self.view.config.node_cgroup is None or event.kind in ("kill", "exit") or message.pod:
            return True
        if is_outside_node(message, self.view.config.node_cgroup):
            return False
        at = event.oom_cgroup
        if event.kind == "reclaim":  # frequent, and only of interest where something else happens
            return not at or self.names.knows(at)
        return not at or self.names.locate(at) or self.names.locate(event.victim_cgroup)

    def _on_mark(self, message: messages.Oom, victim: NamedCgroup) -> None:
        event = message.event
        self.feed(ranked(event.ts_ns, message.order))
        pod = message.pod or victim.pod
        at = event.oom_cgroup
        limit = self.names.of_cgroup(at, pod) if at else None
        same = event.invoker_cgroup == event.victim_cgroup
        invoker = victim if same else self.names.of_process(event.invoker_pid, event.invoker_cgroup)
        self.feed(
            made(
                Mark,
                event_fields(event),
                pod=pod,
                pod_name=message.pod_name or victim.name,
                memcg=victim.path,
                rss=event.anon_rss + event.file_rss + event.shmem_rss,
                invoker_pod=invoker.name,
                scope="global" if limit is None else limit.kind,
                oom_path=None if limit is None else limit.path,
                oom_usage=event.oom_usage if at else None,
                oom_limit=event.oom_limit if at else None,
                group=self._is_group(victim),
                held=pod is not None and self.view.holds.is_at_cap(pod, event.oom_limit),
            )
        )
        if not event.exiting and not message.while_away:  # no daemon read the log then
            kill = RecordedKill(event.ts_ns, event.victim_cgroup, victim.path, None if limit is None else limit.path)
            self.confirmation.marked(event.victim_pid, kill)

    def _is_group(self, victim: NamedCgroup) -> bool | None:
        """Whether the victim's cgroup, or one above it, is killed as a whole; None where it is gone."""
        if self.view.hierarchy.version == 1:
            return False
        path, found = self.view.hierarchy.root / victim.path.lstrip("/"), None
        while path != self.view.hierarchy.root:
            try:
                found = bool(found) or (path / "memory.oom.group").read_text().strip() == "1"
            except OSError:
                pass  # gone; what it lay in may be there
            path = path.parent
        return found


@dataclass
class StoppingPods:
    """Pods that a runtime is stopping, under pressure perhaps for a kubelet's eviction. ``feed`` gets each when its
    cgroup is empty or gone.
    """

    view: View
    feed: Callable[[Gone], None]
    _until: dict[str, tuple[int, str]] = field(default_factory=dict)  # uid -> until when to wait, and its name
    _looked_ns: int = 0

    def due_ns(self) -> int | None:
        """When to look next; None if no pod is being stopped."""
        return self._looked_ns + LOOK_NS if self._until else None

    def note(self, uid: str, name: str) -> None:
        """A runtime sent SIGKILL to a process of this pod."""
        if not self._until:
            self._looked_ns = time.monotonic_ns()
        self._until[uid] = (time.monotonic_ns() + WAIT_NS, name)

    def turn(self, now_ns: int) -> None:
        """Check which pods are empty by now."""
        if not self._until or now_ns < self._looked_ns + LOOK_NS:
            return
        self._looked_ns = now_ns
        for uid, (until, name) in list(self._until.items()):
            if self._is_empty(uid):
                del self._until[uid]
                self.feed(Gone(now_ns, uid, name, None, KUBELET))
            elif now_ns >= until:
                del self._until[uid]

    def _is_empty(self, uid: str) -> bool:
        found = self.view.pods.get(uid)
        return found is None or cgroup_procs.empty(found.cgroup)
