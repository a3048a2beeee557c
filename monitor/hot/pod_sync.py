"""The messages of the helper, and what becomes of the pods that it sends."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from monitor.errors import MonitorError
from monitor.hot.decide import Decider
from monitor.hot.evictor import Evictor
from monitor.hot.housekeeping import Housekeeping
from monitor.hot.loop import Guard
from monitor.kernel.troubles import TROUBLES
from monitor.link import channel, messages
from monitor.link.outbox import Outbox
from monitor.sources.registry import Registry

#: A pod that could not be watched, for want of a descriptor for example, is tried again so often.
RETRY_NS = 1_000_000_000
#: Messages read in one turn.
_MOST = 128
_OF_PODS = (messages.PodSeen, messages.PodGone)


@dataclass(eq=False)
class PodSync:
    """Pods come, go, and come again from a helper that was started anew; other messages go to what handles them."""

    guard: Guard
    registry: Registry
    decider: Decider
    evictor: Evictor
    housekeeping: Housekeeping
    read_events: Callable[[], object]
    outbox: Outbox

    def __post_init__(self) -> None:
        self._knows_pods = False  # a helper has sent all of them once; the sweep that counts them follows
        self._sent: set[str] = set()  # uids of the pods that this helper has sent
        self._unwatched: dict[str, messages.PodSeen] = {}  # uid -> the message of a pod that could not be watched yet
        self._retry_ns = 0
        self._is_stale = False  # the messages of this turn ask for a sweep
        decider = self.decider
        self._handlers: Mapping[type, Callable[[Any], object]] = {
            messages.PodSeen: self._came,
            messages.PodGone: lambda message: self._drop(message.uid),
            messages.Synced: self._synced,
            messages.Record: lambda _: decider.restart_recording(),
            messages.DiskFigures: decider.take_disk_figures,
            messages.Stored: lambda message: self.outbox.stored(message.total),
            messages.Answer: self.evictor.answered,
            messages.KubeletEviction: decider.holds.take_eviction,
            messages.Softened: decider.holds.take_softened,
            messages.StallCause: decider.take_stall_cause,
        }

    def begin(self) -> None:
        """Another helper is about to send all pods."""
        self._sent = set()

    def receive(self, sock: socket.socket) -> None:
        self._is_stale = False
        for message in channel.drain(sock, limit=_MOST):
            if message is None:
                break  # closed: the pidfd says the rest
            handler = self._handlers.get(type(message))
            if handler is not None:
                handler(message)
                if isinstance(message, _OF_PODS):
                    self._look_between()
        self.outbox.stats.set("pods", len(self.registry))
        if self._is_stale and self._knows_pods:  # at the start one sweep for all: 110 would take half a second
            self.housekeeping.count_pods()

    def _look_between(self) -> None:
        """A pod is added or dropped (0.1 ms), and a helper that is started again sends all: crossings do not wait."""
        self.guard(self.read_events)

    def _came(self, message: messages.PodSeen) -> None:
        self._sent.add(message.uid)
        self.guard(self._put, message)
        self._is_stale = True

    def _synced(self, _: messages.Synced) -> None:
        """A helper that was started again does not know which pods ended while no helper ran."""
        for uid in self.registry.by_uid.keys() - self._sent:
            self._drop(uid)
            self._look_between()
        if self._knows_pods:
            self.decider.holds.report_all()
        self._knows_pods = True
        self._is_stale = True

    def _put(self, message: messages.PodSeen) -> None:
        """Take in a pod. One that cannot be watched is tried again."""
        uid, name = message.uid, message.name
        again = self._unwatched.pop(uid, None) is not None
        problem = ""
        try:
            self.registry.put(message)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):
                self.outbox.log("warning", "a pod's cgroup is gone", pod=name, error=error.strerror)
            else:
                TROUBLES.note("pod", error, uid)
                problem = error.strerror or str(error)
        except MonitorError as error:
            problem = str(error)
        if problem:
            if not self._unwatched:
                self._retry_ns = time.monotonic_ns() + RETRY_NS
            self._unwatched[uid] = message
            if not again:
                self.outbox.log("error", "a pod is not watched", pod=name, problem=problem)
        self.housekeeping.find_kubepods(message)

    def retry_due_ns(self) -> int | None:
        return self._retry_ns if self._unwatched else None

    def retry(self, now_ns: int) -> None:
        self._retry_ns = now_ns + RETRY_NS
        before = len(self._unwatched)
        for message in list(self._unwatched.values()):
            self.guard(self._put, message)
            self._look_between()
        if len(self._unwatched) < before:
            self.housekeeping.count_pods(again=True)

    def _drop(self, uid: str) -> None:
        self._unwatched.pop(uid, None)
        self.decider.forget(uid)
