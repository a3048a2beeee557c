"""The facts of an episode: kills, evictions and their times, the crossing, and how fast memory grew."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations

from monitor.policy.ranking import Candidate
from monitor.policy.signals import ALLOCATABLE_MEMORY, MEMORY, used, working_set
from monitor.race import events as ev
from monitor.race.episode import Episode
from monitor.race.evictions import RecordedEviction, by_kubelet, met_before, recorded_evictions

#: The signal of memory of each domain that has one.
SIGNAL_OF = {ev.NODE: MEMORY, ev.KUBEPODS: ALLOCATABLE_MEMORY}
#: Marks by one invoking thread this close together are one OOM kill: the kernel goes through a group in one go.
GROUP_NS = 10_000_000
#: The same in one cgroup that is known to die as a whole. The kernel prints a line for each victim before it marks the
#: next, which takes 15 ms on a serial console of 115200 baud, 180 ms at 9600. In two cgroups it may as well be two
#: kills: the kubelet sets memory.oom.group on every container, and what the first one held may be slow to come back.
KNOWN_GROUP_NS = 1_000_000_000


def one_kill(mark: ev.Mark, later: ev.Mark) -> bool:
    """Two marks may be of one OOM kill: made by one thread, as close together as that kill would make them."""
    whole = mark.group and later.group and mark.memcg == later.memcg
    near = KNOWN_GROUP_NS if whole else GROUP_NS
    return later.invoker_tid == mark.invoker_tid and later.ts_ns - mark.ts_ns <= near


#: Most points that are compared pair by pair: 32 make 496 slopes, a tenth of a millisecond.
_MOST_POINTS = 32
#: A threshold that is clear for less than this and then crossed again was never really clear.
BRIEF_NS = 5_000_000_000


class Facts:
    """An episode taken apart; see the names. `race` kills are of node, kubepods or the whole machine.

    `crossing` is where the pressure began that was on at the first kill (or decision): the first hard threshold then
    met, else the first soft one; `crossed_ns` its time (also known from a decision alone). `usage` are (time, bytes) of
    the domain. `kubelets_line`: the first crossing, before the first kill, of a line that only a kubelet would have;
    `only_kubelets`: it is the only one, and no pod was evicted. `rate`: its growth in bytes/s then, None if not known
    or not growing. `exiting`: marks that killed no process. `stalls`: reports of a pod that stalls, and of its end.
    """

    def __init__(self, episode: Episode) -> None:
        self.episode = episode
        events = episode.events
        marks = _marks(events)
        every = _first_of_each([m for m in marks if not m.exiting])
        self.kills = [m for m in every if m.scope != ev.BY_HAND] or every  # one by hand is no part of a race beside it
        killed = {m.victim_pid for m in every}
        self.exiting = [m for m in _first_of_each(marks) if m.victim_pid not in killed]
        self.user_kills = _user_kills(events)
        self.evictions = sorted(
            (*recorded_evictions(events), *by_kubelet(events)), key=lambda eviction: eviction.decision.ts_ns
        )
        began = [e.ts_ns for e in events if isinstance(e, ev.PodHeld)][:1]  # from then on it grows no more
        decided = min([*began, *[e.decision.ts_ns for e in self.evictions[:1]]], default=episode.end_ns)
        moment = decided if self.kill_ns is None else self.kill_ns
        compared = {w.threshold for w in episode.watched if w.compared}
        acted = [e for e in events if getattr(e, "threshold", None) not in compared]
        only = not self.kills and not self.evictions and not any(isinstance(e, ev.Crossing) for e in acted)
        # What another domain had crossed is no part of a race that was run for this one.
        raced = domain_of(self.kills[0]) if self.race else None
        self.crossing, self.crossed_ns = _crossing(events if only else acted, moment, raced)
        self.only_kubelets = only and self.crossed_ns is not None
        lines = (e for e in events if isinstance(e, ev.Crossing) and e.threshold in compared)
        self.kubelets_line = next((e for e in lines if self.kill_ns is None or e.ts_ns <= self.kill_ns), None)
        self.threshold = _threshold(episode, self.crossing)
        available = self.available
        if self.race and self.crossed_ns is None and self.threshold is not None and available is not None:
            # No crossing was reported, but by the formula it had happened: in one leap, or between two looks.
            self.crossed_ns = self.kill_ns if available < self.threshold.quantity else None
        self.cleared = not met_before(events, episode.end_ns + 1)
        self.usage = list(_usage(events, episode.domain))
        self.limit = _limit(self.kills, self.threshold, self.crossing)
        self.rate = growth(self.usage, moment)
        self.lost = [e for e in events if isinstance(e, ev.Lost) and e.count > 0]
        self.stalls = [e for e in events if isinstance(e, ev.Stalled)]
        self.order = _order(events, self.kill_ns)

    @property
    def race(self) -> bool:
        """Whether the kill, if any, is one that an eviction could have come before."""
        return bool(self.kills) and self.kills[0].scope in ev.RACE_SCOPES

    @property
    def kill_ns(self) -> int | None:
        return self.kills[0].ts_ns if self.kills else None

    @property
    def cut_ns(self) -> int | None:
        """When the growth was cut: by the first eviction, the first hold, or the kill of a race; None: by nothing."""
        times = [e.signalled_ns or e.decision.ts_ns for e in self.evictions if not e.decision.observed]
        times += [e.ts_ns for e in self.episode.events if isinstance(e, ev.PodHeld)][:1]
        return min(times + [m.ts_ns for m in self.kills[:1] if self.race], default=None)

    @property
    def available(self) -> int | None:
        """What the kubelet's formula called available when the first victim was marked; None if not known."""
        threshold = self.threshold
        if not self.kills or threshold is None or threshold.domain != domain_of(self.kills[0]):
            return None
        mark = self.kills[0]
        if mark.scope != ev.PODS and mark.oom_usage is not None and mark.oom_inactive_file is not None:
            if threshold.signal in (MEMORY, ALLOCATABLE_MEMORY):
                return threshold.capacity - working_set(mark.oom_usage, mark.oom_inactive_file)
        events = self.episode.events
        last = last_sample(self.episode, threshold.domain, mark.ts_ns)
        cleared = max([e.ts_ns for e in events if isinstance(e, ev.Clear) and e.ts_ns <= mark.ts_ns], default=0)
        return available_of(last, threshold) if last is not None and last.ts_ns >= cleared else None

    @property
    def relevant_evictions(self) -> tuple[RecordedEviction, ...]:
        """The evictions that the first kill is judged by: decided before it, for a threshold of the domain that ran
        out, and not settled by that threshold's having cleared since.
        """
        kill = self.kill_ns
        if kill is None:
            return ()
        domain = domain_of(self.kills[0])
        mine = [e for e in self.evictions if e.decision.ts_ns <= kill and e.decision.domain == domain]
        return tuple([e for e in mine if not self._is_past(e, kill)])

    def _is_past(self, e: RecordedEviction, kill_ns: int) -> bool:
        """Whether the threshold cleared between a decision and the kill, and not only for a moment (the eviction freed
        too little then). A pod that was still dying at the kill is of the present whatever happened meanwhile.
        """
        d = e.decision
        mine = [c for c in self.episode.events if isinstance(c, ev.Clear | ev.Crossing) and c.threshold == d.threshold]
        last = max([c.ts_ns for c in mine if isinstance(c, ev.Clear) and c.ts_ns <= kill_ns], default=None)
        if last is None or max(d.ts_ns, e.again_ns or 0) > last:
            return False
        again = min(
            [c.ts_ns for c in mine if isinstance(c, ev.Crossing) and last < c.ts_ns <= kill_ns], default=kill_ns
        )
        if not d.observed and again - last < BRIEF_NS:
            return False
        return d.observed or not (kill_ns < (e.forced_ns if e.done_ns is None else e.done_ns))

    @property
    def headroom(self) -> int | None:
        """The least bytes there were between the domain's usage and its limit since the crossing; never negative."""
        if self.limit is None or self.crossed_ns is None:
            return None
        seen = [used for ts, used in self.usage if ts >= self.crossed_ns]
        return max(0, self.limit - max(seen)) if seen else None

    def lasts_ns(self, at_ns: int) -> float | None:
        """How long what was left then lasts at the growth before it; None: not known, or no growth."""
        rate, before = growth(self.usage, at_ns), [used for ts, used in self.usage if ts <= at_ns]
        if rate is None or self.limit is None or not before:
            return None
        return max(0, self.limit - before[-1]) / rate * 1e9


