"""The timers of the hot loop: a table of what is due when, and of what is done then.

The owner of a timer knows its due time and is asked for it; the table keeps none, so none can be stale. Times are
nanoseconds of CLOCK_MONOTONIC.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Timer(NamedTuple):
    """``due`` gives the due time, None while nothing is; ``handler`` is called with the time of the turn."""

    name: str
    due: Callable[[], int | None]
    handler: Callable[[int], object]


#: Calls a handler with the time of the turn (`monitor.hot.guard`).
Call = Callable[[Callable[[int], object], int], object]


class Timers:
    """Timers in the order in which they run where several are due."""

    def __init__(self, timers: Sequence[Timer]) -> None:
        self._timers = tuple(timers)
        self._rows = tuple((timer.due, timer.handler) for timer in timers)

    def next_ns(self) -> int | None:
        """The earliest due time; None: nothing is due before something happens."""
        earliest = None
        for due, _ in self._rows:
            at = due()
            if at is not None and (earliest is None or at < earliest):
                earliest = at
        return earliest

    def run_due(self, now_ns: int, call: Call) -> None:
        """Call the handler of each timer that is due by ``now_ns``, also where an earlier handler made it so."""
        for due, handler in self._rows:
            at = due()
            if at is not None and at <= now_ns:
                call(handler, now_ns)

    def describe(self, now_ns: int) -> str:
        """What happens next, soonest first, in ms from now: ``pass +12.5, housekeeping +870.0``."""
        dues = ((timer.due(), timer.name) for timer in self._timers)
        known = sorted((at - now_ns, name) for at, name in dues if at is not None)
        return ", ".join(f"{name} {left / 1e6:+.1f}" for left, name in known)
