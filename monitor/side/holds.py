"""Which pods are held, for the log, metrics, events and incidents; which pods others evict, for the hot process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from monitor.link.messages import KubeletEviction, PodHeld, PodReleased
from monitor.side.export.log import Log
from monitor.side.node_state import NodeState

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
    """It uses the times of the messages: the log and the record of a race, with one each, report the same holds."""

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


#: A hold that is over is resent only while its end is not stored: of far fewer.
_MOST_OVER = 4096
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
        self.seconds = 0.0  # of holds that are over
        self.grown_bytes = 0  # by held pods, of holds that are over
        self._ration = HoldRation()
        self._over: dict[int, None] = {}  # ids of holds that ended, of this hot process: the last `_MOST_OVER`
        self._evicted: dict[str, int] = {}  # uid of a pod that others evict -> its hold that this was sent for

    def held(self, message: PodHeld) -> str:
        """What the pod's event is to say; "" without an event."""
        before = self.node.held.get(message.pod)
        # SIGTERM came before this hold: its grace runs.
        if self._evicted.get(message.pod, message.hold) != message.hold:
            self._evicted[message.pod] = message.hold
            self.send(KubeletEviction(message.pod, for_memory=False))
        if message.hold in self._over or (message.resent and before is not None and before.hold == message.hold):
            return ""  # it is over, or it was sent again although this helper has it
        new = before is None or before.hold != message.hold
        if before is None or new:
            since_ns = message.since_ns or message.ts_ns
            self.begun[message.reason] += 1
        else:
            since_ns = before.since_ns
        self.node.held = {**self.node.held, message.pod: message._replace(since_ns=since_ns)}
        left_out = self._ration.take(message)
        if left_out is None:
            return ""
        fields = _logged(message, left_out, held_ns=message.ts_ns, threshold=message.quantity)
        self.log.warning("pod held" if new else "the hold of a pod changed", **fields)
        why = "it is the next to be evicted" if message.reason == "victim" else "it grows"
        left = f"{message.available >> 20}Mi of {message.signal} left"
        return f"Held ({message.brake}) because {why}, with {left}.{_more(left_out)}" if new else ""

    def over(self, message: PodReleased) -> str:
        """As `held`."""
        if message.hold in self._over:
            return ""
        self._over[message.hold] = None
        if len(self._over) > _MOST_OVER:
            del self._over[next(iter(self._over))]
        self.node.held = {uid: held for uid, held in self.node.held.items() if uid != message.pod}
        self.ended[message.why] += 1
        self.seconds += message.held_ns / 1e9
        self.grown_bytes += max(0, message.grew)
        left_out = self._ration.take(message)
        if left_out is None:
            return ""
        self.log.warning("hold ended", **_logged(message, left_out, ended_ns=message.ts_ns))
        grew = f"it grew {max(0, message.grew) >> 20}Mi"
        return f"Not held any more after {message.held_ns / 1e9:.1f} s ({message.why}); {grew}.{_more(left_out)}"

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


def _logged(message: PodHeld | PodReleased, left_out: int, **more: int) -> dict[str, Any]:
    fields = {key: value for key, value in message._asdict().items() if key not in _NOT_LOGGED}
    fields |= {"id": message.hold, "uid": message.pod, "pod": message.pod_name, **more}
    return fields | {"left_out": left_out} if left_out else fields


def _more(left_out: int) -> str:
    return f" {left_out} more beginnings, changes and ends of holds of it were not reported." if left_out else ""
