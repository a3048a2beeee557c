"""What would have changed the outcome, with the number to write down."""

from __future__ import annotations

from monitor.policy.hold import STOP_NS
from monitor.policy.signals import ALLOCATABLE_MEMORY, MEMORY
from monitor.race import incident as i
from monitor.race import stalls
from monitor.race.events import BY_HAND, KUBELET, KUBEPODS, PODS, Refused, Sample, Suspended
from monitor.race.evictions import RecordedEviction
from monitor.race.facts import Facts, last_sample
from monitor.race.flags import over_eviction, wrong_victim
from monitor.race.margins import Ruling
from monitor.race.units import quantity, rate, size, span

#: Polling and the least grace: 10 s + 2 s from a crossing until a kubelet's victim is gone, at worst.
KUBELET_NS = 12_000_000_000


def advice(f: Facts, ruling: Ruling, flags: tuple[str, ...], margin_bytes: int | None) -> str:
    """One to three sentences; empty if nothing needs to change."""
    found = stalls.remedy(f) if f.stalls else []
    if ruling.verdict in _VERDICTS:
        found = _VERDICTS[ruling.verdict](f, ruling.basis, margin_bytes)
    wrong = wrong_victim(f)
    if wrong is not None:
        found.append(
            f"The kernel goes by size and oom_score_adj ({wrong.oom_score_adj} here), not by the policy: a memory "
            f"request of at least {quantity(wrong.rss)} for {wrong.pod_name or wrong.pod} lowers its oom_score_adj."
        )
    if i.BRAKED in flags:
        taken = next(e for e in f.episode.events if isinstance(e, Suspended) and e.reason).outside
        outside = f" ({size(taken)} were)" if taken is not None else ""
        found.append(
            f"What was short was in no pod that may be evicted{outside}: limit who takes it (MemoryMax= of its unit), "
            "or reserve it for the system (systemReserved)."
        )
    over = over_eviction(f)
    if over is not None:
        needless, spare = over
        found.append(
            f"{needless.decision.pod_name} need not have been evicted: {size(spare)} more than the threshold wants "
            "were available, or on their way from pods already evicted."
        )
    return " ".join(found)


def _signal(f: Facts) -> str:
    if f.threshold is not None:
        return f.threshold.signal
    return ALLOCATABLE_MEMORY if f.episode.domain == KUBEPODS else MEMORY


def _needs(f: Facts, pod: str, ns: float) -> str:
    """The threshold that leaves ``pod`` so much time at the growth seen, if there is such a threshold."""
    assert f.rate is not None
    wanted = f.rate * ns / 1e9
    known = f.threshold or f.crossing
    if known is not None and wanted >= known.capacity:
        return f"no threshold is enough for {pod}"
    return f"{pod} needs {_signal(f)}<{quantity(wanted)}"


def _won(f: Facts, basis: RecordedEviction | None, margin_bytes: int | None) -> list[str]:
    assert basis is not None
    if basis.decision.observed:
        if any(isinstance(e, Refused) and basis.decision.pod_name in e.pods for e in f.episode.events):
            return [
                f"Evict without asking (--evict-by kill), or let the budget of {basis.decision.pod_name} allow one pod."
            ]
        return ["Let outrace act (--enforce): it would have been in time."]
    cached = _cache_driven(f, basis)
    if cached:
        return [cached]
    if f.rate is not None and margin_bytes is not None and margin_bytes < f.rate * STOP_NS / 1e9:
        return [f"It was close: at {rate(f.rate)}, {_needs(f, 'four times the time', 4 * STOP_NS)}."]
    return []


def _cache_driven(f: Facts, basis: RecordedEviction) -> str:
    """Whether the kernel had active page cache to give back instead. The kubelet's formula counts it as used
    (kubernetes issue 43916): reading files twice is enough for an eviction. Some is active on every node, so it counts
    only if at least half of what the working set grew by in the record was active cache.
    """
    d = basis.decision
    sample = last_sample(f.episode, d.domain, d.ts_ns)
    short = d.quantity + d.min_reclaim - d.available
    if sample is None or short <= 0 or sample.active_file < short:
        return ""
    first = next(e for e in f.episode.events if isinstance(e, Sample) and e.domain == d.domain)
    grown = sample.working_set - first.working_set
    if grown <= 0 or 2 * (sample.active_file - first.active_file) < grown:
        return ""
    return (
        f"Page cache was behind it: {size(sample.active_file)} were active, which the formula counts as used and the "
        f"kernel can give back; {size(short)} were short. A lower threshold, or memory.high below it, reclaims first."
    )


