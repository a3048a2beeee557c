"""Signals that move in seconds: disks and process ids. The helper measures and ranks them, here its last word is kept.

The pass itself, over these and memory together, is made in the hot process (`monitor.hot.decide`), so that there is
one order of eviction, one state of grace periods and one set of node conditions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monitor.link.messages import DiskFigures, Reclaim, Send
from monitor.policy.layout import DELETE_IMAGES, DiskLayout, disk
from monitor.policy.releases import Era
from monitor.policy.signals import PID, Observation
from monitor.settings.config import RunConfig

#: After an eviction for a disk the hot process waits this long for space: the runtime or the kubelet removes the pod's
#: files (the kubelet waits as long for its own clean-up of a pod). Process ids are free at once.
SETTLE_NS = 30_000_000_000
#: A clean-up that has not ended after this long is not waited for: the command has 120 s.
CLEANUP_TIMEOUT_NS = 300_000_000_000


class DiskSignals:
    """What the helper reported last of the disks, process ids and local storage."""

    def __init__(self, config: RunConfig, era: Era, send: Send) -> None:
        self._enforce = config.enforce
        self._era = era
        self._layout = DiskLayout(config.layout_image_fs)
        self._commands = (DELETE_IMAGES,) if config.reclaim_images else ()
        self._send = send
        self.forget()

    def forget(self) -> None:
        """The helper is gone: its figures are not known any more, and it will not report the end of its clean-up."""
        self._observations: dict[str, Observation] = {}
        self._orders: Mapping[str, Sequence[str]] = {}
        self._violations: dict[str, str] = {}  # as a message has them, not yet acted on
        self._cleaned = False  # the numbers are those after a clean-up
        self._cleaning_until_ns = 0
        self._settling: dict[str, tuple[int, Mapping[str, Observation]]] = {}  # disk -> (until when, what was read)
        self._passed: dict[str, int] = {}  # signal -> the stamp of what was last offered to a pass to act on

    def take(self, message: DiskFigures) -> None:
        self._observations = {signal: Observation(*numbers) for signal, numbers in message.observations.items()}
        self._orders = message.orders
        # Each is sent once when it is measured, so one that could not be acted on at once is kept.
        self._violations |= message.violations
        self._cleaned = message.cleaned
        if self._cleaned:
            self._cleaning_until_ns = 0

    def next_violation(self) -> tuple[str, str] | None:
        """Uid and text of the next pod over a limit of its own local storage, which is then forgotten."""
        uid = next(iter(self._violations), None)
        return None if uid is None else (uid, self._violations.pop(uid))

    def view(self, now_ns: int) -> dict[str, Observation]:
        """The observations for a pass. A signal for which no pod can be evicted at this moment keeps its old stamp: it
        is met as before, and the pass can act on another signal.
        """
        shown = {}
        for signal, seen in self._observations.items():
            if self._is_held(signal, seen, now_ns):
                seen = seen._replace(stamp_ns=self._passed.get(signal, -1))
            else:
                self._passed[signal] = seen.stamp_ns
            shown[signal] = seen
        return shown

    def _is_held(self, signal: str, seen: Observation, now_ns: int) -> bool:
        if signal != PID:
            until_ns, before = self._settling.get(disk(signal, self._layout), (0, {}))
            if now_ns < until_ns and signal in before and seen.available <= before[signal].available:
                return True  # an evicted pod still holds what it took
        if self._enforce and not self._cleaned and self.cleanup(signal):
            return now_ns < self._cleaning_until_ns  # the clean-up is under way; if it is not, a pass must ask for it
        return not self._orders.get(signal)  # pods are still being measured, or there are only critical ones

    def cleanup(self, signal: str) -> tuple[str, ...]:
        """What would be cleaned up before a pod is evicted for ``signal``: of what the policy asks, what there is a
        command for.
        """
        return tuple(a for a in self._era.reclaim_actions(signal, self._layout) if a in self._commands)

    def evicted(self, signal: str, now_ns: int) -> None:
        if signal != PID:
            self._settling[disk(signal, self._layout)] = (now_ns + SETTLE_NS, self._observations)

    def clean(self, signal: str, now_ns: int) -> bool:
        """Have the node cleaned up before a pod is evicted for ``signal``; False if that is done, or not to be."""
        if not self._enforce or self._cleaned or not self.cleanup(signal):
            return False
        if now_ns >= self._cleaning_until_ns:
            self._cleaning_until_ns = now_ns + CLEANUP_TIMEOUT_NS
            self._send(Reclaim(signal))
        return True

    def order(self, signal: str) -> Sequence[str]:
        return self._orders.get(signal, ())
