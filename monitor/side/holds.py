"""Which pods are held, for the log, metrics, events and incidents; which pods others evict, for the hot process; and
how pods that are held answer SIGTERM.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monitor.actions.ledger import SIDE, Ledger
from monitor.errors import MonitorError
from monitor.hold.soft_brake import SoftBrake
from monitor.kernel.sched import hurry
from monitor.link.messages import KubeletEviction, PodHeld, PodReleased, SideMessage, Soften, Softened
from monitor.side.export.log import Log
from monitor.side.node_state import NodeState, label
from monitor.side.worker import Worker

# Which holds are reported one by one: one of each pod in a minute, and the first changes of its brake. A pod that
# frees memory and takes it again is held and released twice a second, and on cgroup v2 its brake changes 200 times a
# second. Reported one by one, they fill log, state directory, API server and the record of the race, which then drops
# the kills of other pods. The rest is counted, and the next report has their number.
MINUTE_NS = 60_000_000_000
#: Changes of the brake in a minute: beside a kubelet a hold has three (docs/hold.md).
CHANGES = 8
#: Pods that are remembered. Of more, the pod whose report is oldest is forgotten, and reported anew.
_MOST = 4096


@dataclass(slots=True)
class _Told:
    """The hold of a pod that was reported last: its id, when its minute began, and how much was left out after it."""

    id: int
    since_ns: int
    changes: int = 0
    left_out: int = 0


class HoldRation:
    """By the times of the messages."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}  # by uid

    def take(self, message: PodHeld | PodReleased) -> int | None:
        """None: do not report this hold, change of its brake, or end. A number: report it; so many were left out
        before. The end of a reported hold is reported.
        """
        told = self._told.get(message.pod)
        if told is None or message.ts_ns - told.since_ns >= MINUTE_NS:
            self._told.pop(message.pod, None)
            self._told[message.pod] = _Told(message.hold, message.ts_ns)
            if len(self._told) > _MOST:
                del self._told[next(iter(self._told))]
            return 0 if told is None else told.left_out
        is_change = isinstance(message, PodHeld)
        if told.id != message.hold or (is_change and told.changes == CHANGES):
            told.left_out += 1
            return None
        told.changes += is_change
        found, told.left_out = told.left_out, 0
        return found


_NOT_LOGGED = ("pod", "pod_name", "hold", "hard", "ts_ns", "quantity", "order", "left_out")  # under these names
#: Pods that others evict, kept.
_MOST_EVICTED = 256
#: How the kubelet's message about an eviction for memory begins.
FOR_MEMORY = "The node was low on resource: memory."


@dataclass(eq=False)
class Holds:
    """What the node's state has of them is from here.

    ``send`` reaches the hot process, which gets the evictions by others where it holds pods (``tells``).
    """

    node: NodeState
    log: Log
    send: Callable[[KubeletEviction], bool]
    tells: bool

    def __post_init__(self) -> None:
        self.begun: Counter[str] = Counter()  # by reason
        self.ended: Counter[str] = Counter()  # by why
        self._ration = HoldRation()
        self._evicted: dict[str, int] = {}  # uid of a pod that others evict -> its hold that this was sent for

    def rationed(self, message: PodHeld | PodReleased) -> PodHeld | PodReleased:
        """The message, with how much was left out before it; None: log and record of the race leave it out too."""
        return message._replace(left_out=self._ration.take(message))

    def held(self, message: PodHeld) -> str:
        """What the pod's event is to say; "" without an event."""
        before = self.node.held.get(message.pod)
        # SIGTERM came before this hold: its grace runs.
        if self._evicted.get(message.pod, message.hold) != message.hold:
            self._evicted[message.pod] = message.hold
            self.send(KubeletEviction(message.pod, for_memory=False))
        if before is not None and before.hold == message.hold:
            if message.resent:
                return ""
            new, since_ns = False, before.since_ns
        else:
            new = True
            since_ns = message.since_ns or message.ts_ns
            self.begun[message.reason] += 1
        self.node.held = {**self.node.held, message.pod: message._replace(since_ns=since_ns)}
        if message.left_out is None:
            return ""
        fields = _logged(message, at_ns=message.ts_ns, threshold=message.quantity)
        self.log.warning("pod held" if new else "the hold of a pod changed", **fields)
        why = "it is the next to be evicted" if message.reason == "victim" else "it grows"
        left = f"{message.available >> 20}Mi of {message.signal} left"
        return f"Held ({message.brake}) because {why}, with {left}.{_more(message)}" if new else ""

    def over(self, message: PodReleased) -> str:
        """As `held`."""
        self.node.held = {uid: held for uid, held in self.node.held.items() if uid != message.pod}
        self.ended[message.why] += 1
        if message.left_out is None:
            return ""
        self.log.warning("hold ended", **_logged(message, ended_ns=message.ts_ns))
        grew = f"it grew {max(0, message.grew) >> 20}Mi"
        return f"Not held any more after {message.held_ns / 1e9:.1f} s ({message.why}); {grew}.{_more(message)}"

    def evicted(self, uid: str, message: str = "") -> None:
        """The API server reports a pod as Evicted, or as about to go. From any thread. It may be held only later: one
        that flushes at SIGTERM grows, and a hot process that was started again holds it when it knows it.
        """
        if not self.tells:
            return
        held = self.node.held.get(uid)
        self._evicted[uid] = held.hold if held is not None else 0
        for old in list(self._evicted)[:-_MOST_EVICTED]:
            self._evicted.pop(old, None)
        self.send(KubeletEviction(uid, message.startswith(FOR_MEMORY)))


