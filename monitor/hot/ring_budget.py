"""How much of a turn, and of the time, goes into records that are not crossings.

The hot process runs ahead of everybody (SCHED_FIFO) and its rings are filled by whoever it watches. So it reads a few
records of each ring in a turn, crossings before and in between, and over time no more than its share: then it lets the
rings be for a while. What waits there is bounded by the budgets in the programs (bpf/memcg.h: afford()).
"""

from __future__ import annotations

import time
from collections.abc import Callable

#: At most this part of the time (1/5), saved up for 20 ms at most: 2,000 steps and their ranking, say.
SHARE = 5
SAVED_NS = 20_000_000


class Ration:
    """Time that may be spent, as a debt that is paid back by waiting."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._credit_ns = SAVED_NS
        self._seen_ns = clock()
        self.until_ns = 0  # nothing is to be read before this; 0: read on

    def spend(self, began_ns: int) -> bool:
        """Time since ``began_ns`` was spent. False if that was more than there was: `until_ns` says when to go on."""
        now = self._clock()
        self._credit_ns = min(SAVED_NS, self._credit_ns + (now - self._seen_ns) // SHARE) - (now - began_ns)
        self._seen_ns = now
        if self._credit_ns < 0:
            self.until_ns = now - SHARE * self._credit_ns
        return not self.until_ns

    def is_over(self, now_ns: int) -> bool:
        """Whether a rest ends now; it is over then."""
        if not self.until_ns or now_ns < self.until_ns:
            return False
        self.until_ns = 0
        return True
