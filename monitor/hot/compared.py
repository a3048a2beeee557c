"""Thresholds that a kubelet would have where only outrace's own signals act: compared, so that it can be said what a
kubelet would have done. Nobody acts on them.
"""

from __future__ import annotations

from monitor.policy.synchronize import Observation
from monitor.policy.thresholds import Threshold
from monitor.sources.watch import Watch


class Compared:
    """``met``: those that are met by the last look."""

    def __init__(self) -> None:
        self.met: tuple[Threshold, ...] = ()

    def look(self, watch: Watch, seen: Observation) -> tuple[Threshold, ...]:
        """Compare a domain's; those that are not met any more."""
        now = tuple(t for t, line in zip(watch.thresholds, watch.lines, strict=True) if seen.available < line)
        over = tuple(t for t in self.met if t.signal == watch.signal and t not in now)
        self.met = (*(t for t in self.met if t.signal != watch.signal), *now)
        return over
