"""A recorded episode as a kubelet would have met it: what `counterfactual` is asked about."""

from __future__ import annotations

from monitor.policy.signals import ALLOCATABLE_MEMORY, MEMORY
from monitor.race.counterfactual import World
from monitor.race.events import KUBEPODS, NODE, Crossing, Sample
from monitor.race.facts import Facts, growth
from monitor.race.series import TimeSeries

_SIGNAL = {NODE: MEMORY, KUBEPODS: ALLOCATABLE_MEMORY}
#: A series that is made to grow on has so many points; pods are ranked by values at moments, so one line is not enough.
_POINTS = 16


def world(f: Facts) -> World | None:
    """The numbers of an episode, cut at the first eviction and extrapolated from there; None without a crossing."""
    if f.crossed_ns is None:
        return None
    acted = [e.signalled_ns or e.decision.ts_ns for e in f.evictions if not e.decision.observed]
    killed = f.kill_ns if f.race else None
    cut = min([*acted, *([killed] if killed is not None else [])], default=None)
    assumed = cut is not None and cut != killed
    oom: float | None = killed
    rate = growth(f.usage, cut) if cut is not None and assumed else None
    if assumed and cut is not None:
        oom = None
        if rate is not None and f.limit is not None and f.usage:
            oom = cut + max(0.0, f.limit - TimeSeries(f.usage).held(cut)) / rate * 1e9
    usage, sets, capacity = _domains(f)
    if not sets:
        return None
    pods = _pods(f)
    if cut is not None:
        usage = {signal: _grown_on(series, cut, oom) for signal, series in usage.items()}
        sets = {signal: _grown_on(series, cut, oom) for signal, series in sets.items()}
        pods = {uid: _grown_on(series, cut, oom) for uid, series in pods.items()}
    return World(usage, sets, capacity, f.order, pods, f.crossed_ns, oom, assumed)


def _domains(f: Facts) -> tuple[dict[str, TimeSeries], dict[str, TimeSeries], dict[str, int]]:
    """By signal: usage, working set, and the capacity that `available` is taken of."""
    usage: dict[str, TimeSeries] = {}
    sets: dict[str, TimeSeries] = {}
    capacity: dict[str, int] = {}
    for domain, signal in _SIGNAL.items():
        seen = [e for e in f.episode.events if isinstance(e, Sample | Crossing) and e.domain == domain]
        capacities = [w.capacity for w in f.episode.watched if w.domain == domain]
        capacities += [e.capacity for e in seen if isinstance(e, Crossing)]
        if seen and capacities:
            usage[signal] = TimeSeries((e.ts_ns, e.usage) for e in seen)
            sets[signal] = TimeSeries((e.ts_ns, e.working_set) for e in seen)
            capacity[signal] = capacities[0]
    return usage, sets, capacity


def _pods(f: Facts) -> dict[str, TimeSeries]:
    """The working set of each pod that was recorded."""
    points: dict[str, list[tuple[int, int]]] = {}
    for event in f.episode.events:
        if isinstance(event, Sample) and event.pod is not None and event.container is None:
            points.setdefault(event.pod, []).append((event.ts_ns, event.working_set))
    return {uid: TimeSeries(found) for uid, found in points.items()}


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
