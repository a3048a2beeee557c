"""By how much a race was won (positive) or lost (negative), in bytes and in milliseconds.

Each function is one verdict; docs/verdicts.md says the same in words. None where it cannot be known.
"""

from __future__ import annotations

from monitor.race import incident as i
from monitor.race.facts import EXIT_NS, Eviction, Facts

Margins = tuple[int | None, float | None]


def margins(f: Facts, verdict: str, basis: Eviction | None) -> Margins:
    """(bytes, ms) for a verdict that turns on ``basis``."""
    if verdict == i.EVICTION_WON and basis is not None:
        return _would_have_won(f, basis) if f.kills else _won(f, basis)
    if verdict == i.OOM_UNSEEN:
        return _unseen(f)
    if verdict == i.OOM_BEFORE_DECISION:
        return _before_decision(f, basis)
    if verdict == i.OOM_DURING_GRACE and basis is not None:
        return _during_grace(f, basis)
    if verdict == i.OOM_AFTER_EVICTION and basis is not None:
        return _after_eviction(f, basis)
    if verdict == i.RELIEVED:
        return f.headroom, None
    return None, None


def _ms(ns: float) -> float:
    return round(ns / 1e6, 3) + 0.0


def _lacking(f: Facts, ns: float) -> int | None:
    """The bytes that memory would have grown by in the time that was lacking, as a negative margin."""
    return -round(f.rate * ns / 1e9) if f.rate is not None else None


def _won(f: Facts, basis: Eviction) -> Margins:
    """Bytes: the least headroom to the limit. Time: how much later the limit would have been hit, growing on, than the
    pod was gone.
    """
    done, used = basis.done_ns, basis.decision.usage
    if f.rate is None or f.limit is None or used is None or done is None:
        return f.headroom, None
    hit_ns = basis.decision.ts_ns + max(0, f.limit - used) / f.rate * 1e9
    return f.headroom, _ms(max(0.0, hit_ns - done))


def _would_have_won(f: Facts, basis: Eviction) -> Margins:
    """Observed. Time: from the moment the pod would have been gone to the kill. Bytes: what was allocated meanwhile."""
    done, kill = basis.done_ns, f.kill_ns
    if done is None or kill is None:
        return None, None
    spare = kill - done
    return (round(f.rate * spare / 1e9) if f.rate is not None else None), _ms(spare)


def _unseen(f: Facts) -> Margins:
    """Bytes: how far the threshold was from being crossed when the OOM killer came."""
    available = f.available
    if available is None or f.threshold is None:
        return None, None
    return min(0, f.threshold.quantity - available), None


def _before_decision(f: Facts, basis: Eviction | None) -> Margins:
    """Time: how much later than the kill it was decided; None if it never was."""
    if basis is None or f.kill_ns is None:
        return None, None
    late = max(0, basis.decision.ts_ns - f.kill_ns)
    return _lacking(f, late), _ms(-late)


def _during_grace(f: Facts, basis: Eviction) -> Margins:
    """Time: what was left of the grace, or of dying, at the kill."""
    kill = f.kill_ns or 0
    end = basis.forced_ns + EXIT_NS
    if basis.done_ns is not None and (basis.forced_ns <= kill or basis.decision.observed):
        end = basis.done_ns
    left = max(0, end - kill)
    return _lacking(f, left), _ms(-left)


def _after_eviction(f: Facts, basis: Eviction) -> Margins:
    """Time: from the end of the pod to the kill. Bytes: what was allocated in between, beyond what the pod gave."""
    kill, done = f.kill_ns or 0, basis.done_ns or 0
    used: int | None = None
    sample = next((used for ts, used in f.usage if done <= ts < kill), None)
    if sample is not None:
        used = sample
    elif basis.decision.usage is not None and basis.freed is not None:
        used = max(0, basis.decision.usage - basis.freed)
    if used is None or f.limit is None:
        return _lacking(f, kill - done), _ms(done - kill)
    return -max(0, f.limit - used), _ms(done - kill)
