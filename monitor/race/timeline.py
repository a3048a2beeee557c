"""The timeline of an incident: what happened when, with the bytes known then, and what had grown before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from monitor.race import events as ev
from monitor.race.episode import Episode
from monitor.race.memory import growth_before, pod_names

#: How many of those that grew most before an episode are named.
_GROWERS = 3
#: Growth and shifts of cache below 1 MiB started nothing.
_NOTABLE = 2**20
#: Steps of one kind that are listed one by one; the rest of them is one step with a count.
_MOST = 64


def steps(episode: Episode) -> tuple[dict[str, Any], ...]:
    """Every step, in order, `t_ms` from the episode's start (negative: before it)."""
    found = list(_before(episode))
    counts: dict[str, int] = {}
    left_out: dict[str, tuple[int, int]] = {}
    reclaimed: set[str] = set()
    for event in episode.events:
        if isinstance(event, ev.Reclaim):
            if event.memcg in reclaimed:
                continue  # a reclaim is begun dozens of times on the way to an OOM: the first says it
            reclaimed.add(event.memcg)
        made = _step(event)
        if made is None:
            continue
        what = made["what"]
        counts[what] = counts.get(what, 0) + 1
        if counts[what] > _MOST:
            left_out[what] = (event.ts_ns, counts[what] - _MOST)
            continue
        found.append(_at(episode, event.ts_ns, made))
    for what, (ts_ns, count) in left_out.items():
        found.append(_at(episode, ts_ns, {"what": "more", "of": what, "count": count}))
    found.sort(key=lambda s: float(s["t_ms"]))
    return tuple(found)


def _at(episode: Episode, ts_ns: int, fields: dict[str, Any]) -> dict[str, Any]:
    return {"t_ms": round((ts_ns - episode.start_ns) / 1e6, 3), **fields}


def _step(event: ev.Event) -> dict[str, Any] | None:
    match event:
        case ev.Crossing():
            made: dict[str, Any] = {"what": "crossed", "domain": event.domain, "signal": event.signal}
            made |= {"kind": "hard" if event.hard else "soft", "quantity": event.quantity}
            made |= {"available": event.available, "usage": event.usage, "working_set": event.working_set}
        case ev.Seen():
            made = {"what": "seen", "by": event.by, "signal": event.signal, "available": event.available}
        case ev.Held():
            made = {"what": "held" if event.reason else "not_held", "signal": event.signal, "reason": event.reason}
            if event.reason:
                made |= {"available": event.available, "pods": event.pods, "outside": event.outside}
                made |= {"kubelet_would_evict": event.pod_name}
        case ev.Decided():
            made = {"what": "decided", "by": event.by, "pod": event.pod_name, "rank": event.rank}
            made |= {"grace_s": event.grace_s, "available": event.available, "observed": event.observed}
            made |= {"trigger": event.trigger, "pod_working_set": event.working_set}
        case ev.Refused():
            made = {"what": "refused", "signal": event.signal, "pods": list(event.pods), "budget": event.budget}
            made |= {"problem": event.problem, "instead": event.instead}
        case ev.Hold():
            made = {"what": "pod_held", "pod": event.pod_name, "reason": event.reason, "brake": event.brake}
            made |= {"cap": event.cap or None, "usage": event.usage, "available": event.available, "step": event.step}
            made |= {"second_line": event.second_line or None, "signal": event.signal}
            made |= {"left_out": event.left_out or None}
        case ev.HoldEnd():
            made = {"what": "pod_released", "pod": event.pod_name, "why": event.why, "held_ms": event.held_ns / 1e6}
            made |= {"grew": event.grew, "usage": event.usage, "available": event.available, "instead": event.instead}
            made |= {"left_out": event.left_out or None}
        case ev.Stalled():
            made = {"what": "stalled", "over": event.over or None, "pod": event.pod_name, "share": event.share}
            made |= {"why": event.why, "cause": event.cause_name, "lacks": event.lacks, "grew": event.grew}
            made |= {"available": event.available}
        case ev.Signalled():
            made = {"what": "signalled", "by": event.by, "pod": event.pod_name, "signal": event.signal}
        case ev.Gone():
            made = {"what": "gone", "by": event.by, "pod": event.pod_name, "freed": event.freed}
            made |= {"exits": [_ended(*one) for one in event.exits[:_MOST]] or None}
        case ev.KubeletEvicted():
            made = {"what": "reported_evicted", "by": ev.KUBELET, "pod": event.pod_name, "message": event.message}
        case ev.Clear():
            made = {"what": "clear", "domain": event.domain, "signal": event.signal}
            made |= {"kind": "hard" if event.hard else "soft", "available": event.available}
        case ev.Reclaim():
            made = {"what": "reclaim", "memcg": event.memcg}
        case ev.Mark():
            made = {"what": "exiting" if event.exiting else "oom", "pid": event.victim_pid, "comm": event.victim_comm}
            made |= {"pod": event.pod_name or event.pod, "rss": event.rss, "oom_score_adj": event.oom_score_adj}
            made |= {"limit_of": event.oom_path or event.scope, "usage": event.oom_usage, "limit": event.oom_limit}
            made |= {"invoker_pid": event.invoker_pid, "invoker": event.invoker_comm}
        case ev.Kill():
            made = {"what": "sigkill", "pid": event.victim_pid, "comm": event.victim_comm, "pod": event.pod_name}
            made |= {"from": "kernel" if event.si_code == 128 else event.sender_comm, "ours": event.ours}
        case ev.Exit():
            made = {"what": "exited", "pid": event.pid, "comm": event.comm, "pod": event.pod_name or event.pod}
        case ev.Checked():
            made = {"what": "checked", "source": event.source, "agrees": event.agrees, "detail": event.detail}
        case ev.Lost():
            made = {"what": "lost", "of": event.what, "count": event.count}
        case _:
            return None
    return made


def _ended(pid: int, status: int) -> dict[str, int | None]:
    """How a process ended: the code that it gave, or the signal that ended it (the layout of wait(2))."""
    signal = status & 0x7F
    return {"pid": pid, "exit_code": None if signal else status >> 8 & 0xFF, "signal": signal or None}


def _before(episode: Episode) -> Iterable[dict[str, Any]]:
    """What the flight recorder saw up to the start: the pod that grew most, and page cache that became active."""
    names = pod_names(episode)
    grown = growth_before(episode)
    for one in grown[:_GROWERS]:
        if one.bytes >= _NOTABLE:
            pod = one.last.pod
            made = {"what": "grew", "domain": one.domain, "pod": names.get(pod, pod) if pod else None}
            yield _at(episode, one.last.ts_ns, {**made, "bytes": one.bytes, "in_s": one.seconds})
    for one in sorted(grown, key=lambda each: each.domain):
        active = one.last.active_file - one.first.active_file
        inactive = one.last.inactive_file - one.first.inactive_file
        if active >= _NOTABLE and inactive < 0:
            made = {"what": "cache_activated", "domain": one.domain}
            yield _at(episode, one.last.ts_ns, {**made, "active_file": active, "inactive_file": inactive})
