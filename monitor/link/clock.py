"""What makes a time of CLOCK_MONOTONIC, which everything is recorded in, a Unix time; and when that changes."""

from __future__ import annotations

import time
from collections.abc import Callable

from monitor.race.events import Clock

#: The two clocks are adjusted to the same rate, so their difference changes only when the wall clock is set (or the
#: machine was suspended, which CLOCK_MONOTONIC does not count). What is less than this is how well it can be read.
STEP_NS = 5_000_000
#: Between two readings of the one clock that of the other is worth this much at best; a process that lost the CPU there
#: reads again.
_CLOSE_NS, _TRIES = 50_000, 5


def wall_offset_ns() -> int:
    """CLOCK_REALTIME less CLOCK_MONOTONIC, in nanoseconds."""
    best = None
    for _ in range(_TRIES):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        found = (after - before, wall - (before + after) // 2)
        best = found if best is None else min(best, found)
        if best[0] <= _CLOSE_NS:
            break
    assert best is not None
    return best[1]


class WallClock:
    """``feed`` hears of the difference at the first look, and whenever it is another one."""

    def __init__(self, feed: Callable[[Clock], None], offset_ns: Callable[[], int] = wall_offset_ns) -> None:
        self._feed = feed
        self._read_offset_ns = offset_ns
        self._offset_ns: int | None = None
        self._looked_ns = 0

    def look(self, now_ns: int) -> None:
        """To be called before an event of this moment is fed.

        What happened since the last look is dated by the new setting: an event is heard of milliseconds after it
        happened, a setting up to 10 s after it was made.
        """
        offset = self._read_offset_ns()
        if self._offset_ns is None or abs(offset - self._offset_ns) >= STEP_NS:
            self._feed(Clock(self._looked_ns + 1 if self._offset_ns is not None else now_ns, offset))
            self._offset_ns = offset
        self._looked_ns = now_ns
