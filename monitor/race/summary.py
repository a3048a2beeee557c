"""The verdict in one sentence, for the engineer it woke up."""

from __future__ import annotations

from collections.abc import Iterator

from monitor.policy.signals import KUBELETS
from monitor.race import events as ev
from monitor.race import incident as i
from monitor.race import stalls
from monitor.race.evictions import RecordedEviction
from monitor.race.facts import Facts, available_of
from monitor.race.flags import collateral, suspended_at, wrong_victim
from monitor.race.holds import held_pods, remark
from monitor.race.margins import Margins, Ruling, held, observed_in_time
from monitor.race.units import listed, size, span


def summary(f: Facts, ruling: Ruling, flags: tuple[str, ...], margin: Margins) -> str:
    """One sentence; after a semicolon, at most two more things that matter."""
    text = stalls.sentence(f) if f.stalls else _VERDICTS[ruling.verdict](f, ruling.basis, *margin)
    if ruling.missing:
        text += ": " + "; ".join(ruling.missing)
    return "; ".join([text, *_extras(f, flags)[:2]]) + "."


def killed(f: Facts) -> str:
    """The victim: pod or process, with the memory it held."""
    first = f.kills[0]
    more = f", and {len(f.kills) - 1} more" if len(f.kills) > 1 else ""
    return f"{_who(first)} ({first.victim_comm}, pid {first.victim_pid}, {size(first.rss)}{more})"


def _who(mark: ev.Mark) -> str:
    return mark.pod_name or mark.pod or "a process outside every pod"


def _where(f: Facts) -> str:
    mark = f.kills[0]
    if mark.scope == "global":
        return "The machine ran out of memory"
    if mark.scope == ev.PODS:
        return f"The cgroup {mark.oom_path}, which holds pods, hit its limit{_of(mark)}"
    if mark.scope == ev.KUBEPODS:
        return f"The kubepods cgroup hit its limit{_of(mark)}"
    return f"The node hit its limit{_of(mark)}"


def _of(mark: ev.Mark) -> str:
    return f" of {size(mark.oom_limit)}" if mark.oom_limit is not None else ""


def _by(basis: RecordedEviction) -> str:
    return "the kubelet" if basis.decision.by == ev.KUBELET else "outrace"


def _won(f: Facts, basis: RecordedEviction | None, margin_bytes: int | None, margin_ms: float | None) -> str:
    assert basis is not None
    d = basis.decision
    if d.observed:
        spare = f"{span(margin_ms * 1e6)} before" if margin_ms is not None else "before"
        return f"outrace would have won: {d.pod_name} would have been gone {spare} the OOM killer took {killed(f)}"
    room = f", with {size(margin_bytes)} to spare" if margin_bytes is not None else ""
    done = [e.decision for e in f.evictions if not e.decision.observed]
    names = list(dict.fromkeys(one.pod_name for one in done if one.by == d.by))
    others = list(dict.fromkeys(one.pod_name for one in done if one.by != d.by))
    also = f", {'outrace' if d.by == ev.KUBELET else 'the kubelet'} {listed(others)}" if others else ""
    took = ""
    if basis.done_ns is not None and f.crossed_ns is not None:
        took = f" within {span(basis.done_ns - f.crossed_ns)} of the crossing"
    return f"Eviction won: {_by(basis)} evicted {listed(names)}{took}{also}{room}; nobody was OOM-killed"


def _unseen(f: Facts, basis: RecordedEviction | None, margin_bytes: int | None, margin_ms: float | None) -> str:
    available = f.available
    if f.threshold is None:
        formula = "there is no eviction threshold for it"
    elif available is None:
        formula = f"its threshold of {size(f.threshold.quantity)} was never crossed"
    else:
        by = "the kubelet's formula" if f.threshold.signal in KUBELETS.values() else f.threshold.signal
        formula = f"by {by} {size(available)} were available, and the threshold is {size(f.threshold.quantity)}"
    return f"OOM killer won unseen: {_where(f)[0].lower()}{_where(f)[1:]} and {killed(f)} was killed, but {formula}"


