"""The verdict on an episode: exactly one, with its flags, its margins and the sentence that says it
(docs/verdicts.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from monitor.policy.eviction_pass import PassConfig
from monitor.race import incident as i
from monitor.race.advice import advice
from monitor.race.badness import policy_rank
from monitor.race.counterfactual import kubelets_answer
from monitor.race.episode import OPEN, QUIET, Episode
from monitor.race.events import KUBEPODS, NODE, KubeletEvicted, Mark, Refused
from monitor.race.evictions import RecordedEviction
from monitor.race.facts import Facts, domain_of
from monitor.race.flags import flags
from monitor.race.holds import held_pods
from monitor.race.incident import Evicted, Incident, Invoker, OomVictim, timestamp
from monitor.race.margins import Ruling, balance, margins, observed_in_time
from monitor.race.memory import memory
from monitor.race.stalls import stalled_pod
from monitor.race.summary import summary
from monitor.race.timeline import steps
from monitor.race.units import listed

#: Of a path in an incident's id; a longer name of a single directory is kept.
_ID_CHARS = 64


def verdict(episode: Episode, realtime_ns: int = 0, config: PassConfig | None = None) -> Incident:
    """Judge an episode. Never raises for any that `feed` made. ``realtime_ns``: makes its times those since 1970, where
    it does not know. ``config``: what a kubelet with these thresholds would have done; None: that is not asked.
    """
    if episode.realtime_ns is not None:
        realtime_ns = episode.realtime_ns
    f = Facts(episode)
    ruling = rule(f)
    basis = ruling.basis
    marks = flags(f)
    margin = margins(f, ruling)
    decisions = [e.decision for e in f.evictions]
    carried_out = [d for d in decisions if not d.observed]
    start = timestamp(episode.start_ns + realtime_ns)
    return Incident(
        id=_id(start, episode.domain),
        start=start,
        end=timestamp(episode.end_ns + realtime_ns),
        domain=episode.domain,
        verdict=ruling.verdict,
        flags=marks,
        oom_victims=tuple([_victim(m, policy_rank(f.order, m.pod)) for m in f.kills]),
        invoker=next((Invoker(m.invoker_pid, m.invoker_comm, m.invoker_pod) for m in f.kills or f.exiting), None),
        evicted=tuple([Evicted(d.pod_name, d.grace_s, d.rank) for d in carried_out or decisions]),
        margin_bytes=margin[0],
        margin_ms=margin[1],
        steps=steps(episode),
        advice=advice(f, ruling, marks, margin[0]),
        summary=summary(f, ruling, marks, margin),
        observed=basis is not None and basis.decision.observed,
        by=basis.decision.by if basis is not None else None,
        missing=ruling.missing,
        counterfactual=() if config is None else kubelets_answer(f, config),
        reported_evicted=tuple(dict.fromkeys(e.pod_name for e in episode.events if isinstance(e, KubeletEvicted))),
        holds=held_pods(f),
        memory=memory(f),
        stall=stalled_pod(f) if f.stalls else None,
        refused=tuple(dict.fromkeys(name for e in episode.events if isinstance(e, Refused) for name in e.pods)),
    )


def _id(start: str, domain: str) -> str:
    """Unique on a machine: the time of the start, and the place. Node and kubepods have their episode in common, and
    which of them it is about may be learned after the first alert: the id has to be the same then.
    """
    digits = "".join(c for c in start if c.isdigit())
    names = [part for part in (NODE if domain == KUBEPODS else domain).split("/") if part]
    # Of a long path the end, whole names: what is cut in the middle can be found nowhere.
    while len(names) > 1 and len("-".join(names)) > _ID_CHARS:
        del names[0]
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in "-".join(names)).strip("-")
    return f"{digits[:8]}-{digits[8:14]}.{digits[14:]}-{name or 'root'}"


def rule(f: Facts) -> Ruling:
    """Which verdict it is; undetermined if what was lost could have made it another one."""
    found = _rule(f)
    if found.verdict == i.UNDETERMINED:
        return found
    lost = _lost_that_matters(f, found)
    return Ruling(i.UNDETERMINED, found.basis, lost) if lost else found


def _rule(f: Facts) -> Ruling:
    if f.stalls:
        return Ruling(i.STALLED)
    if not f.kills:
        return _nobody_killed(f)
    if not f.race:
        return Ruling(i.OWN_LIMIT)
    kill_ns = f.kills[0].ts_ns
    before = f.relevant_evictions
    # An eviction that was carried out decides, also a kubelet's; an observed one counts where there is no other.
    done = [e for e in before if not e.decision.observed]
    if done:
        under_way = [e for e in done if e.done_ns is None or e.done_ns > kill_ns]
        return Ruling(i.OOM_DURING_GRACE, under_way[-1]) if under_way else Ruling(i.OOM_AFTER_EVICTION, done[-1])
    if before:
        return _observed_ruling(f, before)
    if f.crossed_ns is not None and f.crossed_ns <= kill_ns:
        domain = domain_of(f.kills[0])
        later = [e for e in f.evictions if e.decision.ts_ns > kill_ns and e.decision.domain == domain]
        return Ruling(i.OOM_BEFORE_DECISION, later[0] if later else None)
    return Ruling(i.OOM_UNSEEN)


def _observed_ruling(f: Facts, before: Sequence[RecordedEviction]) -> Ruling:
    """An OOM kill while outrace only observed: it won if pods that held enough would have been gone by then."""
    in_time = observed_in_time(f)
    if not in_time:
        return Ruling(i.OOM_DURING_GRACE, before[0])
    spare = balance(f)
    if spare is None:
        names = listed([e.decision.pod_name for e in in_time])
        return Ruling(i.UNDETERMINED, in_time[0], (f"whether what {names} held would have been enough",))
    if spare > 0:
        return Ruling(i.EVICTION_WON, in_time[0])
    under_way = [e for e in before if e not in in_time]
    return Ruling(i.OOM_DURING_GRACE, under_way[-1]) if under_way else Ruling(i.OOM_AFTER_EVICTION, in_time[-1])


def _nobody_killed(f: Facts) -> Ruling:
    """No OOM kill: evicted, or gone by itself, or not over."""
    done = [e for e in f.evictions if not e.decision.observed]
    thought = f.evictions[0] if f.evictions else None
    if done:
        over = f.cleared or any(e.gone_ns is not None for e in done)
        if over:
            return Ruling(i.EVICTION_WON, done[0])
        return Ruling(i.UNDETERMINED, done[0], (f"what became of {done[0].decision.pod_name}: {_end(f)}",))
    if f.cleared or f.episode.ended == QUIET:
        return Ruling(i.RELIEVED, thought)
    return Ruling(i.UNDETERMINED, thought, (f"how it ended: {_end(f)}",))


def _end(f: Facts) -> str:
    return "it is still going on" if f.episode.ended == OPEN else "the record stops before"


#: What was lost -> the verdicts that it could have made another one, and what is missing then.
_MATTERS = {
    "oom": ((i.EVICTION_WON, i.RELIEVED), "whether the OOM killer came"),
    "cross": ((i.OOM_UNSEEN,), "whether the threshold was crossed"),
    "decision": (
        (i.OOM_UNSEEN, i.OOM_BEFORE_DECISION, i.OOM_DURING_GRACE, i.RELIEVED),
        "what was decided, and whether the evicted pod was gone",
    ),
}


def _lost_that_matters(f: Facts, found: Ruling) -> tuple[str, ...]:
    missing = []
    for lost in f.lost:
        verdicts, what = _MATTERS.get(lost.what, ((), ""))
        if found.verdict not in verdicts:
            continue
        # A crossing lost before the first sign may still have held; a mark lost then is no part of this. Where a
        # process was killed, a further mark changes nothing.
        if lost.what != "oom" or (lost.ts_ns >= f.episode.start_ns and not f.kills):
            missing.append(f"{what} ({lost.count} {lost.what} events lost)")
    return tuple(dict.fromkeys(missing))


def _victim(m: Mark, rank: int | None) -> OomVictim:
    return OomVictim(m.victim_pid, m.victim_comm, m.pod_name or m.pod, m.memcg, m.rss, m.oom_score_adj, rank)
