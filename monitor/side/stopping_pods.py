"""Pods that a runtime is stopping: when their cgroup is empty. Under pressure that may be a kubelet's eviction."""

from __future__ import annotations

import time
from collections.abc import Callable

from monitor.kernel import cgroup_procs
from monitor.race.events import KUBELET, Gone
from monitor.side.view import View

#: How often a pod is looked at, and for how long: a kubelet waits 30 s for one to end.
LOOK_NS, WAIT_NS = 50_000_000, 30_000_000_000


class StoppingPods:
    """``feed`` hears of each pod when its cgroup is empty or gone."""

    def __init__(self, view: View, feed: Callable[[Gone], None]) -> None:
        self._view = view
        self._feed = feed
        self._until: dict[str, tuple[int, str]] = {}  # uid -> until when to wait, and its name
        self._looked_ns = 0

    def due_ns(self) -> int | None:
        """When to look next; None if no pod is being stopped."""
        return self._looked_ns + LOOK_NS if self._until else None

    def note(self, uid: str, name: str) -> None:
        """A runtime sent SIGKILL to a process of this pod."""
        if not self._until:
            self._looked_ns = time.monotonic_ns()
        self._until[uid] = (time.monotonic_ns() + WAIT_NS, name)

    def turn(self, now_ns: int) -> None:
        """Look which pods are empty by now."""
        if not self._until or now_ns < self._looked_ns + LOOK_NS:
            return
        self._looked_ns = now_ns
        for uid, (until, name) in list(self._until.items()):
            if self._is_empty(uid):
                del self._until[uid]
                self._feed(Gone(now_ns, uid, name, None, KUBELET))
            elif now_ns >= until:
                del self._until[uid]

    def _is_empty(self, uid: str) -> bool:
        found = self._view.pods.get(uid)
        return found is None or cgroup_procs.empty(found.cgroup)
