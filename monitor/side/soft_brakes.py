"""A thread throttles held pods that are to answer SIGTERM, in place of a freeze: the writes may take seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from monitor.actions.ledger import SIDE, Ledger
from monitor.errors import MonitorError
from monitor.hold.soft_brake import SoftBrake
from monitor.kernel.sched import hurry
from monitor.link.messages import PodReleased, SideMessage, Soften, Softened
from monitor.side.export.log import Log
from monitor.side.node_state import NodeState, label
from monitor.side.worker import Worker


class SoftBrakes:
    """A soft brake is released when its hold ends, and all of them when the daemon ends."""

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
        """A pod is not held any more."""
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
            text = "a held pod stays frozen through its grace"
            self._log.warning(text, uid=message.pod, problem=problem)
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
        text = "a held pod may run, and hardly grow"
        self._log.info(text, pod=label(found.pod), high=brake.high, took_us=took_us)
        return brake.high

    def _harden(self, uid: str) -> None:
        brake = self._brakes.pop(uid, None)
        for file, outcome in brake.harden() if brake is not None else ():
            self._log.info("memory.high or pids.max of a pod is restored", uid=uid, file=file, outcome=outcome)
