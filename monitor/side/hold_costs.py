"""What a hold costs those who depend on the pod: connections and bytes that wait in its sockets, its probes that fail
meanwhile, and its containers that are not ready any more.

Looked at while it is held, once a second, by the thread of `monitor.side.held_pods`; what was the most is the cost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from monitor.errors import MonitorError
from monitor.kernel.cgroup_procs import processes
from monitor.kernel.sockets import waiting
from monitor.link.hold_messages import Held

if TYPE_CHECKING:
    from monitor.side.view import View

#: Holds whose cost is kept until their end is an event.
_MOST = 256
#: A first figure of probes that comes later says nothing of how many had failed as the hold began, seconds.
_FIRST_S = 3.0


class Cost(NamedTuple):
    """At the most. None: not known. ``unready``: containers that were ready before, ``restarts`` of any;
    ``failed_probes`` of any kind, by the kubelet.
    """

    connections: int | None = None
    unread: int | None = None
    unready: int | None = None
    restarts: int | None = None
    failed_probes: int | None = None


class HoldCosts:
    """By uid and id of the hold. From any thread."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._lock = threading.Lock()
        self._found: dict[tuple[str, int], Cost] = {}
        self._health: dict[tuple[str, int], Mapping[str, tuple[bool, int]] | None] = {}  # as it began
        self._began: dict[tuple[str, int], float] = {}
        self._failed: dict[tuple[str, int], Mapping[str, int]] = {}  # probes, when each was seen last
        self._probed: dict[tuple[str, int], float] = {}  # when they were looked at last

    def held(self, message: Held) -> None:
        """A hold began, or its brake changed."""
        key = (message.pod, message.id)
        with self._lock:
            if key not in self._found:
                self._found[key], self._health[key] = Cost(), self._health_of(message.pod)
                self._began[key] = time.monotonic()
                for old in list(self._found)[:-_MOST]:
                    del self._found[old], self._health[old], self._began[old]
                    self._failed.pop(old, None)
                    self._probed.pop(old, None)

    def look(self, uid: str, number: int) -> None:
        """How much waits now."""
        found = self._view.pods.get(uid)
        try:
            now = waiting(processes(found.cgroup)) if found is not None else None
        except (MonitorError, OSError):
            return  # nothing can be said of it
        self._add(uid, number, Cost() if now is None else Cost(now.connections, now.unread))

    def probed(self, uid: str, number: int, failed: Mapping[str, int]) -> None:
        """So many of each probe of the pod have failed since the kubelet runs. Nothing is known where the first look
        comes late.
        """
        key, now = (uid, number), time.monotonic()
        with self._lock:
            if key not in self._found or (key not in self._failed and now - self._began[key] > _FIRST_S):
                return
            before, more = self._failed.get(key, failed), 0
            for probe, count in failed.items():
                was = before.get(probe, 0)
                more += count - was if count >= was else count  # a kubelet that was started again counts from 0
            # Of a pod that ends the kubelet forgets one probe after the other.
            self._failed[key], self._probed[key] = {**before, **failed}, now
            self._found[key] = self._found[key]._replace(failed_probes=(self._found[key].failed_probes or 0) + more)

    def of(self, uid: str, number: int) -> Cost:
        """What a hold has cost. That no probe has failed is not known where nobody could look any more."""
        self._add(uid, number, Cost())
        with self._lock:
            found, looked = self._found.get((uid, number), Cost()), self._probed.get((uid, number), 0.0)
        is_old = time.monotonic() - looked > _FIRST_S
        return found._replace(failed_probes=found.failed_probes or None) if is_old else found

    def _add(self, uid: str, number: int, cost: Cost) -> None:
        """With what became of its containers since."""
        now, key = self._health_of(uid), (uid, number)
        with self._lock:
            before = self._health.get(key)
            if key not in self._found:
                return
            if before is not None and now is not None:
                unready = sum(was and name in now and not now[name][0] for name, (was, _) in before.items())
                restarts = sum(max(0, now[name][1] - count) for name, (_, count) in before.items() if name in now)
                cost = cost._replace(unready=unready, restarts=restarts)
            self._found[key] = Cost(*(_most(a, b) for a, b in zip(self._found[key], cost, strict=True)))

    def _health_of(self, uid: str) -> Mapping[str, tuple[bool, int]] | None:
        source = self._view.pod_source
        return None if source is None else source.health(uid)


def _most(one: int | None, other: int | None) -> int | None:
    return max((n for n in (one, other) if n is not None), default=None)