def _marks(events: Iterable[ev.Event]) -> list[ev.Mark]:
    """All marks, with the scope of those that SysRq f asked for: the log names one process of a group that dies."""
    by_hand = {e.victim_pid for e in events if isinstance(e, ev.Checked) and e.source == ev.KMSG_BY_HAND}
    marks = [e for e in events if isinstance(e, ev.Mark)]
    named = [m for m in marks if m.victim_pid in by_hand]
    return [
        replace(m, scope=ev.BY_HAND) if any(one.ts_ns <= m.ts_ns and one_kill(one, m) for one in named) else m
        for m in marks
    ]


def _first_of_each(marks: Iterable[ev.Mark]) -> list[ev.Mark]:
    """One mark for each process: a victim is marked again while the kernel waits for it."""
    found: dict[int, ev.Mark] = {}
    for mark in marks:
        found.setdefault(mark.victim_pid, mark)
    return list(found.values())


def _crossing(events: Sequence[ev.Event], at_ns: int, domain: str | None) -> tuple[ev.Crossing | None, int | None]:
    """What had been crossed at ``at_ns`` and was not clear again, and when; of one domain, or (None) of any."""
    mine = [e for e in events if domain is None or getattr(e, "domain", domain) == domain]
    met = met_before(mine, at_ns) or met_before(mine, at_ns + 1)
    for hard in (True, False):
        these = {key: value for key, value in met.items() if key[2] == hard}
        found = [c for c in these.values() if isinstance(c, ev.Crossing)]
        times = [c if isinstance(c, int) else c.ts_ns for c in these.values()]
        if times:
            return (min(found, key=lambda c: c.ts_ns) if found else None), min(times)
    return None, None


