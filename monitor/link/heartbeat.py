"""Whether the side still turns.

The side writes the time of every turn into the shared counters, twice a second at least, and winds up a timer that both
processes hold: the hot one sleeps until it runs out. (Looking by itself twice a second cost it 30 ms of CPU time a
minute, with a budget of 20 for all it does while it is idle.) `monitor.hot.supervise` has the rest.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from monitor.kernel.timer import Timer
from monitor.link.counters import SharedStats

#: The side's turns are this far apart at most.
HEARTBEAT_NS = 500_000_000
#: A side hangs that has not turned for twice as long. It starts in 0.5 s here, in 10 s on an emulated CPU, and stores
#: what it knows within 20 s when it ends.
MISSED_NS = 15_000_000_000


@dataclass(eq=False)
class Heartbeat:
    stats: SharedStats
    timer: Timer

    def ping(self) -> None:
        now_ns = time.monotonic_ns()
        # A system call is no part of every message.
        if now_ns - self.stats.get("side_heartbeat_ns") > HEARTBEAT_NS // 8:
            self.timer.set(MISSED_NS)
        self.stats.set("side_heartbeat_ns", now_ns)
