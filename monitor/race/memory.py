"""The memory of an episode as curves: what a picture of the race is drawn from (`outrace incidents show ID --html`).

An incident outlives its samples, so a few points are kept of its thresholds' domains, or of the cgroup at its limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from monitor.policy.signals import working_set
from monitor.race.codec import Record, RecordError
from monitor.race.events import Crossing, Mark, Sample
from monitor.race.facts import SIGNAL_OF, Facts, domain_of, used_by

#: What a curve counts, where it is not what a signal takes for used.
USAGE = "usage"
#: Stretches that a curve is cut into; each keeps its least and its largest value, so no peak is lost. Of 2048 samples
#: 40 points remain, about 800 bytes of JSON.
_STRETCHES = 20
#: No cgroup has as many bytes.
_NO_SIZE = 2**63

#: (ns, bytes)
Points = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Line(Record):
    """A threshold in force (see `Watched`): crossed where `capacity` less what `signal` takes for used is below it."""

    domain: str
    signal: str
    hard: bool
    quantity: int
    capacity: int
    limit: int | None
    compared: bool


@dataclass(frozen=True, slots=True)
class Curve(Record):
    """`points`: (ms from the episode's start, bytes). `measure`: a signal (what it takes for used) or "usage". `pod`,
    `limit`: of a cgroup that was at its own.
    """

    domain: str
    pod: str | None
    measure: str
    limit: int | None
    points: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class Memory(Record):
    """The thresholds of the domains that an episode is about, and their curves; or that of a cgroup at its limit."""

    lines: tuple[Line, ...]
    curves: tuple[Curve, ...]


def stored(incident: Mapping[str, Any]) -> Memory | None:
    """What a stored incident has of it, if anything. Raises RecordError for another version's and no figures."""
    if incident.get("memory") is None:
        return None
    found = Memory.from_json(incident["memory"])
    for curve in found.curves:
        if len(curve.points) < 2 or not all(isfinite(t) and abs(value) < _NO_SIZE for t, value in curve.points):
            raise RecordError(f"Memory.curves: {curve.measure} is no curve")
    return found


def memory(f: Facts) -> Memory | None:
    """What is drawn of an episode; None if no memory was recorded."""
    episode = f.episode
    crossed = [e.domain for e in episode.events if isinstance(e, Crossing)]
    domains = [name for name in SIGNAL_OF if name == episode.domain or name in crossed]
    watched = {w.threshold: w for w in episode.watched if w.domain in domains}
    lines = [Line(w.domain, w.signal, w.hard, w.quantity, w.capacity, w.limit, w.compared) for w in watched.values()]
    curves: list[Curve] = []

    def draw(points: Iterable[tuple[int, int]], domain: str, pod: str | None, measure: str, limit: int | None) -> None:
        kept = [(round((ts - episode.start_ns) / 1e6, 2), value) for ts, value in thinned(sorted(points))]
        if len(kept) > 1:  # a dot is no curve
            curves.append(Curve(domain, pod, measure, limit, tuple(kept)))

    for domain, signal in dict.fromkeys((one.domain, one.signal) for one in lines):
        draw(_of_signal(f, domain, signal), domain, None, signal, None)
    if episode.domain not in SIGNAL_OF:
        pod = next((m.pod_name or m.pod for m in (*f.kills, *f.exiting)), None)
        draw(f.usage, episode.domain, pod, USAGE, f.limit)
    return Memory(tuple(lines), tuple(curves)) if curves else None


def thinned(points: Sequence[tuple[int, int]], stretches: int = _STRETCHES) -> Points:
    """The first, the last, and of each of so many stretches of equal length in points the least and the largest."""
    if len(points) <= 2 * stretches:
        return list(points)
    kept = {0, len(points) - 1}
    for i in range(stretches):
        stretch = range(i * len(points) // stretches, (i + 1) * len(points) // stretches)
        kept |= {min(stretch, key=lambda at: points[at][1]), max(stretch, key=lambda at: points[at][1])}
    return [points[at] for at in sorted(kept)]


def _of_signal(f: Facts, domain: str, signal: str) -> Iterator[tuple[int, int]]:
    """What the signal took for used: of samples, and of its own crossings."""
    for event in f.episode.events:
        if isinstance(event, Sample) and event.domain == domain:
            yield event.ts_ns, used_by(signal, event)
        elif isinstance(event, Crossing) and (event.domain, event.signal) == (domain, signal):
            yield event.ts_ns, event.capacity - event.available
        elif isinstance(event, Mark) and domain_of(event) == domain and signal == SIGNAL_OF[domain]:
            if event.oom_usage is not None and event.oom_inactive_file is not None:
                yield event.ts_ns, working_set(event.oom_usage, event.oom_inactive_file)
