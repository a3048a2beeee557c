"""Forecasts for the node, kubepods and every pod, from the flight recorder's samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from monitor.race.codec import Record
from monitor.race.events import Sample, Watched
from monitor.race.forecast import Forecast, Point, forecast


@dataclass(frozen=True, slots=True)
class DomainForecast(Record):
    """What is ahead of one domain or pod.

    `threshold`: until the nearest of its thresholds is crossed (working set); None: it has none, or nothing is known.
    `oom`: until its limit is hit by what the kernel cannot drop: usage without page cache. (With it a file copy, which
    fills every node to its limit, would be an OOM kill in a few seconds again and again.)
    """

    name: str
    pod: str | None
    threshold: Forecast | None
    oom: Forecast | None


def domain_forecasts(
    samples: Iterable[Sample], watched: Iterable[Watched] = (), at_ns: int | None = None
) -> list[DomainForecast]:
    """One forecast for each domain or cgroup among ``samples`` (in order of time), by name."""
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.domain, []).append(sample)
    levels: dict[str, int] = {}
    for w in watched:
        level = w.capacity - w.quantity
        levels[w.domain] = min(level, levels.get(w.domain, level))
    made = []
    for name in sorted(found):
        own = found[name]
        sets: list[Point] = [(s.ts_ns, s.working_set) for s in own]
        held: list[Point] = [(s.ts_ns, max(0, s.usage - s.inactive_file - s.active_file)) for s in own]
        limit = own[-1].limit
        near = forecast(sets, levels[name], at_ns) if name in levels else None
        made.append(
            DomainForecast(name, own[-1].pod, near, forecast(held, limit, at_ns) if limit is not None else None)
        )
    return made