def _before(f: Facts, basis: RecordedEviction | None, margin_bytes: int | None, margin_ms: float | None) -> str:
    had = (f.kill_ns or 0) - (f.crossed_ns or 0)
    kind = "soft threshold" if f.crossing is not None and not f.crossing.hard else "threshold"
    when = f"{span(had)} after the {kind} was crossed" if had else f"in the very moment the {kind} was crossed"
    if suspended_at(f, f.kill_ns or 0):
        return f"OOM killer won: it took {killed(f)} {when}, while evictions were suspended that would not have helped"
    late = f"; it was decided {span(-margin_ms * 1e6)} too late" if margin_ms else ""
    return f"OOM killer won: it took {killed(f)} {when}, before anybody decided{late}"


def _grace(f: Facts, basis: RecordedEviction | None, margin_bytes: int | None, margin_ms: float | None) -> str:
    assert basis is not None
    d = basis.decision
    after = span((f.kill_ns or 0) - (basis.signalled_ns or d.ts_ns))
    would = "would have been" if d.observed else "was"
    left = span(-(margin_ms or 0) * 1e6)
    end = f"{left} before it {'would have been' if d.observed else 'was'} gone" if margin_ms else "before it was gone"
    if basis.grace_ns:
        end = f"{left} before its grace of {basis.grace_ns // 10**9} s was over"
    return f"OOM killer won: it took {killed(f)} {after} after {d.pod_name} {would} evicted, {end}"


def _after(f: Facts, basis: RecordedEviction | None, margin_bytes: int | None, margin_ms: float | None) -> str:
    assert basis is not None
    if basis.decision.observed:
        gone = observed_in_time(f)
        sizes = sum([held(f, e) or 0 for e in gone])
        short = f", {size(-margin_bytes)} less than memory grew by" if margin_bytes else ", no more than memory grew by"
        names = listed(list(dict.fromkeys(e.decision.pod_name for e in gone)))
        return (
            f"OOM killer won: outrace would have evicted {names} in time, but that was {size(sizes)}{short} until it "
            f"took {killed(f)}"
        )
    gave = f", which gave back {size(basis.freed)}" if basis.freed is not None else ""
    later = f"{span(-margin_ms * 1e6)} later" if margin_ms is not None else "later"
    return f"OOM killer won: {_by(basis)} evicted {basis.decision.pod_name}{gave}, but {later} it took {killed(f)}"


def _own(f: Facts, basis: RecordedEviction | None, margin_bytes: int | None, margin_ms: float | None) -> str:
    mark = f.kills[0]
    if mark.scope == ev.BY_HAND:
        return f"No race: a manual OOM kill (SysRq f) took {killed(f)}"
    what = {"pod": "pod", "container": "container"}.get(mark.scope, "cgroup")
    if mark.held:
        return f"No race: {killed(f)} was OOM-killed at the cap{_of(mark)} that outrace held the pod with"
    return f"No race: {killed(f)} was OOM-killed at the {what}'s own limit{_of(mark)}"


def _relieved(f: Facts, basis: RecordedEviction | None, margin_bytes: int | None, margin_ms: float | None) -> str:
    holds = bool(held_pods(f))
    if f.crossed_ns is None:
        return _uncrossed(f, holds)
    if f.only_kubelets:
        return _only_kubelets(f)
    if basis is not None:
        what = "without an OOM kill" if f.user_kills or f.exiting else "and nobody died"
        return f"Relieved: memory came back {what}; outrace would have evicted {basis.decision.pod_name}"
    room = f", {size(margin_bytes)} before the limit" if margin_bytes is not None else ""
    how = "while growth was held, without an OOM kill" if holds else "without an eviction or an OOM kill"
    return f"Relieved: memory came back {how}{room}"


def _uncrossed(f: Facts, holds: bool) -> str:
    if f.user_kills:
        return "No OOM kill: it only looks like one"
    if not f.exiting and holds:
        return "Relieved: growth was held before the threshold was met"
    return "No OOM kill: the OOM killer found a victim that was ending already"


