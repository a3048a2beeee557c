"""A record as the numbers a kubelet would have had of the node and of kubepods.

At an eviction, and where a pod is held, the record is cut, and memory goes on growing at the same rate up to the limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from monitor.policy.ranking import Candidate
from monitor.race.events import Crossing, Hold, Sample
from monitor.race.facts import SIGNAL_OF, Facts, growth
from monitor.race.series import TimeSeries

#: A series that is made to grow on has so many points; pods are ranked by values at moments, so one line is not enough.
_POINTS = 16


@dataclass(frozen=True, slots=True)
class World:
    """A record as the kubelet's numbers. By memory signal: the working set of its cgroup and its capacity. The pods as
    candidates. When the threshold was crossed and when the OOM killer comes (None: never).
    """

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
    acted = [e.signalled_ns or e.decision.ts_ns for e in f.evictions if not e.decision.observed]
    acted += [e.ts_ns for e in f.episode.events if isinstance(e, Hold)][:1]
    killed = f.kill_ns if f.race else None
    cut = min([*acted, *([killed] if killed is not None else [])], default=None)
    assumed = cut is not None and cut != killed
    oom: float | None = killed
    rate = growth(f.usage, cut) if cut is not None and assumed else None
    if assumed and cut is not None:
        oom = None
        if rate is not None and f.limit is not None and f.usage:
            oom = cut + max(0.0, f.limit - TimeSeries(f.usage).held(cut)) / rate * 1e9
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
        width = until_ns - since_ns
        steps = range(1, _POINTS + 1)
        made += [
            (round(since_ns + width * i / _POINTS), round(start + rate * width * i / _POINTS / 1e9)) for i in steps
        ]
    return TimeSeries(made)
