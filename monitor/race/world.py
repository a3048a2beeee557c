"""A record as the numbers a kubelet would have had: of the node, of kubepods, of every pod.

At an eviction, and where a pod is held, the record is cut, and memory goes on growing at the same rate up to the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from monitor.policy.ranking import Candidate, Key
from monitor.race.events import KUBELET, Crossing, Hold, Sample, WorkingSets
from monitor.race.evictions import KUBELET_MIN_GRACE_S
from monitor.race.facts import SIGNAL_OF, Facts, growth
from monitor.race.figure_age import FigureAge, PodHistory, figure_age
from monitor.race.series import TimeSeries

#: A series that is made to grow on has so many points; pods are ranked by values at moments, so one line is not enough.
_POINTS = 16
#: Samples of this last part before a crossing are of counters that are up to date, and closer together.
_NEAR_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class World:
    """A record as the kubelet's numbers. By memory signal: the working set of its cgroup and its capacity. The pods as
    candidates, and what is known of them. When the threshold was crossed and when the OOM killer comes (None: never).
    """

    working_set: Mapping[str, TimeSeries]
    capacity: Mapping[str, int]
    pods: tuple[Candidate, ...]
    history: PodHistory
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
    history = pod_history(f)
    if cut is not None:
        sets = {signal: _grown_on(series, cut, oom) for signal, series in sets.items()}
        grown = {uid: _grown_on(series, cut, oom) for uid, series in history.series.items()}
        history = replace(history, series=grown)
    return World(sets, capacity, f.order, history, f.crossed_ns, oom, assumed)


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


def pod_history(f: Facts) -> PodHistory:
    """The working sets of pods in an episode: those that were kept from before its crossings, and its samples."""
    kept = [e for e in f.episode.events if isinstance(e, WorkingSets)]
    samples = [e for e in f.episode.events if isinstance(e, Sample) and e.pod is not None and e.container is None]
    points: dict[str, list[tuple[int, int]]] = {}
    for sample in samples:
        # Far from a threshold counters are not brought up to date: what was kept takes the place of such samples.
        if sample.pod is not None and not any(e.since_ns <= sample.ts_ns <= e.ts_ns - _NEAR_NS for e in kept):
            points.setdefault(sample.pod, []).append((sample.ts_ns, sample.working_set))
    for event in kept:
        for one in event.pods:
            points.setdefault(one.pod, []).extend(one.points)
    series = {uid: TimeSeries(found) for uid, found in points.items() if found}  # a pod of which nothing was read
    new = [one.pod for event in kept for one in event.pods if one.new]
    born = {uid: series[uid].times[0] for uid in new if uid in series}
    since = [e.since_ns for e in kept] or [e.ts_ns for e in samples]
    return PodHistory(series, born, min(since, default=f.crossed_ns))


def kubelets_figures(f: Facts, key: Callable[[Candidate], Key]) -> dict[str, FigureAge]:
    """By the uid of each pod that a kubelet evicted: whom it took then, by the age of its figures.

    Where its decision is not recorded, only its SIGKILL, that came `KUBELET_MIN_GRACE_S` later (of a pod that obeyed
    SIGTERM, up to that much).
    """
    mine = [e for e in f.evictions if e.decision.by == KUBELET and not e.decision.observed]
    if not mine:
        return {}
    history = pod_history(f)
    found: dict[str, FigureAge] = {}
    for e in mine:
        d = e.decision
        at = d.ts_ns - KUBELET_MIN_GRACE_S * 10**9 if e.killed_ns == d.ts_ns else d.ts_ns
        crossed = f.episode.start_ns if f.crossed_ns is None else f.crossed_ns
        at = max(at, min(crossed, d.ts_ns))
        over = {o.decision.pod for o in f.evictions if o.gone_ns is not None and o.gone_ns <= at}
        made = figure_age([pod for pod in f.order if pod.uid not in over], history, at, crossed, key)
        if made is not None:
            found.setdefault(d.pod, made)
    return found


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
