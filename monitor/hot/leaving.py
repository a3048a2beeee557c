"""A pod whose memory is coming back, and how fast the others in its domain grow meanwhile."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field

from monitor.kernel.wire import PAGE
from monitor.link.messages import Evicted

#: A pod that went and holds less than this, and what each CPU keeps of its charges (64 pages), has given all back: the
#: rest goes with its cgroup. (No part of what it had: page tables are a 512th of that, and late.)
NOTHING = (1 << 20) + 64 * PAGE * (os.cpu_count() or 1)
#: A pace of growth is taken over this.
WINDOW_NS = 10_000_000


@dataclass(slots=True)
class Leaving:
    """A pod whose last process is gone. ``held`` at the most, ``left`` of it still charged (bytes)."""

    number: int
    uid: str
    cgroup_id: int  # 0: its counters are gone
    domains: frozenset[str]  # signals of the domains that its memory counts in
    held: int
    left: int
    gone_ns: int
    moved_ns: int  # when it last gave something back
    until_ns: int  # it is counted on until then
    evicted: Evicted | None  # the message that waits for the final figure; None: others killed it
    unsure: bool  # whether somebody lives on in it is not known yet
    asked: bool = False  # the side was asked to have it reclaimed
    size: int = 0  # of processes that the OOM killer took
    kept: int = 0  # by those who live on
    killed_again: bool = False  # another process of it was killed since the side was asked who lives on

    @property
    def is_back(self) -> bool:
        return self.left < NOTHING


@dataclass(slots=True)
class Growth:
    """Of all but the dead in one domain: (ns, bytes), over the last `WINDOW_NS`."""

    samples: deque[tuple[int, int]] = field(default_factory=deque)

    def add(self, now_ns: int, others: int) -> None:
        samples = self.samples
        samples.append((now_ns, others))
        while len(samples) > 2 and samples[1][0] <= now_ns - WINDOW_NS:
            samples.popleft()

    def over(self, least_ns: int) -> tuple[int, int]:
        """Bytes and nanoseconds from the last look that is at least so old, or the first."""
        ended, now = self.samples[-1]
        began, was = next((one for one in reversed(self.samples) if ended - one[0] >= least_ns), self.samples[0])
        return now - was, ended - began