def _only_kubelets(f: Facts) -> str:
    """The line of the kubelet's formula was crossed, and by outrace's own nothing was short."""
    assert f.crossing is not None
    mine = [w for w in f.episode.watched if w.domain == f.crossing.domain and not w.compared and w.hard]
    domain = f.crossing.domain
    samples = [
        e for e in f.episode.events if isinstance(e, ev.Sample) and e.domain == domain and e.ts_ns >= f.episode.start_ns
    ]
    left = [available_of(e, w) for w in mine[-1:] for e in samples]
    least = f": by {mine[-1].signal} at least {size(min(left))} were available" if left else ""
    return (
        f"Nothing was wrong: only the kubelet's formula was below its line of {size(f.crossing.quantity)}{least}, and "
        "nobody was OOM-killed"
    )


def _undetermined(f: Facts, basis: RecordedEviction | None, margin_bytes: int | None, margin_ms: float | None) -> str:
    if f.kills:
        pods = list(dict.fromkeys(_who(m) for m in f.kills))
        others = f" of {listed(pods)}" if len(pods) > 1 else ""
        return f"Undetermined: the OOM killer took {killed(f)}{others}, but this is not known"
    return "Undetermined, because this is not known"


_IN_ORDER = (_won, _unseen, _before, _grace, _after, _own, _relieved, _undetermined)
_VERDICTS = dict(zip(i.VERDICTS, _IN_ORDER, strict=False))  # a stall has a sentence of its own


def _extras(f: Facts, flags: tuple[str, ...]) -> list[str]:
    """Further remarks, the worst first."""
    holds = held_pods(f)
    found = [remark(holds)] if holds else []
    found += [*_by_policy(f), *_by_api(f)]
    found += [f"{mark.victim_comm} (pid {mark.victim_pid}) belongs to no pod" for mark in collateral(f)[:1]]
    if i.BRAKED in flags and not suspended_at(f, f.kill_ns or 0):
        found.append("evictions were suspended that would not have helped")
    if i.GROUP_KILL in flags:
        found.append(f"{len(f.kills)} processes were killed as a group")
    found += _by_signals(f)
    if i.OVER_EVICTION in flags:
        found.append("an eviction was not needed")
    return found


def _by_policy(f: Facts) -> Iterator[str]:
    """What a kubelet's formula and the policy's order had foreseen."""
    line = f.kubelets_line
    if f.kills and line is not None and f.kill_ns is not None:
        ago = span(f.kill_ns - line.ts_ns)
        yield f"the kubelet's formula had crossed its line of {size(line.quantity)} {ago} before"
    wrong = wrong_victim(f)
    if wrong is not None:
        first = next(c for c in f.order if not c.critical)
        yield f"the policy would not have taken {_who(wrong)} but {first.namespace}/{first.name}"


def _by_api(f: Facts) -> Iterator[str]:
    """What a kubelet and the API server did."""
    killed_pods = {m.pod for m in f.kills}
    reported = (e for e in f.episode.events if isinstance(e, ev.KubeletEvicted) and e.pod in killed_pods)
    if (both := next(reported, None)) is not None:
        yield f"the API has {both.pod_name} as Evicted by the kubelet, but the OOM killer took it"
    stale = next((e.decision for e in f.evictions if e.decision.by == ev.KUBELET and e.decision.rank > 1), None)
    if stale is not None and all(c.priority is not None for c in f.order):
        why = "it ranks by figures of pods that are up to 15 s old"
        yield f"the kubelet took {stale.pod_name}, number {stale.rank} in the order of eviction: {why}"
    refused = [e for e in f.episode.events if isinstance(e, ev.Refused)]
    if refused:
        verb = "a PodDisruptionBudget keeps" if any(e.budget for e in refused) else "the API server does not evict"
        yield f"{verb} {listed(list(dict.fromkeys(name for e in refused for name in e.pods)))}"


def _by_signals(f: Facts) -> Iterator[str]:
    """SIGKILLs of others, and marks that killed nothing or are told otherwise."""
    if f.user_kills:
        kill = f.user_kills[0]
        sender = f"{kill.sender_comm or 'a process'} (pid {kill.sender_pid})"
        others = f", and {len(f.user_kills) - 1} more SIGKILLs" if len(f.user_kills) > 1 else ""
        who = kill.pod_name or kill.pod
        yield f"{who} ({kill.victim_comm}, pid {kill.victim_pid}) got SIGKILL from {sender}{others}"
    for ending in f.exiting[:1]:
        yield f"{ending.victim_comm} (pid {ending.victim_pid}) was marked, but ending already"
