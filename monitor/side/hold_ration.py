"""Which holds are reported one by one: one of each pod in a minute, and the first changes of its brake.

A pod that frees memory and takes it again is held and released twice a second, and on cgroup v2 its brake changes 200
times a second. Told one by one that fills log, state directory, API server and the record of the race, from which the
kills of others are dropped then. The rest is counted, and the next that is told says how many there were.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from monitor.link.hold_messages import Held, HoldEnded

MINUTE_NS = 60_000_000_000
#: Changes of the brake in a minute: beside a kubelet a hold has three (docs/hold.md).
CHANGES = 8
#: Pods that are remembered. Of more, the pod whose report is oldest is forgotten, and reported anew.
_MOST = 4096


@dataclass(slots=True)
class _Told:
    """The hold of a pod that was told last: its id, since when it counts, and what was left out after it."""

    id: int
    since_ns: int
    name: str
    changes: int = 0
    left_out: int = 0
    unsaid: int = 0  # of those, since `HoldRation.said`


class HoldRation:
    """It goes by the times of the messages: the log and the record of a race, with one each, report the same holds."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}  # by uid

    def held(self, message: Held) -> int | None:
        """None where a hold, or a change of its brake, is not told; else how many were not since the last that was."""
        told = self._told.get(message.pod)
        if told is None or message.ts_ns - told.since_ns >= MINUTE_NS:
            return self._tell(message)
        if told.id == message.id and told.changes < CHANGES:
            told.changes += 1
            return self._take(told)
        return self._leave_out(told)

    def ended(self, message: HoldEnded) -> int | None:
        """The same of the end of a hold: the end of a reported hold is reported."""
        told = self._told.get(message.pod)
        if told is None or message.ts_ns - told.since_ns >= MINUTE_NS:
            return self._tell(message)
        return self._take(told) if told.id == message.id else self._leave_out(told)

    def due_ns(self) -> int | None:
        """When `said` has something to give (CLOCK_MONOTONIC); None while nothing is left out."""
        return min((one.since_ns + MINUTE_NS for one in self._told.values() if one.unsaid), default=None)

    def said(self, now_ns: int, *, at_once: bool = False) -> Iterator[tuple[str, str, int]]:
        """Uid, name, and how many messages about it were left out, of each pod whose minute is over; each once."""
        for uid, told in self._told.items():
            if told.unsaid and (at_once or now_ns - told.since_ns >= MINUTE_NS):
                yield uid, told.name, told.unsaid
                told.unsaid = 0

    def _tell(self, message: Held | HoldEnded) -> int:
        before = self._told.pop(message.pod, None)
        made = _Told(message.id, message.ts_ns, message.name)
        if before is not None:
            made.unsaid = before.unsaid
        self._told[message.pod] = made
        if len(self._told) > _MOST:
            del self._told[next(iter(self._told))]
        return 0 if before is None else before.left_out

    @staticmethod
    def _take(told: _Told) -> int:
        found, told.left_out = told.left_out, 0
        return found

    @staticmethod
    def _leave_out(told: _Told) -> None:
        told.left_out += 1
        told.unsaid += 1
