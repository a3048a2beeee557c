"""The growth behind an episode, as most bytes taken within a time, and which threshold would have won: over many
episodes, for each way of reacting to one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from monitor.race.codec import Record
from monitor.race.events import Crossing, Sample
from monitor.race.facts import SIGNAL_OF, Facts, growth
from monitor.race.series import TimeSeries

#: Times looked at, in ms: from outrace's reaction over a notified kubelet's 2.05-2.25 s to the 12 s of one that polls.
#: In between growth is taken as even.
TIMES_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 2500, 3000, 4000, 6000, 8000, 10_000, 12_500)
#: Moments that windows begin or end at; of a longer record, evenly chosen ones.
_MOST_POINTS = 2000


@dataclass(frozen=True, slots=True)
class Burst(Record):
    """How fast a domain was taken. `most`: (ms, bytes), the most its working set rose within that time, anywhere in
    the record. Where a kill or an eviction cut the record, it goes on growing at `rate` (bytes/s; None: it did not
    grow, or nothing cut it). `threshold`: quantity of the hard threshold in force (bytes; None: none). `beyond`: bytes
    that the capacity counts and the limit does not allow.
    """

    signal: str
    capacity: int
    threshold: int | None
    beyond: int
    rate: float | None
    most: tuple[tuple[int, int], ...]

    def needed(self, ms: float) -> float:
        """Bytes that have to be available at the crossing for a monitor whose victim is gone ``ms`` later."""
        at = bisect_left(self.most, (ms, 0))
        if at == len(self.most):
            return self.beyond + float(self.most[-1][1])
        t2, v2 = self.most[at]
        t1, v1 = self.most[at - 1] if at else (0, 0)
        return self.beyond + v1 + (v2 - v1) * (ms - t1) / (t2 - t1)


def burst(f: Facts) -> Burst | None:
    """The growth of an episode that was about a threshold; None if it was not, or too little was recorded."""
    domain = f.episode.domain
    if domain not in SIGNAL_OF or not (f.race or f.crossed_ns is not None):
        return None
    watched = [w for w in f.episode.watched if w.domain == domain]
    acted = [e.signalled_ns or e.decision.ts_ns for e in f.evictions if not e.decision.observed]
    killed = [f.kill_ns] if f.kill_ns is not None and f.race else []
    cut = min([*acted, *killed], default=None)
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
    hard = [w.quantity for w in watched if w.hard and w.signal == SIGNAL_OF[domain]]
    return Burst(
        signal=SIGNAL_OF[domain],
        capacity=watched[0].capacity,
        threshold=hard[0] if hard else None,
        beyond=max(0, watched[0].capacity - f.limit) if f.limit is not None else 0,
        rate=round(rate, 1) if rate is not None else None,
        most=tuple([(ms, _most_within(series, ms * 1_000_000)) for ms in TIMES_MS]),
    )


def _most_within(series: TimeSeries, ns: int) -> int:
    """The largest rise between two moments ``ns`` apart. The lines between points are straight, so one of the two
    moments is a point's.
    """
    times, values = series.times, series.values
    most = 0.0
    for i in range(0, len(times), -(-len(times) // _MOST_POINTS)):
        most = max(most, series.at(times[i] + ns) - values[i], values[i] - series.at(times[i] - ns))
    return round(most)


# ---- the threshold that would have won

#: Who reacts -> how long from the crossing until the victim is dead, in ms, every phase alike. outrace: 0.75 ms at most
#: of 360 races and a millisecond to die, rounded up to 5. A kubelet's loop: its 10 s in every phase, then the 2.03 s
#: that its runtime takes for a pod that ignores SIGTERM; notified by the kernel (cgroup v1): 0.02-0.22 s instead.
REACTIONS: dict[str, tuple[float, ...]] = {
    "outrace": (5.0,),
    "kubelet-notified": tuple([20.0 + 200.0 * i / 20 + 2030.0 for i in range(21)]),
    "kubelet": tuple([10_000.0 * i / 40 + 2030.0 for i in range(41)]),
}


@dataclass(frozen=True, slots=True)
class Advised(Record):
    """The threshold for one signal and one way of reacting. `threshold` (bytes): the smallest that wins a part of at
    least `quantile` of the episodes, over all phases; None: none below the capacity does. `present`: the part that the
    threshold in force wins (the latest episode's; None: there is none). `episodes`: how many it is worked out from.
    """

    signal: str
    reaction: str
    threshold: int | None
    quantile: float
    present: float | None
    present_threshold: int | None
    capacity: int
    episodes: int


def advise(bursts: Sequence[Burst], quantile: float = 0.99) -> list[Advised]:
    """``bursts`` oldest first, of one machine. Only those of the latest capacity count: another one is another node."""
    made = []
    for signal in dict.fromkeys(b.signal for b in bursts):
        mine = [b for b in bursts if b.signal == signal]
        last = mine[-1]
        mine = [b for b in mine if b.capacity == last.capacity]
        for reaction, times in REACTIONS.items():
            needs = sorted([b.needed(ms) for b in mine for ms in times])
            at = min(len(needs) - 1, max(0, ceil(quantile * len(needs) - 1e-9) - 1))
            wanted = int(needs[at]) + 1  # a threshold is met strictly below its quantity
            best = wanted if wanted < last.capacity else None
            won = None
            if last.threshold is not None:
                won = round(sum(n < last.threshold for n in needs) / len(needs), 4)
            made.append(Advised(signal, reaction, best, quantile, won, last.threshold, last.capacity, len(mine)))
    return made