def _usage(events: Iterable[ev.Event], domain: str) -> Iterable[tuple[int, int]]:
    for event in events:
        if isinstance(event, ev.Sample | ev.Crossing | ev.Decided) and event.domain == domain:
            if event.usage is not None:
                yield event.ts_ns, event.usage
        elif isinstance(event, ev.Mark) and event.oom_usage is not None and domain_of(event) == domain:
            if event.scope == ev.PODS:
                continue  # of a part of the domain
            yield event.ts_ns, event.oom_usage


def growth(usage: Sequence[tuple[int, int]], at_ns: int, window_ns: int = 1_000_000_000) -> float | None:
    """Bytes/s over the last ``window_ns`` before ``at_ns``; None if it is not known or did not grow."""
    recent = [(ts, used) for ts, used in usage if at_ns - window_ns <= ts <= at_ns]
    if len(recent) < 2:
        recent = [(ts, used) for ts, used in usage if ts <= at_ns][-2:]
    found = slope(recent)
    return found if found is not None and found > 0 else None


def slope(points: Sequence[tuple[int, int]]) -> float | None:
    """Bytes/s: the median of the slopes between all pairs of points (Theil-Sen), which a single jump does not move; of
    many points, evenly chosen ones. None for fewer than two moments.
    """
    if len(points) > _MOST_POINTS:
        step = (len(points) - 1) / (_MOST_POINTS - 1)
        points = [points[round(i * step)] for i in range(_MOST_POINTS)]
    found = sorted([(y2 - y1) * 1e9 / (t2 - t1) for (t1, y1), (t2, y2) in combinations(points, 2) if t2 != t1])
    middle = len(found) // 2
    return found[~middle] + (found[middle] - found[~middle]) * 0.5 if found else None


def _threshold(episode: Episode, crossing: ev.Crossing | None) -> ev.Watched | None:
    """The threshold the episode is about: the one crossed, else the hard one of the domain, else its first."""
    mine = [w for w in episode.watched if w.domain == episode.domain and not w.compared]
    if crossing is not None:
        mine = [w for w in episode.watched if w.threshold == crossing.threshold] or mine
    return next((w for w in mine if w.hard), mine[0] if mine else None)


def _limit(kills: Sequence[ev.Mark], threshold: ev.Watched | None, crossing: ev.Crossing | None) -> int | None:
    """Where the kernel kills: the limit in its record, else the domain's, else its capacity (the machine has none)."""
    if kills and kills[0].oom_limit is not None and kills[0].scope != ev.PODS:
        return kills[0].oom_limit
    if threshold is not None:
        return threshold.limit if threshold.limit is not None else threshold.capacity
    return crossing.capacity if crossing is not None else None


def _user_kills(events: Sequence[ev.Event]) -> list[ev.Kill]:
    """SIGKILLs to pods by neither the kernel nor an eviction, nor in the wake of an OOM kill in the same pod."""
    # When a kubelet decided is known to the second at best, so its kills may seem to come first.
    leaving: set[str | None] = {
        e.pod for e in events if isinstance(e, ev.Decided) and e.by == ev.KUBELET and not e.observed
    }
    found = []
    for event in events:
        if isinstance(event, ev.Decided):
            if not event.observed:
                leaving.add(event.pod)
        elif isinstance(event, ev.Mark):
            if not event.exiting:
                leaving.add(event.pod)
        elif isinstance(event, ev.Kill) and event.by_user and event.pod not in leaving:
            found.append(event)
    return found


def _order(events: Sequence[ev.Event], at_ns: int | None) -> tuple[Candidate, ...]:
    """The ranking to judge by: the last recorded before the kill, else the first; empty: none was."""
    ranked = [e for e in events if isinstance(e, ev.Ranked)]
    before = [e for e in ranked if at_ns is None or e.ts_ns <= at_ns]
    return (before[-1] if before else ranked[0]).order if ranked else ()


# ---- the kubelet's formula at the moment of a kill


def domain_of(mark: ev.Mark) -> str:
    if mark.scope in ev.KUBEPODS_SCOPES:
        return ev.KUBEPODS
    return ev.NODE if mark.scope in ("global", ev.NODE, ev.BY_HAND) else mark.oom_path or mark.memcg


def last_sample(episode: Episode, domain: str, at_ns: int) -> ev.Sample | None:
    """The last figures of a domain recorded by ``at_ns``."""
    found = [e for e in episode.events if isinstance(e, ev.Sample) and e.domain == domain and e.ts_ns <= at_ns]
    return found[-1] if found else None


def available_of(sample: ev.Sample, threshold: ev.Watched) -> int:
    """What is available by the threshold's signal in a sample of its domain."""
    return threshold.capacity - used_by(threshold.signal, sample)


def used_by(signal: str, sample: ev.Sample) -> int:
    """Bytes that a memory signal takes for used."""
    return used(signal, sample.usage, sample.inactive_file, sample.active_file)
