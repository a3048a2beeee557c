"""Whom a kubelet takes, by the age of its figures of pods.

Its eviction loop asks cAdvisor for figures of this moment of the node and of kubepods alone. Figures of pods are those
of cAdvisor's last housekeeping: every 10 s, every 15 s for a container in which nothing moves. So it is sure that the
node is short, and ranks pods by what they had 10 to 15 s ago.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from monitor.policy.ranking import Candidate, Key, memory_key
from monitor.race.codec import Record
from monitor.race.series import TimeSeries

#: The oldest figure looked at. (cAdvisor waits 1 to 2 times 10 or 15 s, so one can be older still.)
OLDEST_NS = 15_000_000_000
#: Most ages at which pods are ranked: a sample a second makes 15.
_MOST = 64


@dataclass(frozen=True, slots=True)
class PodPoints(Record):
    """Working sets of one pod, as (ns, bytes); each holds until the next. `new`: there was no such pod before."""

    pod: str
    new: bool
    points: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class OfAge(Record):
    """The pod it takes where its figures are more than `from_s` and up to `to_s` seconds old; `share` of all ages that
    were looked at.
    """

    pod: str
    from_s: float
    to_s: float
    share: float


@dataclass(frozen=True, slots=True)
class FigureAge(Record):
    """Whom a kubelet takes that decides `at_ms` after the crossing, where all its figures of pods are equally old.

    `fresh`: on figures of that moment. `by_age`: on older ones, the youngest first, up to `known_s` seconds: 15, or as
    far back as was recorded. `could`: every pod that is first for some ages up to that, each pod's figure having its
    own.
    """

    at_ms: float
    fresh: str
    known_s: float
    by_age: tuple[OfAge, ...]
    could: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PodHistory:
    """Working sets of pods, by uid. `born_ns`: of those that came while it was recorded. `since_ns`: what was before is
    not known; None: the first figure of each held before.
    """

    series: Mapping[str, TimeSeries] = field(default_factory=dict)
    born_ns: Mapping[str, int] = field(default_factory=dict)
    since_ns: int | None = None

    def usage(self, pod: Candidate, ts: float) -> int | None:
        """What a look at ``ts`` found: None before there was such a pod, which is ranked as one without stats."""
        series = self.series.get(pod.uid)
        if not series:
            return pod.usage
        return None if ts < self.born_ns.get(pod.uid, 0) else series.held(ts)


def of_pod(found: FigureAge, pod: str) -> str:
    """By which figures ``pod`` was first; "" if by none that are known."""
    mine = next((span for span in found.by_age if span.pod == pod), None)
    if mine is None:
        return f"on figures {seconds(0)} old it was first" if found.fresh == pod else ""
    if not mine.from_s:
        return f"on figures up to {seconds(mine.to_s)} old it was first"
    later = f", on fresh ones {found.fresh}" if found.fresh != pod else ""
    return f"on figures {seconds(mine.from_s, '')} to {seconds(mine.to_s)} old it was first{later}"


def seconds(value: float, unit: str = " s") -> str:
    """A figure is a second apart from the next one: no more digits than that means anything beyond 10 s."""
    return f"{value:.0f}{unit}" if value >= 10 or value == round(value) else f"{value:.1f}{unit}"


def figure_age(
    pods: Sequence[Candidate],
    history: PodHistory,
    at_ns: float,
    crossed_ns: int,
    key: Callable[[Candidate], Key] = memory_key,
) -> FigureAge | None:
    """Whom a kubelet that decides at ``at_ns`` takes among ``pods``, by the order of ``key``; None if there is nobody
    to take, or a priority (which a kubelet knows) is not known.
    """
    if any(pod.priority is None for pod in pods):
        return None
    taken = [pod for pod in pods if not pod.critical]
    if not taken:
        return None
    names = {pod.uid: f"{pod.namespace}/{pod.name}" for pod in taken}
    oldest = OLDEST_NS if history.since_ns is None else min(OLDEST_NS, max(0, round(at_ns - history.since_ns)))
    ages = _ages(taken, history, at_ns, oldest)
    keys = {pod.uid: _keys(pod, history, at_ns, ages, key) for pod in taken}
    # A key ends with the uid: no two are equal, and the first of each age is one pod.
    firsts = [min(row[i] for row in keys.values())[-1] for i in range(len(ages))]
    spans: list[tuple[str, float, float]] = []
    for before, age, uid in zip(ages, ages[1:], firsts[1:], strict=False):
        if spans and spans[-1][0] == uid:
            spans[-1] = (uid, spans[-1][1], age)
        else:
            spans.append((uid, before, age))
    return FigureAge(
        round((at_ns - crossed_ns) / 1e6, 3),
        names[firsts[0]],
        round(oldest / 1e9, 3),
        tuple([OfAge(names[u], round(a / 1e9, 3), round(b / 1e9, 3), round((b - a) / oldest, 3)) for u, a, b in spans]),
        tuple(sorted(names[uid] for uid in _possible(keys))),
    )


def _ages(pods: Sequence[Candidate], history: PodHistory, at_ns: float, oldest: int) -> list[float]:
    """The ages up to ``oldest`` beyond which some pod had another figure; the first is 0, the last ``oldest``."""
    found: set[float] = set()
    for pod in pods:
        series = history.series.get(pod.uid)
        if series:
            found |= {at_ns - ts for ts in series.times if 0 < at_ns - ts < oldest}
    between = sorted(found)
    if len(between) > _MOST:
        step = (len(between) - 1) / (_MOST - 1)
        between = [between[round(i * step)] for i in range(_MOST)]
    return [0, *between, oldest] if oldest else [0]


def _keys(
    pod: Candidate, history: PodHistory, at_ns: float, ages: Sequence[float], key: Callable[[Candidate], Key]
) -> list[Key]:
    """Its place in the order for each of the ages."""
    known: dict[int | None, Key] = {}
    found = []
    for age in ages:
        usage = history.usage(pod, at_ns - age)
        if usage not in known:
            known[usage] = key(replace(pod, usage=usage))
        found.append(known[usage])
    return found


def _possible(keys: Mapping[str, Sequence[Key]]) -> list[str]:
    """The pods (uids) that are first where each has the best place it can have and all others have their worst."""
    worst = sorted((max(row), uid) for uid, row in keys.items())
    found = []
    for uid, row in keys.items():
        others = next((place for place, other in worst if other != uid), None)
        if others is None or min(row) < others:
            found.append(uid)
    return found
