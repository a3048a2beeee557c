"""The growth behind an episode, as most bytes taken within a time, and what was in use outside the pods meanwhile; and
from growth that was recorded: the thresholds and reservations with which eviction would have won, with the arithmetic.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from operator import itemgetter

from monitor.race.codec import Record, RecordError
from monitor.race.counterfactual import TimeSeries
from monitor.race.events import KUBEPODS, NODE, Crossing, Event, Sample
from monitor.race.facts import SIGNAL_OF, Facts, growth
from monitor.race.reaction import REACTIONS, Reaction, Survives, left_for_hold, survives

#: Times looked at, in ms: from outrace's reaction over a notified kubelet's 2.05-2.25 s to the 12 s of one that polls.
#: In between growth is taken as even.
TIMES_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 2500, 3000, 4000, 6000, 8000, 10_000, 12_500)
#: Moments that windows begin or end at; of a longer record, evenly chosen ones.
_MOST_POINTS = 2000


@dataclass(frozen=True, slots=True)
class Burst(Record):
    """How fast a domain was taken. `most`: (ms, bytes), the most its working set rose within that time. Where a kill,
    an eviction or a hold cut the record, it grows on at `rate` (bytes/s; None: it did not, or nothing cut it).
    `threshold`: the hard one in force (bytes). `beyond`: bytes that the capacity counts and the limit does not allow.
    `outside`: the most in use outside the pods (bytes), for which `reserved` were kept; None without kubepods cgroup.
    """

    signal: str
    capacity: int
    threshold: int | None
    beyond: int
    rate: float | None
    most: tuple[tuple[int, int], ...]
    outside: int | None = None
    reserved: int | None = None

    def __post_init__(self) -> None:
        times = (0, *[ms for ms, _ in self.most])
        if not self.most or any(earlier >= later for earlier, later in pairwise(times)):
            raise RecordError(f"Burst.most: must be times in order, not {self.most!r}"[:200])

    def taken(self, ms: float) -> float:
        """Most bytes that were taken within ``ms``."""
        at = bisect_left(self.most, (ms, 0))
        if at == len(self.most):
            return float(self.most[-1][1])
        t2, v2 = self.most[at]
        t1, v1 = self.most[at - 1] if at else (0, 0)
        return v1 + (v2 - v1) * (ms - t1) / (t2 - t1)


def burst(f: Facts) -> Burst | None:
    """The growth of an episode that was about a threshold; None if it was not, or too little was recorded."""
    domain = f.episode.domain
    if domain not in SIGNAL_OF or not (f.race or f.crossed_ns is not None):
        return None
    watched = [w for w in f.episode.watched if w.domain == domain]
    cut = f.cut_ns
    points = [
        (e.ts_ns, e.working_set)
        for e in f.episode.events
        if isinstance(e, Sample | Crossing) and e.domain == domain and (cut is None or e.ts_ns <= cut)
    ]
    if not watched or len(points) < 2:
        return None
    points.sort()
    rate = growth(points, cut) if cut is not None else None
    if rate is not None:
        last_ns, last = points[-1]
        on_ns = TIMES_MS[-1] * 1_000_000
        points.append((last_ns + on_ns, last + round(rate * on_ns / 1e9)))
    series = TimeSeries(points)
    hard = (w.quantity for w in watched if w.hard and w.signal == SIGNAL_OF[domain] and not w.compared)
    capacities = {w.domain: w.capacity for w in f.episode.watched}
    reserved = capacities[NODE] - capacities[KUBEPODS] if {NODE, KUBEPODS} <= capacities.keys() else None
    return Burst(
        signal=SIGNAL_OF[domain],
        capacity=watched[0].capacity,
        threshold=next(hard, None),
        beyond=max(0, watched[0].capacity - f.limit) if f.limit is not None else 0,
        rate=round(rate, 1) if rate is not None else None,
        most=tuple([(ms, _most_within(series, ms * 1_000_000)) for ms in TIMES_MS]),
        outside=None if reserved is None else _outside(f.episode.events, cut),
        reserved=reserved,
    )


def _outside(events: Iterable[Event], cut: int | None) -> int | None:
    """The most that was in use in the node and not in kubepods, of looks that read both."""
    sets: dict[int, dict[str, int]] = {}
    for e in events:
        if isinstance(e, Sample) and e.domain in (NODE, KUBEPODS) and (cut is None or e.ts_ns <= cut):
            sets.setdefault(e.ts_ns, {})[e.domain] = e.working_set
    return max([max(0, one[NODE] - one[KUBEPODS]) for one in sets.values() if len(one) == 2], default=None)


def _most_within(series: TimeSeries, ns: int) -> int:
    """The largest rise between two moments ``ns`` apart: lines are straight, so one of the two is a point's."""
    times, values = series.times, series.values
    most = 0.0
    for i in range(0, len(times), -(-len(times) // _MOST_POINTS)):
        most = max(most, series.at(times[i] + ns) - values[i], values[i] - series.at(times[i] - ns))
    return round(most)


#: A burst and the id of its incident.
Evidence = tuple[str, Burst]


@dataclass(frozen=True, slots=True)
class Arithmetic(Record):
    """What a threshold is worked out from: in `incident`, `taken` bytes within `ms` of a crossing; `through` and
    `second_line` for a reaction that brakes (bytes); `beyond` bytes above the limit. `need` is the sum.
    """

    incident: str
    ms: int
    taken: int
    through: int
    second_line: int
    beyond: int
    need: int


@dataclass(frozen=True, slots=True)
class Advised(Record):
    """The threshold for one signal and one way of reacting. `threshold` (bytes): the smallest that wins `quantile` of
    the episodes, over all phases; None: none below the capacity does. `present`: the part that the latest one in force
    wins (None: there is none). `survives`: the growth that it survives. `evidence`: the incidents, `arithmetic` the one
    that counts.
    """

    signal: str
    reaction: str
    threshold: int | None
    quantile: float
    present: float | None
    present_threshold: int | None
    capacity: int
    episodes: int
    arithmetic: Arithmetic
    survives: Survives | None
    rule: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reservation(Record):
    """What was in use outside the pods, at most: `outside` bytes, in `incident`. `reserved`: systemReserved and
    kubeReserved as they were; `short`: by how much that was too little: the machine runs out before kubepods then.
    """

    outside: int
    reserved: int
    short: int
    incident: str
    evidence: tuple[str, ...]


def advise(evidence: Sequence[Evidence], quantile: float = 0.99) -> list[Advised]:
    """``evidence`` oldest first, of one machine. Only bursts of the latest capacity count: another is another node."""
    made = []
    for signal in dict.fromkeys(burst.signal for _, burst in evidence):
        mine = [(key, burst) for key, burst in evidence if burst.signal == signal]
        capacity = mine[-1][1].capacity
        mine = [(key, burst) for key, burst in mine if burst.capacity == capacity]
        made += [_advised(mine, reaction, quantile) for reaction in REACTIONS]
    return made


def needed(burst: Burst, reaction: Reaction, ms: int) -> float:
    """Bytes that had to be available at the crossing, for a reaction that takes ``ms``."""
    return burst.beyond + reaction.need(burst.taken(ms))


def _advised(mine: Sequence[Evidence], reaction: Reaction, quantile: float) -> Advised:
    last = mine[-1][1]
    needs = sorted(
        [(needed(b, reaction, ms), key, ms, b) for key, b in mine for ms in reaction.phases_ms], key=itemgetter(0)
    )
    need, key, ms, burst = needs[min(len(needs) - 1, max(0, ceil(quantile * len(needs) - 1e-9) - 1))]
    best = int(need) + 1 if int(need) + 1 < last.capacity else None  # it is met strictly below its quantity
    present = last.threshold
    won = None if present is None else round(sum(n < present for n, _, _, _ in needs) / len(needs), 4)
    taken, through = burst.taken(ms), reaction.through or 0
    second_line = 0 if reaction.through is None else round(left_for_hold(taken, through)) - through
    return Advised(
        signal=last.signal,
        reaction=reaction.name,
        threshold=best,
        quantile=quantile,
        present=won,
        present_threshold=present,
        capacity=last.capacity,
        episodes=len(mine),
        arithmetic=Arithmetic(key, ms, round(taken), through, second_line, burst.beyond, int(need)),
        survives=None if present is None else survives(present, reaction, last.beyond),
        rule=reaction.rule,
        evidence=tuple(key for key, _ in mine),
    )


def reservation(evidence: Sequence[Evidence]) -> Reservation | None:
    """What would have to be reserved, by bursts of the latest capacity; None: it is not known what is outside pods."""
    known = [(key, b) for key, b in evidence if b.outside is not None and b.reserved is not None]
    if not known:
        return None
    last = known[-1][1]
    known = [(key, b) for key, b in known if (b.capacity, b.signal) == (last.capacity, last.signal)]
    key, most = max(known, key=lambda one: one[1].outside or 0)
    outside, reserved = most.outside or 0, last.reserved or 0
    return Reservation(outside, reserved, max(0, outside - reserved), key, tuple(key for key, _ in known))