def _unseen(f: Facts, basis: RecordedEviction | None, margin_bytes: int | None) -> list[str]:
    t, available = f.threshold, f.available
    if f.kills[0].scope == PODS:
        limit = f.kills[0].oom_limit
        above = f" above {size(limit)}" if limit is not None else ""
        return [
            f"No threshold watches {f.kills[0].oom_path}: raise its limit{above}, or remove it (kubelets set none), so "
            "that its pods share what kubepods has."
        ]
    if t is None:
        return [f"Set a hard threshold for {_signal(f)}: there is none."]
    found = []
    mark = f.kills[0]
    sample = last_sample(f.episode, t.domain, mark.ts_ns)
    inactive = mark.oom_inactive_file
    if inactive is None and sample is not None:
        inactive = sample.inactive_file
    beyond = t.capacity - mark.oom_limit if mark.oom_limit is not None else 0
    if beyond > 0:
        found.append(
            f"The capacity counts {size(beyond)} that the limit of {mark.oom_path or mark.scope} does not allow: "
            f"reserve them (systemReserved/kubeReserved memory {quantity(beyond)} more), or raise the limit."
        )
    if inactive is not None and inactive >= t.quantity:
        found.append(
            f"{size(inactive)} were inactive page cache, which the formula counts as free but the kernel could not "
            "give back in time."
        )
    if mark.scope == "global" and sample is not None:
        hidden = t.capacity - sample.usage
        found.append(
            f"{size(max(0, hidden))} of the machine were neither used by processes and cache nor free for them: "
            f"kernel memory is not in the formula; reserve it (systemReserved memory {quantity(max(0, hidden))})."
        )
    if available is not None:
        found.append(f"{_signal(f)}<{quantity(available + 1)} would have been crossed by then.")
    return found


def _before(f: Facts, basis: RecordedEviction | None, margin_bytes: int | None) -> list[str]:
    if f.rate is None:
        return ["Raise the threshold, or let outrace act (--enforce): how fast memory grew is not known."]
    found = []
    if f.crossing is not None and not f.crossing.hard and f.threshold is not None and f.threshold.grace_s > 0:
        room = max(0, f.crossing.available - max(0, f.threshold.capacity - (f.limit or f.threshold.capacity)))
        lasts = room / f.rate * 1e9
        found.append(
            f"At {rate(f.rate)} the way from the soft threshold to the limit takes {span(lasts)}: its grace of "
            f"{span(f.threshold.grace_s * 1e9)} has to be shorter."
        )
    kubelet = _needs(f, "a kubelet that looks every 10 s", KUBELET_NS)
    found.append(f"At {rate(f.rate)} {kubelet}; {_needs(f, 'outrace --enforce', STOP_NS)}.")
    return found


def _grace(f: Facts, basis: RecordedEviction | None, margin_bytes: int | None) -> list[str]:
    assert basis is not None
    d = basis.decision
    room = f.limit - d.usage if f.limit is not None and d.usage is not None else d.available
    if f.rate is None or room <= 0:
        return ["Shorten the grace or raise the threshold: how fast memory grew is not known."]
    lasts = room / f.rate * 1e9
    found = [f"At {rate(f.rate)} the {size(room)} that were left last {span(lasts)}."]
    if d.by == KUBELET:
        needed = _needs(f, "that", basis.grace_ns + STOP_NS)
        found.append(f"A kubelet gives a pod 2 s at least between SIGTERM and SIGKILL: {needed}. Or outrace --enforce.")
    elif basis.grace_ns:
        needed = _needs(f, "the whole grace", basis.grace_ns + STOP_NS)
        found.append(f"Set evictionMaxPodGracePeriod below that; {needed}.")
    else:
        found.append(f"For a safe distance, {_needs(f, 'a pod that dies as slowly', 4 * STOP_NS)}.")
    return found


def _after(f: Facts, basis: RecordedEviction | None, margin_bytes: int | None) -> list[str]:
    assert basis is not None
    if margin_bytes is None:
        return ["A larger evictionMinimumReclaim evicts the next pod at once: how much was lacking is not known."]
    lacked = f"{size(-margin_bytes)} were allocated again after the pod was gone"
    if basis.decision.observed:
        lacked = f"What outrace would have evicted was {size(-margin_bytes)} too little for this growth"
    has = "has" if basis.decision.observed else "would have had"
    wanted = f"{_signal(f)}={quantity(basis.decision.min_reclaim - margin_bytes)}"
    return [f"{lacked}: evictionMinimumReclaim {wanted} {has} the next pod evicted at once."]


def _own(f: Facts, basis: RecordedEviction | None, margin_bytes: int | None) -> list[str]:
    mark = f.kills[0]
    if mark.scope == BY_HAND:
        return []
    limit = f"above {size(mark.oom_limit)}" if mark.oom_limit is not None else "higher"
    held = f"{mark.victim_comm} held {size(mark.rss)}"
    if mark.oom_limit is not None and mark.rss * 2 < mark.oom_limit:
        held += f", less than half of it: look for other processes, tmpfs and kernel memory in {mark.oom_path}"
    whose = mark.pod_name or mark.oom_path or mark.memcg
    return [f"Set the memory limit of {whose} {limit}, or find what grows: {held}."]


def _undetermined(f: Facts, basis: RecordedEviction | None, margin_bytes: int | None) -> list[str]:
    lost = sum(e.count for e in f.lost)
    return [f"{lost} events were lost: the metrics say which and why."] if lost else []


#: In which something may have to change, besides a stall.
_VERDICTS = {
    i.EVICTION_WON: _won,
    i.OOM_UNSEEN: _unseen,
    i.OOM_BEFORE_DECISION: _before,
    i.OOM_DURING_GRACE: _grace,
    i.OOM_AFTER_EVICTION: _after,
    i.OWN_LIMIT: _own,
    i.UNDETERMINED: _undetermined,
}
