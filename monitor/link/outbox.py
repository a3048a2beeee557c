"""What the hot process sends to the helper, without waiting; what a dead helper had not stored, the next one gets.

A helper that is killed loses the open episode, what waited for the disk, and what it had not read. The kernel's record
of an OOM kill has been read by then, and would be lost.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from monitor.link import channel
from monitor.link.counters import SharedStats
from monitor.link.messages import HotMessage, LogLine, PodHeld, PodReleased, RaceMessage

#: Messages kept at most. A kill of the OOM killer makes three; an episode is rarely more than 30. Those about holds, of
#: which one pod makes 12 a second for as long as it likes, have room of their own: they push out no kill.
MOST, MOST_OF_HOLDS = 2048, 1024
_Kept = deque[tuple[int, RaceMessage]]


class Outbox:
    """What the helper gets: messages, through the channel that there is (``sock`` gives it), and counters. Both ends
    count each `RaceMessage`; the helper reports up to which of them all is stored.
    """

    def __init__(self, sock: Callable[[], socket.socket | None], stats: SharedStats) -> None:
        self._sock = sock
        self.stats = stats
        self._kept, self._of_holds = _Kept(), _Kept()
        self._sent = 0
        self._pushed_out = self._pushed_to = 0  # messages that found no room, and the number of the last
        self._lost = False  # a helper ended since `resend` was done

    def offer(self, message: HotMessage) -> bool:
        """Send without waiting; False if the channel cannot take it."""
        sock = self._sock()
        return sock is not None and channel.send(sock, message)

    def send(self, message: HotMessage) -> None:
        """Send without waiting; what the channel cannot take is dropped and counted."""
        if self.offer(message) or (isinstance(message, RaceMessage) and self._sock() is None):
            self._keep(message)  # in the latter case for the next helper
        else:
            self.stats.dropped(message)

    def log(self, level: str, msg: str, /, **fields: Any) -> None:
        self.send(LogLine(level, msg, fields))

    def _keep(self, message: HotMessage) -> None:
        if not isinstance(message, RaceMessage):
            return
        self._sent += 1
        is_of_hold = isinstance(message, PodHeld | PodReleased)
        kept, most = (self._of_holds, MOST_OF_HOLDS) if is_of_hold else (self._kept, MOST)
        if len(kept) >= most:
            self._pushed_out, self._pushed_to = self._pushed_out + 1, kept.popleft()[0]
        kept.append((self._sent, message))

    def stored(self, count: int) -> None:
        """The helper has stored all that came of its first ``count``."""
        for kept in (self._kept, self._of_holds):
            while kept and kept[0][0] <= count:
                kept.popleft()
        if count >= self._pushed_to:
            self._pushed_out = 0

    def side_lost(self) -> None:
        """What that helper had not stored goes first into the channel of the next one."""
        self._lost = True
        self.resend()

    def resend(self) -> None:
        """Do what `side_lost` asked for, as soon as there is a channel. What it does not take, or there was no room
        for, is counted as dropped.
        """
        if not self._lost or self._sock() is None:
            return
        kept = sorted((*self._kept, *self._of_holds), key=itemgetter(0))
        refused = self._pushed_out
        self._kept.clear()
        self._of_holds.clear()
        self._sent = self._pushed_out = self._pushed_to = 0
        self._lost = False
        for _, message in kept:
            if self.offer(message._replace(resent=True)):
                self._keep(message)
            else:
                refused += 1
        self.stats.add("channel_dropped", refused)
