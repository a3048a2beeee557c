"""What keeps the hot loop going when a system call fails: the step that made it ends, the loop does not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from monitor.kernel.troubles import TROUBLES, Trouble
from monitor.link.counters import SharedStats

#: One failure is reported again no sooner than this, with how often there was one.
REPEAT_NS = 10_000_000_000
#: Failures remembered as reported.
_MOST = 256
#: After a turn in which a step failed the next one begins no sooner than this, doubled with each such turn in a row up
#: to the second: a descriptor that stays ready because reading it fails must not take a whole CPU at real-time
#: priority. (What fails for one pod is noted where it happens and delays nobody.)
_REST_NS, _MOST_REST_NS = 100_000, 5_000_000

P = ParamSpec("P")
T = TypeVar("T")


class Guard:
    """Call it with a step of the loop; it gives what the step gave, None where a system call in it failed."""

    def __init__(self, stats: SharedStats) -> None:
        self._stats = stats
        self._failed = False
        self._rest_ns = 0
        self._reported: dict[tuple[str, int, str], tuple[int, int]] = {}  # -> reported when, and how often since

    def __call__(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return step(*args, **kwargs)
        except OSError as error:
            TROUBLES.note("loop", error)
            self._failed = True
            return None

    def turn(self) -> None:
        """A turn of the loop begins: after one that failed, a moment later."""
        if not self._failed:
            self._rest_ns = 0
            return
        self._failed = False
        self._rest_ns = min(_MOST_REST_NS, max(_REST_NS, 2 * self._rest_ns))
        time.sleep(self._rest_ns / 1e9)

    def to_report(self, now_ns: int) -> list[Trouble]:
        """Count what failed; what of it is to be reported now."""
        out = []
        for trouble in TROUBLES.take():
            self._stats.add(f"errors_{trouble.call}", trouble.times)
            key = (trouble.call, trouble.number, trouble.whose)
            reported_ns, times = self._reported.pop(key, (-REPEAT_NS, 0))
            times += trouble.times
            if now_ns - reported_ns >= REPEAT_NS:
                out.append(trouble._replace(times=times))
                reported_ns, times = now_ns, 0
            self._reported[key] = (reported_ns, times)
        while len(self._reported) > _MOST:
            del self._reported[next(iter(self._reported))]
        return out
