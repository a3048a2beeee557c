"""What the side was sent of races and has not stored yet: it is sent again to the side that takes its place.

A side that is killed takes with it what waited in its socket, the episode that was going on, and what waited for the
disk. The kernel's record of an OOM kill has been read by then, and would be lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from monitor.link.messages import Clear, Cross, Decision, Evicted, HotMessage, Killed, Oom

RaceMessage = Cross | Clear | Decision | Killed | Evicted | Oom
#: Types of messages that an episode is made of.
KINDS = (Cross, Clear, Decision, Killed, Evicted, Oom)
#: Messages kept at most. A kill of the OOM killer makes three; an episode is rarely more than 30.
MOST = 2048


class UnstoredMessages:
    """Both ends count the messages of `KINDS`; the side says up to which of them all is stored."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, RaceMessage]] = deque(maxlen=MOST)
        self._sent = 0

    def note(self, message: HotMessage) -> None:
        """This message was given to the side, or there is none to give it to."""
        if isinstance(message, KINDS):
            self._sent += 1
            self._kept.append((self._sent, message))

    def stored(self, count: int) -> None:
        """The side has stored all that came of its first ``count``."""
        while self._kept and self._kept[0][0] <= count:
            self._kept.popleft()

    def resend(self, offer: Callable[[HotMessage], bool]) -> int:
        """Send a new side all that is kept, in order; how many it did not take."""
        kept = [message for _, message in self._kept]
        self._kept.clear()
        self._sent = 0
        refused = 0
        for message in kept:
            if offer(message._replace(resent=True)):
                self.note(message)
            else:
                refused += 1
        return refused
