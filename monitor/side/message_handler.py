"""Acts on every message of the hot process: log lines, the status of evicted pods, process_mrelease, ...

In the main loop: reaping a process, which takes long, is for workers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monitor.actions.status import EvictedPod
from monitor.errors import MonitorError
from monitor.kernel import cgroup_procs
from monitor.kernel.oom_candidates import candidates
from monitor.kernel.procfs import lives
from monitor.link import messages
from monitor.pods.model import FoundPod
from monitor.policy.kubelet_pass import container_usage, eviction_message
from monitor.policy.layout import DELETE_IMAGES
from monitor.policy.pods import Pod
from monitor.policy.quantity import Quantity
from monitor.policy.releases import era
from monitor.policy.signals import MEMORY_SIGNALS, RESOURCE
from monitor.side.disk_watch import DiskWatch
from monitor.side.export.log import Log
from monitor.side.holds import Holds, SoftBrakes
from monitor.side.node_state import Figures, NodeState, label, pod_owners
from monitor.side.worker import Worker

if TYPE_CHECKING:
    from monitor.side.cluster.cluster import Cluster

#: How many of those that have the memory are named while evictions are suspended.
_NAMED = 3


def takers(node: NodeState) -> tuple[str, ...]:
    """The largest processes that cannot be evicted, of critical pods and in no pod, with what each has in memory."""
    pods, rules = node.pods, era(node.config.policy)
    found = candidates(node.hierarchy, node.node_path, pod_owners(pods))
    outside = [p for p in found if p.pod is None or (p.pod in pods and rules.is_critical(pods[p.pod].pod))]
    largest = sorted(outside, key=lambda p: -p.rss)[:_NAMED]
    return tuple(f"{p.comm} (pid {p.pid}) in {p.pod_name or p.cgroup}: {p.rss} bytes" for p in largest)


def lives_on(cgroup: Path) -> bool:
    """Whether a process lives on in a pod. In a pod with more cgroups than are read, the kernel's flag decides: a user
    can make 1,000 empty ones, and the pending release of a dead pod has to be waited for. Raises OSError.
    """
    runs = cgroup_procs.anybody(cgroup, counts=lives)
    return cgroup_procs.populated(cgroup) is not False if runs is None else runs


#: The signal that counts a decision without a signal: a pod over a limit of its own.
LOCAL_STORAGE = "local-storage"


@dataclass(eq=False)
class MessageHandler:
    """Takes every message of the hot process: `_on_CLASS` acts on it, then ``record`` gets it."""

    figures: Figures
    holds: Holds
    disks: DiskWatch
    log: Log
    record: Callable[[messages.Message], object]
    cluster: Cluster | None = None

    def __post_init__(self) -> None:
        self.node, self.counts, self.send = self.figures.node, self.figures.counts, self.figures.send
        self.reaper = Worker("reaper")
        self._reclaimer = Worker("reclaimer")  # not the reaper: a reclaim may take seconds
        # While one look is under way, another would give the same.
        self._takers = Worker("takers", 1, on_error=self._no_takers)
        self.soft_brakes = SoftBrakes(self.node, self.send, self.log)
        self._reap_errors: set[int] = set()
        self._on_soften = self.soft_brakes.soften

    def handle(self, message: messages.Message) -> bool:
        """Act on one message; whether that was possible. If not, it is counted and logged, and the next one comes
        anyway.
        """
        handler = getattr(self, f"_on_{type(message).__name__.lower()}", None)
        try:
            if isinstance(message, messages.PodHeld | messages.PodReleased):
                message = self.holds.rationed(message)
            if handler is not None:
                handler(message)
            self.record(message)
            return True
        except (MonitorError, LookupError, TypeError, ValueError, OSError) as error:
            kind, problem = messages.NAMES[type(message)], f"{type(error).__name__}: {error}"
        self.counts.bad_messages += 1
        self.log.error("a message of the hot process cannot be used", type=kind, problem=problem)
        return False

    def _on_suspended(self, message: messages.Suspended) -> None:
        if message.resumed:
            about = {key: getattr(message, key) for key in ("ts_ns", "signal", "domain", "kind")}
            held_ns = message.ts_ns - message.since_ns
            self.log.info("evictions are resumed", was=message.reason, why=message.resumed, held_ns=held_ns, **about)
            self.node.takers = ()
            return
        left_out = ("victim", "name", "order", "resumed")
        fields = {key: value for key, value in message._asdict().items() if key not in left_out}
        self.log.warning("evictions are suspended: they would not help", kubelet_would_evict=message.name, **fields)
        self._takers.submit(self._look_for_takers)

    def _look_for_takers(self) -> None:
        """By a thread: reading the processes of the node may take some milliseconds."""
        found = takers(self.node)
        if self.node.braked is not None or not self.node.takers:
            self.node.takers = found
        self.log.warning("largest memory users outside evictable pods", takers=list(found))

    def _no_takers(self, error: Exception) -> None:
        self.log.warning("what takes the memory is not known", problem=str(error))

    def _on_podheld(self, message: messages.PodHeld) -> None:
        self._pod_event(message, "OutraceHeld", self.holds.held(message))

    def _on_podreleased(self, message: messages.PodReleased) -> None:
        self.soft_brakes.ended(message)
        self._pod_event(message, "OutraceReleased", self.holds.over(message))

    def _pod_event(self, message: messages.PodHeld | messages.PodReleased, reason: str, text: str) -> None:
        if text and self.cluster is not None:
            warns = isinstance(message, messages.PodHeld)
            self.cluster.pod_event(message.pod, message.pod_name, reason, text, warns=warns)

    def _on_logline(self, message: messages.LogLine) -> None:
        (self.log.budget if "pod" in message.fields else self.log)(message.level, message.msg, **message.fields)

    def _on_state(self, message: messages.State) -> None:
        before = self.node.conditions
        self.node.state = message
        seen = message.observation.get("node")
        if seen is not None and seen["capacity"] != self.node.capacity:
            self.node.capacity = seen["capacity"]
        if tuple(message.conditions) != tuple(before):  # a list as it comes over the socket
            self.log.warning("node conditions changed", conditions=message.conditions, before=before)

    def _on_decision(self, message: messages.Decision) -> None:
        self.counts.decisions[message.signal or LOCAL_STORAGE] += 1
        found = self.node.pods.get(message.pod)
        fields = _logged(message)
        if found is None:
            self.log.error("decided on a pod unknown here", **fields)
            return
        text, annotations = self._status_message(found.pod, message)
        fields |= {"pod": label(found.pod), "message": text}
        cluster = self.cluster
        if message.observed:
            if cluster is not None and cluster.evictions is not None:
                self.log.warning("asking the API server to evict", **fields)
                cluster.evictions.decided(message)
            else:
                self.log.warning("would evict", **fields)
            return
        if cluster is not None:  # before the log: the kubelet does not wait
            resource = RESOURCE[message.signal] if message.signal else None
            eviction = EvictedPod(found.pod, text, annotations, message.realtime, cluster.name, resource)
            signalled_ns = message.decided_ns if message.signalled_ns is None else message.signalled_ns
            cluster.evicting(eviction, signalled_ns, message.given_s > 0)
        self.log.warning("evicting", **fields)

    def _status_message(self, pod: Pod, decision: messages.Decision) -> tuple[str, dict[str, str]]:
        """The message in the evicted pod's status, and the annotations of its event."""
        signal = decision.signal
        if signal is None:
            return decision.message, {}
        resource = RESOURCE[signal]
        if signal in MEMORY_SIGNALS:
            containers: Iterable[tuple[str, int]] | None = decision.containers.items()
        else:
            stats = self.disks.pod_stats(pod.uid)
            containers = None if stats is None else container_usage(stats, resource)
        quantity, available = self._quantity(decision), decision.available
        return eviction_message(pod, resource, quantity, available, containers, decision.working_set)

    def _quantity(self, decision: messages.Decision) -> Quantity | int:
        """The threshold's value in the spelling it was configured with, as the kubelet prints it."""
        capacity, wanted = decision.capacity, (decision.signal, decision.kind == "hard", decision.quantity)
        found = (t for t in self.node.thresholds if (t.signal, t.hard, t.quantity(capacity)) == wanted)
        return next((t.value.shown(capacity) for t in found), decision.quantity)

    def _on_signalled(self, message: messages.Signalled) -> None:
        if self.cluster is not None:
            self.cluster.ended(message.pod, message.ts_ns)

    def _on_gone(self, message: messages.Gone) -> None:
        if self.cluster is not None:
            self.cluster.ended(message.pod, message.ts_ns)
        fields = {key: value for key, value in _present(message).items() if key not in ("ts_ns", "pod_name")}
        self.log.info("evicted", **fields | {"gone_ns": message.ts_ns, "uid": message.pod, "pod": message.pod_name})

    def _on_asklives(self, message: messages.AskLives) -> None:
        found = self.node.pods.get(message.pod)
        self.send(messages.Answer("left", message.id, found is not None and lives_on(found.cgroup)))

    def _on_giveback(self, message: messages.GiveBack) -> None:
        """An evicted pod keeps some of its memory: without a reclaim the next pod may be evicted for it."""
        found = self.node.pods.get(message.pod)
        self._reclaimer.submit(lambda: self._give_back(found, message.id))

    def _give_back(self, found: FoundPod | None, number: int) -> None:
        from monitor.actions.reap import give_back

        given = 0 if found is None else give_back(found.cgroup)
        if found is not None and given:
            self.counts.given_back_bytes += given
            self.log.info("the kernel took back what an evicted pod left", pod=label(found.pod), bytes=given)
        self.send(messages.Answer("giveback", number))

    def _on_reclaim(self, message: messages.Reclaim) -> None:
        self.log.info("cleaning up the node before a pod is evicted", signal=message.signal, actions=[DELETE_IMAGES])
        self.disks.reclaim()

    def _on_reap(self, message: messages.Reap) -> None:
        pids, number = list(message.pids), message.id
        self.reaper.submit(lambda: self._reap(pids, number))

    def _reap(self, pids: list[int], number: int) -> None:
        from monitor.actions.reap import reap

        for code in reap(pids):
            if code not in self._reap_errors:
                self._reap_errors.add(code)
                self.log.warning(
                    "process_mrelease failed; the kernel frees by itself", errno=code, problem=os.strerror(code)
                )
        self.send(messages.Answer("reap", number))


def _present(message: messages.Message) -> dict[str, Any]:
    """The fields by name, without optional ones that have their default."""
    defaults = message._field_defaults
    return {name: value for name, value in message._asdict().items() if name not in defaults or value != defaults[name]}


def _logged(message: messages.Decision) -> dict[str, Any]:
    """The fields of a decision in the log, beside the pod's name; none of a threshold for a pod over its own limit."""
    fields = _present(message) if message.signal is None else message._asdict()
    left_out = {"pod", "name", "order"}
    left_out |= {name for name in ("braked", "resent", "message", "cleanup", "coming") if not getattr(message, name)}
    return {key: value for key, value in fields.items() if key not in left_out} | {"uid": message.pod}
