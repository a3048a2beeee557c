"""How long to wait before the next try, as client-go's reflector does: 0.8 s, doubling to 30 s, each with jitter."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

RESET_S = 120.0


class BackOff:
    """`next_s` doubles with every failure; after `RESET_S` without one it begins anew.

    Up to ``jitter`` times the pause is added by chance, so that 5,000 nodes do not come back in step.
    """

    def __init__(
        self,
        first_s: float = 0.8,
        cap_s: float = 30.0,
        jitter: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._first_s = self._pause_s = first_s
        self._cap_s = cap_s
        self._jitter = jitter
        self._clock = clock
        self._chance = chance
        self._failed_at: float | None = None

    def next_s(self, retry_after_s: float | None = None) -> float:
        """Seconds to wait now; at least what the server asked for, of which no more than ten times the cap."""
        now = self._clock()
        if self._failed_at is not None and now - self._failed_at > RESET_S:
            self.reset()
        self._failed_at = now
        pause_s, self._pause_s = self._pause_s, min(self._cap_s, 2 * self._pause_s)
        pause_s = min(self._cap_s, pause_s * (1 + self._jitter * self._chance()))
        if retry_after_s is None:
            return pause_s
        asked_s = min(retry_after_s, 10 * self._cap_s)
        return max(pause_s, asked_s + self._jitter * self._chance() * self._first_s)

    def reset(self) -> None:
        """Begin anew: it works again."""
        self._pause_s = self._first_s
        self._failed_at = None
