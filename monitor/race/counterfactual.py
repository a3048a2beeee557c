"""What a kubelet would have done with the same record, by its 10 s loop, of which every phase counts alike.

The record cuts the phases into cells in which the same passes see the same thresholds met: one run of the policy's own
pass answers for a cell. An eviction or a hold cuts the record; memory then grows at the same rate up to the limit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import NamedTuple

from monitor.policy.eviction_pass import PassConfig, State, run_pass
from monitor.policy.ranking import Candidate
from monitor.policy.signals import Observation
from monitor.policy.thresholds import kubelets
from monitor.race.codec import Record
from monitor.race.events import Crossing, Sample
from monitor.race.evictions import KUBELET_MIN_GRACE_S
from monitor.race.facts import SIGNAL_OF, Facts, growth

PERIOD_NS = 10_000_000_000
#: With the least grace the SIGKILL came 2.03 s after the decision.
KILL_NS = 30_000_000
#: Passes looked at at most: 10 minutes of the loop; soft graces are shorter.
_MOST_PASSES = 60


@dataclass(frozen=True, slots=True)
class Counterfactual(Record):
    """What a kubelet would have done. Times in ms from the crossing; probabilities over all phases of its loop.

    `mode`: "poll" (earlier releases: "memcg" too). `detected`: it decides before the OOM killer comes. `in_time`: its
    victim is dead before that although it ignores SIGTERM; `in_time_if_obeying`: the same for one that dies of SIGTERM
    at once. `oom_ms`: when the OOM killer comes (None: never); `assumed`: by growing on, not by the record.
    """

    mode: str
    detected: float
    in_time: float
    in_time_if_obeying: float
    oom_ms: float | None
    assumed: bool


class _Piece(NamedTuple):
    """A decision evenly spread over [begin, end] with this probability."""

    begin: float
    end: float
    weight: float
    grace_s: int


def kubelets_answer(f: Facts, config: PassConfig) -> tuple[Counterfactual, ...]:
    """What a kubelet would have done, by its formula where thresholds have others; nothing where none was crossed."""
    seen = world(f)
    return () if seen is None else (counterfactual(seen, replace(config, thresholds=kubelets(config.thresholds))),)


def counterfactual(world: World, config: PassConfig) -> Counterfactual:
    pieces = _pieces(world, config)
    oom = inf if world.oom_ns is None else world.oom_ns
    detected = sum(p.weight * _part_before(p, oom) for p in pieces)
    in_time = sum(p.weight * _part_before(p, oom - max(KUBELET_MIN_GRACE_S, p.grace_s) * 1e9 - KILL_NS) for p in pieces)
    obeying = sum(p.weight * _part_before(p, oom - KILL_NS) for p in pieces)
    oom_ms = None if world.oom_ns is None else round((world.oom_ns - world.crossed_ns) / 1e6, 3)
    detected, in_time, obeying = (round(min(1.0, max(0.0, p)), 6) for p in (detected, in_time, obeying))
    return Counterfactual("poll", detected, in_time, obeying, oom_ms, world.assumed)


def _part_before(piece: _Piece, ts: float) -> float:
    if piece.end <= ts:
        return 1.0
    return 0.0 if piece.begin >= ts else (ts - piece.begin) / (piece.end - piece.begin)


def _pieces(world: World, config: PassConfig) -> list[_Piece]:
    """Every decision the phases lead to."""
    order = sorted(world.pods, key=config.era.memory_key)
    # The first pass of every phase sees what was before.
    corners = _corners(world, config)
    first = min([world.crossed_ns, *map(int, corners)]) - PERIOD_NS
    # The borders between phases (0 to the period) that see different things.
    edges = sorted({0.0, float(PERIOD_NS), *((t - first) % PERIOD_NS for t in corners)})
    cells = [(low, high) for low, high in pairwise(edges) if high - low > 1e-6]
    pieces = [_cell(world, config, order, first, low, high) for low, high in cells]
    return [piece for piece in pieces if piece is not None]


def _corners(world: World, config: PassConfig) -> list[float]:
    """The moments at which a threshold begins or ceases to be met, min reclaim included."""
    found: list[float] = []
    for rule in (rule for rule in config.rules if rule.signal in world.working_set):
        capacity = world.capacity[rule.signal]
        for level in {rule.threshold.quantity(capacity, with_reclaim) for with_reclaim in (False, True)}:
            found += world.working_set[rule.signal].meets(capacity - level)
    return found


def _cell(
    world: World, config: PassConfig, order: Sequence[Candidate], first: int, low: float, high: float
) -> _Piece | None:
    """The decision of one cell of phases, by the policy's passes of the phase in its middle; None: there is none."""
    state, capacity = State(), world.capacity
    for k in range(_MOST_PASSES):
        start = first + low + k * PERIOD_NS
        ts = start + (high - low) / 2
        now = round(ts)
        seen = {
            signal: Observation(capacity[signal] - round(series.at(ts)), capacity[signal], now)
            for signal, series in world.working_set.items()
        }
        state, outcome, grace_s = run_pass(config, state, seen, now, lambda _signal: order)
        if outcome.victim is not None:
            return _Piece(start, start + high - low, (high - low) / PERIOD_NS, grace_s)
    return None


