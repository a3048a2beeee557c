"""The memory of an episode as curves: what a picture of the race is drawn from (`outrace incidents show ID --html`).

An incident outlives its samples, so a few points are kept of its thresholds' domains and of the pods in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

from monitor.policy.signals import working_set
from monitor.race.codec import Record, RecordError
from monitor.race.episode import Episode
from monitor.race.events import Crossing, Decided, Gone, Mark, PodHeld, Ranked, Sample
from monitor.race.facts import SIGNAL_OF, Facts, domain_of, used_by

#: What a curve counts, where it is not what a signal takes for used.
WORKING_SET, USAGE = "working_set", "usage"
#: Stretches that a curve is cut into; each keeps its least and its largest value, so no peak is lost. Of 2048 samples
#: 40 points remain, about 800 bytes of JSON.
_STRETCHES = 20
#: Pods that only grew, beside those that were evicted, held or killed, and pods in all.
_GROWERS, _PODS = 4, 8
#: Growth below 1 MiB started nothing.
_NOTABLE = 2**20

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
    """`points`: (ms from the episode's start, bytes). `measure`: a signal (what it takes for used), "working_set" or
    "usage". `limit`: the cgroup's own, if it was hit.
    """

    domain: str
    pod: str | None
    measure: str
    limit: int | None
    points: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class Memory(Record):
    """The thresholds of the domains that an episode is about, their curves, and those of pods."""

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
        draw(_of_usage(episode), episode.domain, pod, USAGE, f.limit)
    names = pod_names(episode)
    for domain, uid in _pods(f):
        draw(_of_pod(episode, domain, uid), domain, names.get(uid, uid), WORKING_SET, None)
    return Memory(tuple(lines), tuple(curves)) if curves else None


class Growth(NamedTuple):
    """What a domain's working set grew by between the first sample of the record and the last before the start."""

    domain: str
    first: Sample
    last: Sample

    @property
    def bytes(self) -> int:
        return self.last.working_set - self.first.working_set

    @property
    def seconds(self) -> float:
        return round((self.last.ts_ns - self.first.ts_ns) / 1e9, 3)


def growth_before(episode: Episode) -> list[Growth]:
    """Every domain and cgroup that was sampled before the start, the one that grew most first."""
    first: dict[str, Sample] = {}
    last: dict[str, Sample] = {}
    for event in episode.events:
        if isinstance(event, Sample) and event.ts_ns <= episode.start_ns:
            first.setdefault(event.domain, event)
            last[event.domain] = event
    return sorted((Growth(name, first[name], last[name]) for name in first), key=lambda g: (-g.bytes, g.domain))


def pod_names(episode: Episode) -> dict[str, str]:
    """Uid -> namespace/name of every pod that was ranked."""
    return {c.uid: f"{c.namespace}/{c.name}" for e in episode.events if isinstance(e, Ranked) for c in e.order}


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


def _of_pod(episode: Episode, domain: str, uid: str) -> Points:
    """Samples of a pod, and what it had left when it was gone: the next sample may come a second later."""
    points: Points = []
    for event in episode.events:
        if isinstance(event, Sample) and event.domain == domain:
            points.append((event.ts_ns, event.working_set))
        elif isinstance(event, Gone) and event.pod == uid and event.freed is not None and points:
            points.append((event.settled_ns or event.ts_ns, max(0, points[-1][1] - event.freed)))
    return points


def _of_usage(episode: Episode) -> Iterator[tuple[int, int]]:
    for event in episode.events:
        if isinstance(event, Sample) and event.domain == episode.domain:
            yield event.ts_ns, event.usage
        elif isinstance(event, Mark) and event.oom_path == episode.domain and event.oom_usage is not None:
            yield event.ts_ns, event.oom_usage


def _pods(f: Facts) -> list[tuple[str, str]]:
    """(domain, uid) of the pods to draw: evicted, held and killed ones first, then those that grew most."""
    of_uid = {e.pod: e.domain for e in f.episode.events if isinstance(e, Sample) and e.pod}
    taking_part = [e.pod for e in f.episode.events if isinstance(e, Decided | PodHeld)] + [m.pod for m in f.kills]
    growers = [g.last.pod for g in growth_before(f.episode) if g.bytes >= _NOTABLE and g.last.pod][:_GROWERS]
    uids = [uid for uid in dict.fromkeys((*taking_part, *growers)) if uid in of_uid]
    return [(of_uid[uid], uid) for uid in uids if uid is not None and of_uid[uid] != f.episode.domain][:_PODS]
