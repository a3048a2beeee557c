"""Signals that move in seconds: disks and process ids. The side measures and ranks them, here its last word is kept.

The pass itself, over these and memory together, is made in the hot process (`monitor.daemon.decide`), so that there is
one order of eviction, one state of grace periods and one set of node conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from monitor.daemon.config import RunConfig
from monitor.policy.eras import Era
from monitor.policy.layout import DELETE_CONTAINERS, DELETE_IMAGES, DiskLayout
from monitor.policy.signals import PID
from monitor.policy.synchronize import Observation, all_clear
from monitor.policy.thresholds import Threshold

#: After an eviction for a disk this long is waited for something to come back: who removes the pod's files is somebody
#: else (the kubelet waits as long for its own clean-up of a pod). Process ids come back at once.
SETTLE_NS = 30_000_000_000
#: A clean-up that has not ended after this long is not waited for: the commands have 120 s each, one after the other.
CLEANUP_TIMEOUT_NS = 300_000_000_000

Tell = Callable[[dict[str, Any]], None]


class Violation(NamedTuple):
    """A pod over a limit of its own local storage, and what it is told."""

    uid: str
    message: str


class SlowSignals:
    """What the side said last of the disks, process ids and local storage."""

    def __init__(self, config: RunConfig, era: Era, thresholds: tuple[Threshold, ...], tell: Tell) -> None:
        self._enforce = config.enforce
        self._era = era
        self._thresholds = thresholds
        self._layout = DiskLayout(config.layout_image_fs, config.layout_container_fs)
        self._commands = {
            name
            for name, command in (
                (DELETE_CONTAINERS, config.reclaim_containers),
                (DELETE_IMAGES, config.reclaim_images),
            )
            if command
        }
        self._tell = tell
        self.observations: dict[str, Observation] = {}
        self.violations: list[Violation] = []  # not yet evicted
        self._orders: Mapping[str, Sequence[str]] = {}
        self._cleaned = False  # the numbers are those after a clean-up
        self._cleaning_until_ns = 0
        self._settling: dict[str, tuple[int, int]] = {}  # signal -> (until when, available at the eviction)

    def take(self, message: Mapping[str, Any]) -> None:
        """Take in a ``disks`` message (docs/architecture.md)."""
        self.observations = {signal: Observation(*numbers) for signal, numbers in message["observations"].items()}
        self._orders = message["orders"]
        self.violations = [Violation(v["uid"], v["message"]) for v in message["violations"]]
        self._cleaned = bool(message["reclaimed"])
        if self._cleaned:
            self._cleaning_until_ns = 0

    def cleanup(self, signal: str) -> tuple[str, ...]:
        """What would be cleaned up before a pod is evicted for ``signal``: of what the policy asks, what there is a
        command for.
        """
        return tuple(a for a in self._era.reclaim_actions(signal, self._layout) if a in self._commands)

    def evicted(self, signal: str, now_ns: int) -> None:
        """A pod is being evicted for ``signal``."""
        if signal != PID:
            self._settling[signal] = (now_ns + SETTLE_NS, self.observations[signal].available)

    def order(self, signal: str, observations: Mapping[str, Observation], now_ns: int) -> Sequence[str]:
        """Uids in the order of eviction for ``signal``; nobody while the node cleans up, or if that was enough, or
        while an evicted pod still holds what it took.
        """
        until_ns, available = self._settling.get(signal, (0, 0))
        if now_ns < until_ns and observations[signal].available <= available:
            return ()
        actions = self.cleanup(signal) if self._enforce else ()
        if actions and not self._cleaned:
            if now_ns >= self._cleaning_until_ns:
                self._cleaning_until_ns = now_ns + CLEANUP_TIMEOUT_NS
                self._tell({"t": "reclaim", "signal": signal, "actions": list(actions)})
            return ()
        if actions and all_clear(self._thresholds, observations):
            return ()
        return self._orders.get(signal, ())