class TimeSeries:
    """Bytes over time, from points (ns, bytes). Before the first point its value holds, after the last one too."""

    def __init__(self, points: Iterable[tuple[int, int]]) -> None:
        latest: dict[int, int] = dict(sorted(points))
        self.times: list[int] = list(latest)
        self.values: list[int] = list(latest.values())

    def at(self, ts: float) -> float:
        """The value on the straight line between the points around ``ts``."""
        i = bisect_right(self.times, ts)
        if i == 0:
            return self.values[0]
        if i == len(self.times):
            return self.values[-1]
        t1, t2 = self.times[i - 1], self.times[i]
        return self.values[i - 1] + (self.values[i] - self.values[i - 1]) * (ts - t1) / (t2 - t1)

    def meets(self, level: float) -> Iterator[float]:
        """When the straight lines between the points begin or cease to run above ``level``."""
        if self.values[0] > level:
            yield self.times[0]
        for (t1, v1), (t2, v2) in pairwise(zip(self.times, self.values, strict=True)):
            if (v1 > level) != (v2 > level):
                yield t1 + (level - v1) / (v2 - v1) * (t2 - t1)


# -- the record as the numbers a kubelet would have had of the node and of kubepods


@dataclass(frozen=True, slots=True)
class World:
    """A record as a kubelet's numbers, by memory signal. `oom_ns`: when the OOM killer comes (None: never)."""

    working_set: Mapping[str, TimeSeries]
    capacity: Mapping[str, int]
    pods: tuple[Candidate, ...]
    crossed_ns: int
    oom_ns: float | None
    assumed: bool = False


def world(f: Facts) -> World | None:
    """The numbers of an episode, cut at the first eviction or hold and extrapolated from there. None: no crossing."""
    if f.crossed_ns is None:
        return None
    oom: float | None = f.kill_ns if f.race else None
    cut = f.cut_ns
    assumed = cut is not None and cut != oom
    if cut is not None and assumed:
        lasts_ns = f.lasts_ns(cut)
        oom = None if lasts_ns is None else cut + lasts_ns
    sets, capacity = _domains(f)
    if not sets:
        return None
    if cut is not None:
        sets = {signal: _grown_on(series, cut, oom) for signal, series in sets.items()}
    return World(sets, capacity, f.order, f.crossed_ns, oom, assumed)


def _domains(f: Facts) -> tuple[dict[str, TimeSeries], dict[str, int]]:
    """By signal: working set, and the capacity that `available` is taken of."""
    sets: dict[str, TimeSeries] = {}
    capacity: dict[str, int] = {}
    for domain, signal in SIGNAL_OF.items():
        seen = [e for e in f.episode.events if isinstance(e, Sample | Crossing) and e.domain == domain]
        capacities = [w.capacity for w in f.episode.watched if w.domain == domain]
        capacities += [e.capacity for e in seen if isinstance(e, Crossing)]
        if seen and capacities:
            sets[signal] = TimeSeries((e.ts_ns, e.working_set) for e in seen)
            capacity[signal] = capacities[0]
    return sets, capacity


def _grown_on(series: TimeSeries, since_ns: int, until_ns: float | None) -> TimeSeries:
    """``series`` up to ``since_ns``, then growing as it did until ``until_ns`` (None: not growing)."""
    kept = [(t, v) for t, v in zip(series.times, series.values, strict=True) if t <= since_ns]
    if not kept:
        return TimeSeries([(since_ns, series.values[0])])
    rate = growth(kept, since_ns)
    last_ns, start = kept[-1]
    # Not between the points around: the next one is after the kill.
    start += round((rate or 0.0) * (since_ns - last_ns) / 1e9)
    made = [*kept, (since_ns, start)]
    if rate is not None and until_ns is not None and until_ns > since_ns:
        made.append((round(until_ns), round(start + rate * (until_ns - since_ns) / 1e9)))
    return TimeSeries(made)
