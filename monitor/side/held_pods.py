"""Looks at pods that are held, once a second: what waits in their sockets (`monitor.side.hold_costs`), and who waits
for a file lock of theirs.

A held pod keeps its locks, as every stopped process does. The log has it, once for each who waits; what ends the wait
is the hold's time limit.
"""

from __future__ import annotations

import threading
import time

from monitor.errors import MonitorError
from monitor.kernel.cgroup_procs import processes
from monitor.kernel.file_locks import Wait, waits_for
from monitor.kernel.procfs import Process
from monitor.link.hold_messages import Held, HoldEnded
from monitor.side.view import View

#: Between two looks while a pod is held, seconds. A look takes 0.1 ms, and 2 ms more for 1,000 sockets.
EVERY_S = 1.0
#: Times what a look took is rested, at least.
_REST = 10


class HeldPods:
    """Looks by a thread that lives as long as somebody is held."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._lock = threading.Lock()
        self._held: dict[str, Held] = {}  # by uid
        self._seen: set[tuple[str, Wait]] = set()
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None

    def held(self, message: Held) -> None:
        self._view.hold_costs.held(message)
        with self._lock:
            self._held[message.pod] = message
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="held pods", daemon=True)
                self._thread.start()

    def ended(self, message: HoldEnded) -> None:
        with self._lock:
            self._held.pop(message.pod, None)
            self._seen = {(uid, wait) for uid, wait in self._seen if uid != message.pod}
        self._changed.set()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._changed.clear()
                held = dict(self._held)
                if not held:
                    self._thread = None
                    return
            began = time.monotonic()
            for uid, message in held.items():
                self._view.hold_costs.look(uid, message.id)
                self._look(uid, message.name)
            self._changed.wait(max(EVERY_S, _REST * (time.monotonic() - began)))

    def _look(self, uid: str, name: str) -> None:
        found = self._view.pods.get(uid)
        try:
            waits = waits_for(set(processes(found.cgroup))) if found is not None else []
        except (MonitorError, OSError):
            return  # nothing can be said of it
        for wait in waits:
            with self._lock:
                if uid not in self._held or (uid, wait) in self._seen:
                    continue
                self._seen.add((uid, wait))
            with Process(wait.waiter) as process:
                comm = process.comm()
            fields = {"pod": name, "uid": uid, "waiter_pid": wait.waiter, "waiter_comm": comm}
            text = "a process waits for a file lock of a held pod"
            self._view.log_budget("warning", text, **fields, holder_pid=wait.holder, file=wait.file)
