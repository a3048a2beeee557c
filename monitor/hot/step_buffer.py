"""What moved lately, for the record of an incident: the kernel's step records as they came, sent on after the race.

Kept as tuples and never looked at here: one append (60 ns) is all it costs where it counts.
"""

from __future__ import annotations

from collections import deque

from monitor.kernel.wire import PAGE
from monitor.link import messages
from monitor.link.messages import Send

#: Steps of 1 MiB: the last 4 GiB that anybody took or gave back.
MOST = 4096
#: Samples in one message (some 60 bytes each; a packet holds 128 KiB).
_CHUNK = 1000

#: (time ns, cgroup id, usage, inactive file, active file), in pages
Step = tuple[int, int, int, int, int]


class Flight:
    """The last steps of every watched cgroup."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._steps: deque[Step] = deque(maxlen=MOST)
        self.note = self._steps.append

    def send(self) -> None:
        """Send the side what it was not sent yet."""
        steps = list(self._steps)
        self._steps.clear()
        for at in range(0, len(steps), _CHUNK):
            samples = [
                (ts, cgroup, usage * PAGE, inactive * PAGE, active * PAGE)
                for ts, cgroup, usage, inactive, active in steps[at : at + _CHUNK]
            ]
            self._send(messages.Flight(samples))
