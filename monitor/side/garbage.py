"""Cycles are collected in quiet moments, by the main thread.

A collection delays every thread of the process: by 10 to 60 ms with 10 pods (measured, 45,000 objects), and for as long
as its own thread waits for a CPU, 130 and 242 ms beside pods that start. The interpreter itself collects where most is
allocated, which is at an eviction: the status of the pod then went out 11, 28 and 81 ms after the kill instead
of 2.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable

#: Between two collections; every so many of them takes more than the youngest, and everything.
PERIOD_S = 5.0
_MIDDLE, _FULL = 12, 120
#: Without a quiet moment for so long, as while a soft threshold stays met, garbage is collected anyway.
PATIENCE_S = 30.0
#: So many new objects, some 5 MB, are collected at once whatever happens.
MOST = 50_000
#: How soon a thread gives way to another one: at the interpreter's own 5 ms each answer of the API server that a thread
#: has waited for costs up to 5 ms beside a thread that computes.
SWITCH_S = 0.0005


class Garbage:
    """From now on the interpreter collects only beyond `MOST` new objects, and never those that exist now."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = clock() + PERIOD_S
        self._turns = 0
        sys.setswitchinterval(SWITCH_S)
        gc.collect()
        gc.freeze()
        gc.set_threshold(MOST, 1_000, 1_000)

    def turn(self, is_quiet: bool) -> int | None:
        """Collect if it is time and quiet, or long overdue; the generation that was collected."""
        if self._clock() < self._due + (0.0 if is_quiet else PATIENCE_S):
            return None
        self._turns += 1
        generation = 2 if self._turns % _FULL == 0 else 1 if self._turns % _MIDDLE == 0 else 0
        gc.collect(generation)
        self._due = self._clock() + PERIOD_S
        return generation
