"""The forecast that stood before the crossing that an incident is about, from what was recorded."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.race.codec import Record
from monitor.race.events import Sample
from monitor.race.facts import Facts
from monitor.race.forecast import EVERY_NS, LEVEL, SEEN_NS, TOO_FEW, Point, Points, forecast, used_by, within


@dataclass(frozen=True, slots=True)
class CrossingForecast(Record):
    """The first forecast of the last 30 s before a crossing, since the threshold was last met. In ms: made `before_ms`
    before it, of a crossing after `in_ms`, in the interval `soonest_ms`..`latest_ms` that `interval_holds` of such
    crossings fall into. `inside`: this one did. `no`: why there was none; then the rest is None.
    """

    before_ms: float | None
    in_ms: float | None
    soonest_ms: float | None
    latest_ms: float | None
    interval_holds: float
    inside: bool | None
    no: str = ""


def crossing_forecast(f: Facts) -> CrossingForecast | None:
    """None where no crossing was recorded, or nothing of before it."""
    crossing = f.crossing
    if crossing is None:
        return None
    level, at = crossing.capacity - crossing.quantity, crossing.ts_ns
    points = Points()
    for event in f.episode.events:
        if isinstance(event, Sample) and event.domain == crossing.domain and at - 2 * SEEN_NS <= event.ts_ns < at:
            points.add(event.ts_ns, used_by(crossing.signal, event))
    known: list[Point] = list(points)
    if not known:
        return None
    since = max([ts for ts, used in known if used >= level], default=0)
    no, last_ns = TOO_FEW, 0
    for n, (ts, _) in enumerate(known, 1):
        if ts < last_ns + EVERY_NS or ts < at - SEEN_NS or ts <= since:
            continue
        last_ns = ts
        made = forecast(known[:n], level)
        if made.in_ns is not None and made.soonest_ns is not None and made.latest_ns is not None:
            times = (at - ts, made.in_ns, made.soonest_ns, made.latest_ns)
            before, middle, soonest, latest = (round(ns / 1e6, 3) for ns in times)
            return CrossingForecast(before, middle, soonest, latest, LEVEL, within(made, at - ts))
        no = made.no
    return CrossingForecast(None, None, None, None, LEVEL, None, no)
