"""Races counted by verdict: what /metrics shows of incidents, kept in memory from the start of the side on."""

from __future__ import annotations

import threading
from bisect import bisect_left
from itertools import accumulate

from monitor.race.incident import FLAGS, VERDICTS, Incident

#: Seconds: from the fastest race measured (a page fault's worth) to a grace period.
MARGIN_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
#: Bytes: from one charge batch (64 pages) on.
MARGIN_BYTES = tuple(4**i << 18 for i in range(9))
#: Seconds by which a forecast was wrong.
FORECAST_ERROR_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class Histogram:
    """Counts by upper bound. Values are sizes: a race that was lost by 1 s counts under its own verdict."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def shown(self) -> tuple[list[tuple[str, float]], float]:
        """(upper bound, how many up to it), the last one "+Inf"; the sum of all values."""
        names = [*(f"{bound:g}" if bound < 1 else str(bound) for bound in self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True)), self._sum


class Tally:
    """Counts of verdicts and flags, margins by verdict, errors of forecasts. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.verdicts = dict.fromkeys(VERDICTS, 0)
        self.flags = dict.fromkeys(FLAGS, 0)
        self.margin_s = {name: Histogram(MARGIN_S) for name in VERDICTS}
        self.margin_bytes = {name: Histogram(MARGIN_BYTES) for name in VERDICTS}
        self.forecast_error = Histogram(FORECAST_ERROR_S)

    def count(self, incident: Incident) -> None:
        """Count one incident, when it is over."""
        with self._lock:
            self.verdicts[incident.verdict] += 1
            for flag in incident.flags:
                self.flags[flag] += 1
            if incident.margin_ms is not None:
                self.margin_s[incident.verdict].observe(abs(incident.margin_ms) / 1e3)
            if incident.margin_bytes is not None:
                self.margin_bytes[incident.verdict].observe(abs(incident.margin_bytes))

    def missed_by(self, seconds: float) -> None:
        """A forecast of a crossing was wrong by so much."""
        with self._lock:
            self.forecast_error.observe(abs(seconds))
