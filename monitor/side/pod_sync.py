"""What `PodWatch` finds reaches the hot process, the state, the OOM scores and the log, in that order."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from monitor.actions.oomadj import OomScores
from monitor.errors import MonitorError
from monitor.link import channel
from monitor.link.messages import PodGone, PodSeen, Synced
from monitor.pods.cgroup_tree import of_pods
from monitor.pods.model import Change, FoundPod
from monitor.policy.kubelet_pass import admit
from monitor.policy.releases import era
from monitor.side.export.log import Log
from monitor.side.node_state import NodeState, label
from monitor.side.pod_watch import PodWatch, pod_message


@dataclass
class PodSync:
    """``ping()`` is called between pods: 110 of them may take longer than a heartbeat."""

    node: NodeState
    watch: PodWatch
    sock: socket.socket
    scores: OomScores
    log: Log
    ping: Callable[[], None]

    def __post_init__(self) -> None:
        self._era = era(self.node.config.policy)
        self._unsent: dict[str, bytes] = {}  # uid -> the packet about it

    @property
    def pending(self) -> bool:
        """Whether there is something to `send` again."""
        return bool(self._unsent) or not self.node.synced

    def take(self) -> Change:
        """What the watch found since the last call; the hot process gets it first."""
        total = Change()
        updated: dict[str, FoundPod] = {}
        for found in self.watch.take():
            if isinstance(found, MonitorError):
                self.log.error(str(found))
                continue
            change = self._sendable(found)
            self._update_state(change)
            for uid in change.removed:
                updated.pop(uid, None)  # `examine` forgets first: a pod that it adds after that would stay for ever
            updated |= {one.pod.uid: one for one in change.updated}
            total.removed.extend(change.removed)
            total.problems.extend(change.problems)
            total.errors.extend(change.errors)
        total.updated.extend(updated.values())
        self.send()
        return total

    def send(self) -> None:
        """Send what the hot process does not have yet; a message that is not delivered is sent again later."""
        for uid, packet in list(self._unsent.items()):
            if not channel.send_packet(self.sock, packet):
                self.log.warning("the hot process takes no messages; trying again", waiting=len(self._unsent))
                return
            del self._unsent[uid]
        if not self.node.synced and self.watch.wait_known(0):
            self.node.synced = channel.send(self.sock, Synced())

    def examine(self, change: Change, before: Mapping[str, FoundPod]) -> None:
        """Log what changed since ``before``, and look at the processes of the pods."""
        for problem in change.problems:
            (self.log.error if problem in change.errors else self.log.warning)(problem)
        for uid in change.removed:
            self.scores.remove_pod(uid)
            name = label(before[uid].pod) if uid in before else uid
            self.log.budget("info", "pod gone", pod=name, uid=uid)
            self.log.budget.forget(name)
        for found in change.updated:
            if found.pod.uid not in before:
                self._log_new(found)
            try:
                self.scores.set_pod(found)
            except MonitorError as error:
                self.log.error(str(error))
            self.ping()

    def find_kubepods(self) -> None:
        node = self.node
        node.kubepods = of_pods(node.hierarchy, node.node_path, node.pods.values(), node.config.cgroup_root)

    def _sendable(self, change: Change) -> Change:
        """The change without the pods whose message is too large: they are a problem, and not watched.

        A pod with more containers than fit (some 460) is sent without them: outrace measures and kills the pod's
        own cgroup. Otherwise such a pod would escape the ranking.
        """
        pods = self.node.pods
        sendable = Change([], [uid for uid in change.removed if uid in pods], list(change.problems), change.errors)
        for found in change.updated:
            uid = found.pod.uid
            try:
                self._unsent[uid] = _packet(pod_message(found, self._era))
                sendable.updated.append(found)
            except channel.TooLarge as error:
                remedy = "give it shorter cgroup paths"
                sendable.problems.append(f"pod {label(found.pod)} is not watched: {error}; {remedy}")
                if uid in pods:
                    sendable.removed.append(uid)
        for uid in sendable.removed:
            self._unsent[uid] = channel.encode(PodGone(uid))
        return sendable

    def _update_state(self, change: Change) -> None:
        node, now = self.node, time.time()
        if change.removed or change.updated:
            pods = {uid: found for uid, found in node.pods.items() if uid not in change.removed}
            pods |= {found.pod.uid: found for found in change.updated}
            node.pods, node.first_seen = pods, {uid: node.first_seen.get(uid, now) for uid in pods}
        # Searching for it walks the whole tree, so only when a pod says that there is one.
        if node.kubepods is None and any("kubepods" in str(found.cgroup) for found in change.updated):
            self.find_kubepods()

    def _log_new(self, found: FoundPod) -> None:
        pod, name = found.pod, label(found.pod)
        about = {"pod": name, "uid": pod.uid, "qos": self._era.qos_class(pod), "cgroup": str(found.cgroup)}
        self.log.budget("info", "pod found", **about)
        admission = admit(pod, self.node.conditions, self._era.qos_class)
        if not admission.admitted:
            refused = "a kubelet would not have admitted this pod now"
            self.log.warning(refused, pod=name, reason=admission.reason, message=admission.message)


def _packet(message: PodSeen) -> bytes:
    """Raises TooLarge."""
    try:
        return channel.encode(message)
    except channel.TooLarge:
        return channel.encode(message._replace(containers={}))
