"""So many requests a second on average, and no more than a second's worth at once."""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """One token a request: ``rate`` of them come each second, and at most ``burst`` wait to be taken."""

    def __init__(self, rate: float, burst: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = max(1.0, burst or rate)
        self._clock = clock
        self._tokens = self._burst
        self._at = clock()

    def take(self) -> float:
        """Take one, now or in advance; how many seconds to wait before using it."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._at) * self._rate)
        self._at = now
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._rate)
