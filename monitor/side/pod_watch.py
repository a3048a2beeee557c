"""The pods: a thread watches them, because a manifest directory on a network file system may hang for ever; what it
found reaches the hot process, the state, the OOM scores and the log, in that order.
"""

from __future__ import annotations

import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from monitor.errors import MonitorError
from monitor.kernel.procfs import readable
from monitor.link import channel
from monitor.link.messages import PodGone, PodSeen, Synced
from monitor.pods.model import Change, FoundPod, PodSource
from monitor.policy.eviction_pass import DEFAULT_POD_GRACE_S
from monitor.policy.releases import CURRENT, Era, era
from monitor.side.export.log import Log
from monitor.side.node_state import NodeState, label
from monitor.side.worker import WatchedThread

#: The least pause between two lists where no event announces a change; and after any: a user makes cgroups in a loop,
#: and each pod that comes makes ten events.
_POLL_S, _PAUSE_S = 1.0, 0.1


class PodWatch(WatchedThread):
    """Polls ``source``; ``wake_loop()`` is called when `take` has something."""

    def __init__(
        self, source: PodSource, wake_loop: Callable[[], None], on_failure: Callable[[Exception], None]
    ) -> None:
        super().__init__("pods", self._look, threading.Event(), on_failure)
        self.source = source
        self._look_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # written, the next look begins at once
        self._wake_loop = wake_loop
        self._found: queue.SimpleQueue[Change | MonitorError] = queue.SimpleQueue()
        self._known = threading.Event()
        self.wait_known = self._known.wait

    def doubt(self, uid: str) -> None:
        """Have the processes of a pod looked at again, where they say whether it may be evicted."""
        if self.source.doubt(uid):
            os.eventfd_write(self._look_fd, 1)

    def take(self) -> Iterator[Change | MonitorError]:
        """What was found since the last call, and lists that failed."""
        while self._found.qsize():
            yield self._found.get()

    def rest(self, rest_s: float | None, took_s: float) -> None:
        """Until an event or a doubt, or `_POLL_S`. Events that others cause take a sixteenth of a CPU,
        and more only where a look takes over 0.07 s: a new pod is known within a second and a look."""
        readable(self._look_fd, min(_POLL_S, max(_PAUSE_S, 15 * took_s)))
        poll = select.poll()
        for fd in (self._look_fd, self.source.fileno()):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        if any(fd == self._look_fd for fd, _ in poll.poll(1000 * (rest_s or 0.0))):
            os.eventfd_read(self._look_fd)

    def _look(self) -> float:
        """Look once; for how many seconds to wait for an event then."""
        try:
            found: Change | MonitorError = self.source.poll()
        except MonitorError as error:
            found = error
        if found != Change():
            self._found.put(found)
        if not isinstance(found, MonitorError) and self.source.is_complete:
            self._known.set()  # after the queue has it: a waiting thread finds it there
        if found != Change():
            self._wake_loop()
        return max(_POLL_S, self.source.due_s())


def pod_message(found: FoundPod, era: Era = CURRENT) -> PodSeen:
    pod = found.pod
    request, nanos = divmod(era.request(pod, "memory").nanos, 10**9)
    return PodSeen(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        priority=pod.known_priority,
        spec_known=pod.spec_known,
        request=request,
        request_nanos=nanos,
        qos=era.qos_class(pod),
        critical=era.is_critical(pod),
        grace_s=DEFAULT_POD_GRACE_S if pod.grace_period_s is None else pod.grace_period_s,
        cgroup=str(found.cgroup),
        containers={name: str(path) for name, path in found.containers.items()},
    )


@dataclass
class PodSender:
    """What the watch found: to the hot process, into the node's state, into the log."""

    node: NodeState
    watch: PodWatch
    sock: socket.socket
    log: Log

    def __post_init__(self) -> None:
        self._era = era(self.node.config.policy)
        self._unsent: dict[str, bytes] = {}  # uid -> the packet about it

    @property
    def pending(self) -> bool:
        return bool(self._unsent) or not self.node.synced

    def turn(self) -> None:
        """Pass on what the watch found since the last call; the hot process gets it first."""
        before, changes = self.node.pods, list[Change]()
        for change in self.watch.take():
            if isinstance(change, MonitorError):
                self.log.error(str(change))
                continue
            self._unsent |= {uid: channel.encode(PodGone(uid)) for uid in change.removed if uid in self.node.pods}
            self._unsent |= {one.pod.uid: _packet(pod_message(one, self._era)) for one in change.updated}
            self._update_state(change)
            changes.append(change)
        self.send()
        self._log_changes(changes, before)

    def send(self) -> None:
        """Send what the hot process does not have yet; a message that is not delivered is sent again later."""
        for uid, packet in list(self._unsent.items()):
            if not channel.send_packet(self.sock, packet):
                self.log.warning("the hot process takes no messages; trying again", waiting=len(self._unsent))
                return
            del self._unsent[uid]
        if not self.node.synced and self.watch.wait_known(0):
            self.node.synced = channel.send(self.sock, Synced())

    def _log_changes(self, changes: Iterable[Change], before: Mapping[str, FoundPod]) -> None:
        known = dict(before)
        for change in changes:
            for problem in change.problems:
                self.log.warning(problem)
            for gone in filter(None, (known.pop(uid, None) for uid in change.removed)):
                self.log.budget("info", "pod gone", pod=label(gone.pod), uid=gone.pod.uid)
                self.log.budget.left_out.pop(label(gone.pod), None)
            for found in change.updated:
                pod = found.pod
                if pod.uid not in known:
                    about = {"qos": self._era.qos_class(pod), "cgroup": str(found.cgroup)}
                    self.log.budget("info", "pod found", pod=label(pod), uid=pod.uid, **about)
                known[pod.uid] = found

    def _update_state(self, change: Change) -> None:
        node, now = self.node, time.time()
        node.kubepods = self.watch.source.kubepods
        if change.removed or change.updated:
            pods = {uid: found for uid, found in node.pods.items() if uid not in change.removed}
            pods |= {found.pod.uid: found for found in change.updated}
            node.pods, node.first_seen = pods, {uid: node.first_seen.get(uid, now) for uid in pods}


def _packet(message: PodSeen) -> bytes:
    """A pod with more containers than fit (some 460) is sent without them: outrace measures and kills the pod's own
    cgroup. Otherwise such a pod would escape the ranking.
    """
    try:
        return channel.encode(message)
    except channel.TooLarge:
        return channel.encode(message._replace(containers={}))
