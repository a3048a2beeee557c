"""By how much a race was won (positive) or lost (negative); None: not known. (In words: docs/verdicts.md.)"""

from __future__ import annotations

from typing import NamedTuple

from monitor.race import incident as i
from monitor.race.events import PODS, Sample
from monitor.race.evictions import EXIT_NS, RecordedEviction
from monitor.race.facts import GROUP_NS, Facts, one_kill

#: Bytes, milliseconds.
Margins = tuple[int | None, float | None]


class Ruling(NamedTuple):
    """The verdict before its text is made. `basis`: the eviction it turns on; `missing`: what is not known."""

    verdict: str
    basis: RecordedEviction | None = None
    missing: tuple[str, ...] = ()


def margins(f: Facts, ruling: Ruling) -> Margins:
    verdict, basis = ruling.verdict, ruling.basis
    if verdict == i.EVICTION_WON and basis is not None:
        return _observed(f, basis, won=True) if f.kills else _won(f, basis)
    if verdict == i.OOM_UNSEEN:
        return _unseen(f)
    if verdict == i.OOM_BEFORE_DECISION:
        return _before_decision(f, basis)
    if verdict == i.OOM_DURING_GRACE and basis is not None:
        return _during_grace(f, basis)
    if verdict == i.OOM_AFTER_EVICTION and basis is not None:
        return _observed(f, basis, won=False) if basis.decision.observed else _after_eviction(f, basis)
    return (f.headroom, None) if verdict == i.RELIEVED else (None, None)


def _ms(ns: float) -> float:
    return round(ns / 1e6, 3) + 0.0


def _lacking(f: Facts, ns: float) -> int | None:
    """The bytes that memory would have grown by in the time that was lacking, as a negative margin."""
    return -round(f.rate * ns / 1e9) if f.rate is not None else None


def _won(f: Facts, basis: RecordedEviction) -> Margins:
    """Bytes: the least headroom. Time: how much later than the pod's end the limit would have been hit."""
    done, used = basis.done_ns, basis.decision.usage
    if f.rate is None or f.limit is None or used is None or done is None:
        return f.headroom, None
    hit_ns = basis.decision.ts_ns + max(0, f.limit - used) / f.rate * 1e9
    return f.headroom, _ms(max(0.0, hit_ns - done))


def _observed(f: Facts, basis: RecordedEviction, won: bool) -> Margins:
    """Time: from the end the pod would have had to the kill; negative where it was too little. Bytes: `balance`."""
    done, kill = basis.done_ns, f.kill_ns
    if done is None or kill is None:
        return None, None
    return (balance(f), _ms(kill - done)) if won else (min(0, balance(f) or 0), _ms(done - kill))


def observed_in_time(f: Facts) -> list[RecordedEviction]:
    """The observed evictions whose pods would have been gone when the first victim was marked."""
    kill = f.kill_ns or 0
    return [e for e in f.relevant_evictions if e.decision.observed and e.done_ns is not None and e.done_ns <= kill]


def balance(f: Facts) -> int | None:
    """Bytes that the pods of `observed_in_time` held when the OOM killer came, less what memory had grown by since the
    first of those decisions (which an eviction has to make up for, and not just for the last page). None: not known.
    """
    gone = observed_in_time(f)
    grown = _grown(f, gone[0]) if gone else None
    if grown is None:
        return None
    sizes = [held(f, e) for e in gone]
    found = sum([n for n in sizes if n is not None]) - grown
    return found if found > 0 or None not in sizes else None


def held(f: Facts, e: RecordedEviction) -> int | None:
    """Bytes a pod held at the first mark, by its decision, what was seen since or killed of it. None: not known."""
    kill, d = f.kill_ns or 0, e.decision
    own = [s for s in f.episode.events if isinstance(s, Sample) and s.pod == d.pod]
    seen = [s.working_set for s in own if d.ts_ns <= s.ts_ns <= kill][-1:]
    killed = [m.rss for m in f.kills if m.pod == d.pod and (m.ts_ns - kill <= GROUP_NS or one_kill(f.kills[0], m))]
    known = [n for n in (d.working_set, *seen, sum(killed) if killed else None) if n is not None]
    return max(known, default=None)


def _grown(f: Facts, e: RecordedEviction) -> int | None:
    """Bytes by which the domain's usage grew from a decision to the first mark."""
    kill, d = f.kills[0], e.decision
    if d.usage is not None and kill.oom_usage is not None and kill.scope != PODS:
        return max(0, kill.oom_usage - d.usage)
    later = [(ts, used) for ts, used in f.usage if d.ts_ns < ts <= kill.ts_ns]
    if f.rate is None and (d.usage is None or not later):
        return None
    since, used = later[-1] if later and d.usage is not None else (d.ts_ns, d.usage or 0)
    return max(0, round(used - (d.usage or 0) + (f.rate or 0.0) * (kill.ts_ns - since) / 1e9))


def _unseen(f: Facts) -> Margins:
    """Bytes: how far the threshold was from being crossed when the OOM killer came."""
    available = f.available
    if available is None or f.threshold is None:
        return None, None
    return min(0, f.threshold.quantity - available), None


def _before_decision(f: Facts, basis: RecordedEviction | None) -> Margins:
    """Time: how much later than the kill it was decided; None if it never was."""
    if basis is None or f.kill_ns is None:
        return None, None
    late = max(0, basis.decision.ts_ns - f.kill_ns)
    return _lacking(f, late), _ms(-late)


def _during_grace(f: Facts, basis: RecordedEviction) -> Margins:
    """Time: what was left of the grace, or of dying, at the kill."""
    kill = f.kill_ns or 0
    is_dying = basis.forced_ns <= kill or basis.decision.observed
    end = basis.done_ns if basis.done_ns is not None and is_dying else basis.forced_ns + EXIT_NS
    left = max(0, end - kill)
    return _lacking(f, left), _ms(-left)


def _after_eviction(f: Facts, basis: RecordedEviction) -> Margins:
    """Time: from the end of the pod to the kill. Bytes: what was allocated in between, beyond what the pod gave."""
    kill, done = f.kill_ns or 0, basis.done_ns or 0
    used = next((used for ts, used in f.usage if done <= ts < kill), None)
    if used is None and basis.decision.usage is not None and basis.freed is not None:
        used = max(0, basis.decision.usage - basis.freed)
    if used is None or f.limit is None:
        return _lacking(f, kill - done), _ms(done - kill)
    return -max(0, f.limit - used), _ms(done - kill)
