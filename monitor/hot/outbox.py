"""What the hot process sends to the side: without waiting, and again to the next side where one died before it stored
it.
"""

from __future__ import annotations

from typing import Any

from monitor.hot.supervise import Side
from monitor.link import channel
from monitor.link.counters import SharedStats
from monitor.link.messages import HotMessage, LogLine
from monitor.link.resend import KINDS, UnstoredMessages


class Outbox:
    """Sends through the channel of the side that there is."""

    def __init__(self, side: Side, stats: SharedStats) -> None:
        self._side = side
        self._stats = stats
        self._unstored = UnstoredMessages()
        self._lost = False  # a side ended since `resend` was done
        self.stored = self._unstored.stored

    def offer(self, message: HotMessage) -> bool:
        """Send without waiting; False if the channel cannot take it."""
        sock = self._side.sock
        return sock is not None and channel.send(sock, message)

    def send(self, message: HotMessage) -> None:
        """Send without waiting; what the channel cannot take is dropped and counted."""
        if self.offer(message):
            self._stats.add("channel_sent")
            self._unstored.note(message)
        elif isinstance(message, KINDS) and self._side.sock is None:
            self._unstored.note(message)  # for the next side
        else:
            self._stats.dropped(message)

    def log(self, level: str, msg: str, **fields: Any) -> None:
        self.send(LogLine(level, msg, fields))

    def side_lost(self) -> None:
        """What that side had not stored goes first into the channel of the next one."""
        self._lost = True
        self.resend()

    def resend(self) -> None:
        """Do what `side_lost` asked for, as soon as there is a channel."""
        if self._lost and self._side.sock is not None:
            self._lost = False
            self._stats.add("channel_dropped", self._unstored.resend(self.offer))