def _logged(message: PodHeld | PodReleased, **more: int) -> dict[str, Any]:
    fields = {key: value for key, value in message._asdict().items() if key not in _NOT_LOGGED}
    fields |= {"id": message.hold, "uid": message.pod, "pod": message.pod_name, **more}
    return fields | {"left_out": message.left_out} if message.left_out else fields


def _more(message: PodHeld | PodReleased) -> str:
    left_out = message.left_out
    return f" {left_out} more beginnings, changes and ends of holds of it were not reported." if left_out else ""


class SoftBrakes:
    """A thread throttles held pods that are to answer SIGTERM, in place of a freeze: the writes may take seconds.

    A soft brake is released when its hold ends, and all of them when the daemon ends.
    """

    def __init__(self, node: NodeState, send: Callable[[SideMessage], bool], log: Log) -> None:
        self._node, self._send, self._log = node, send, log
        self._ledger = Ledger(Path(node.config.state_dir), SIDE)
        self._worker = Worker("soft brakes")
        self._worker.submit(hurry)  # a pod is frozen until it has its turn
        self._brakes: dict[str, SoftBrake] = {}  # by uid; the worker's own

    def soften(self, message: Soften) -> None:
        """Throttle a pod with memory.high; answer `Softened`."""
        self._worker.submit(lambda: self._soften(message))

    def ended(self, message: PodReleased) -> None:
        self._worker.submit(lambda: self._harden(message.pod))

    def close(self, timeout_s: float) -> None:
        """Release the soft brakes in force; the next start releases those for which the time is too short."""
        self._worker.submit(self._harden_all)
        self._worker.close(timeout_s)

    def _harden_all(self) -> None:
        for uid in list(self._brakes):
            self._harden(uid)

    def _soften(self, message: Soften) -> None:
        high, problem = 0, ""
        try:
            high = self._brake(message)
        except MonitorError as error:
            problem = str(error)
        except OSError as error:
            problem = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
        if problem:
            self._log.warning("a held pod stays frozen through its grace", uid=message.pod, problem=problem)
        self._send(Softened(message.id, message.pod, high, problem))

    def _brake(self, message: Soften) -> int:
        """Its memory.high, bytes. Raises MonitorError or OSError."""
        if self._node.hierarchy.version == 1:
            raise MonitorError("cgroup v1 has no memory.high", "")
        found = self._node.pods.get(message.pod)
        if found is None:
            raise MonitorError("the pod is not known any more", "")
        began = time.monotonic_ns()
        # Two requests for one pod (a decision, and the kubelet's eviction) use the same brake.
        brake = self._brakes.get(message.pod) or SoftBrake(message.pod, found.cgroup, self._ledger)
        try:
            brake.soften(message.cap, message.grace_ns / 1e9)
        except (OSError, MonitorError):
            if message.pod not in self._brakes:
                brake.harden()
            raise
        self._brakes[message.pod] = brake
        took_us = (time.monotonic_ns() - began) // 1000
        self._log.info("a held pod may run, and hardly grow", pod=label(found.pod), high=brake.high, took_us=took_us)
        return brake.high

    def _harden(self, uid: str) -> None:
        brake = self._brakes.pop(uid, None)
        for file, outcome in brake.harden() if brake is not None else ():
            self._log.info("memory.high or pids.max of a pod is restored", uid=uid, file=file, outcome=outcome)
