"""The flags of an incident: what else was the case, whatever the verdict."""

from __future__ import annotations

from itertools import combinations

from monitor.policy import stall
from monitor.race import incident as i
from monitor.race.badness import evictable
from monitor.race.events import KUBELET, KUBEPODS_SCOPES, RACE_SCOPES, Clear, Crossing, Decided, Event, Mark, Suspended
from monitor.race.evictions import RecordedEviction
from monitor.race.facts import Facts, one_kill
from monitor.race.holds import UNANSWERED, held_pods


def flags(f: Facts) -> tuple[str, ...]:
    """All that apply, in the order of the contract."""
    holds = held_pods(f)
    scopes = {m.scope for m in (*f.kills, *f.exiting) if is_known(m)}
    found = {
        i.GLOBAL: "global" in scopes,
        i.KUBEPODS_LIMIT: bool(scopes & KUBEPODS_SCOPES),
        i.WRONG_VICTIM: wrong_victim(f) is not None,
        i.COLLATERAL: bool(collateral(f)),
        i.GROUP_KILL: is_group_kill(f),
        i.OVER_EVICTION: over_eviction(f) is not None,
        i.USER_KILL: bool(f.user_kills),
        i.ALREADY_EXITING: bool(f.exiting),
        i.BRAKED: any(isinstance(e, Suspended) and e.reason for e in f.episode.events),
        i.KUBELET_ONLY: f.only_kubelets,
        i.HELD: bool(holds) or any(m.held for m in f.kills),
        i.HELD_THEN_EVICTED: any(one.by_kubelet for one in holds),
        i.HOLD_UNANSWERED: any(one.why in UNANSWERED for one in holds),
        i.BY_HAND: i.BY_HAND in scopes,
        i.OWN_LIMIT: any(s.why == stall.OWN_LIMIT for s in f.stalls),
        i.THROTTLED: any(s.why == stall.THROTTLED for s in f.stalls),
        i.SWAP: any(s.swap for s in f.stalls),
        i.LOST_EVENTS: any(lost.what not in ("sample", "reclaim") for lost in f.lost),
    }
    return tuple([flag for flag in i.FLAGS if found[flag]])


def is_known(mark: Mark) -> bool:
    """Whether the victim and the limit are: not of a kill that was only counted, without BPF and the kernel's log."""
    return mark.victim_pid != 0


def wrong_victim(f: Facts) -> Mark | None:
    """The first kill that took a pod although the policy would have taken another one then."""
    alive = [c.uid for c in evictable(f.order)]
    taken: set[str] = set()
    for mark in f.kills:
        # Of a pod without a name only the cgroup is known: it has no rank.
        if mark.pod is None or mark.pod_name is None:
            continue
        if mark.scope not in RACE_SCOPES or not alive or not is_known(mark):
            continue
        gone = {e.decision.pod for e in f.evictions if not e.decision.observed and e.decision.ts_ns <= mark.ts_ns}
        left = [uid for uid in alive if uid not in taken and uid not in gone]
        if mark.pod not in taken and mark.pod not in gone and left and left[0] != mark.pod:
            return mark
        taken.add(mark.pod)
    return None


def collateral(f: Facts) -> list[Mark]:
    """Kills outside every pod in an OOM that was about pods too."""
    return [m for m in f.kills if m.pod is None and m.scope in RACE_SCOPES and is_known(m)]


def suspended_at(f: Facts, ts_ns: int) -> Suspended | None:
    """That evictions were suspended at this moment, as last reported."""
    reported = [e for e in f.episode.events if isinstance(e, Suspended) and e.ts_ns <= ts_ns]
    return reported[-1] if reported and reported[-1].reason else None


def is_group_kill(f: Facts) -> bool:
    """Several processes killed at once (`one_kill`) in one cgroup that is not known to die one by one, or, where one of
    them is known to die as a whole, below one cgroup: memory.oom.group may be set on an ancestor.
    """
    for mark, other in combinations(f.kills, 2):
        groups = {mark.group, other.group}
        below = True in groups and _top(mark.memcg) == _top(other.memcg)
        if one_kill(mark, other) and (below or (False not in groups and other.memcg == mark.memcg)):
            return True
    return False


def _top(path: str) -> str:
    """The first directory of a cgroup's path. (The root, which all have in common, cannot be killed as a whole.)"""
    return path.strip("/").partition("/")[0]


def over_eviction(f: Facts) -> tuple[RecordedEviction, int] | None:
    """The first eviction that was not needed, with the bytes by which: memory had come back before it, or pods that
    were already dying held more than was short, or those gone gave back more after it.
    """
    done = [e for e in f.evictions if not e.decision.observed]
    for k, eviction in enumerate(done):
        d = eviction.decision
        short = d.quantity + d.min_reclaim - d.available
        back = _was_clear(f.episode.events, d)
        if back is not None or short <= 0:
            return eviction, max(0, -short if back is None else back - d.quantity)
        pending = [e for e in done[:k] if e.gone_ns is None or e.gone_ns > d.ts_ns]
        coming = sum([e.freed if e.freed is not None else e.decision.working_set or 0 for e in pending])
        # The memory of those that were gone by then is perhaps not back.
        gone = [e for e in done[:k] if e.gone_ns is not None and e.gone_ns <= d.ts_ns < (e.settled_ns or 0)]
        coming += max(0, d.coming - sum([max(0, (e.decision.working_set or 0) - (e.freed or 0)) for e in gone]))
        if (pending or d.coming) and coming >= short:
            return eviction, coming - short
    return None


def _was_clear(events: tuple[Event, ...], d: Decided) -> int | None:
    """What was available if the threshold was clear when a kubelet, which acts on old numbers, evicted a pod for it.
    None: met, or not known.
    """
    if d.by != KUBELET:
        return None
    mine = [e for e in events if isinstance(e, Clear | Crossing) and e.threshold == d.threshold and e.ts_ns <= d.ts_ns]
    return mine[-1].available if mine and isinstance(mine[-1], Clear) else None
