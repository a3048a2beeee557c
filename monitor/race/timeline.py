"""The timeline of an incident: what happened when, with the bytes known then, and what had grown before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from monitor.race import events as ev
from monitor.race.episode import Episode

#: How many of those that grew most before an episode are named.
_GROWERS = 3
#: Growth and shifts of cache below 1 MiB started nothing.
_NOTABLE = 2**20
#: Steps of one kind that are listed one by one; the rest of them is one step with a count.
_MOST = 64


def steps(episode: Episode) -> tuple[dict[str, Any], ...]:
    """Every step, in order, `t_ms` from the episode's start (negative: before it)."""
    found = list(_before(episode))
    counts: Counter[str] = Counter()
    left_out: dict[str, int] = {}  # when the last of them was
    reclaimed: set[str] = set()
    for event in episode.events:
        if isinstance(event, ev.Reclaim):
            if event.memcg in reclaimed:
                continue  # a reclaim is begun dozens of times on the way to an OOM: the first says it
            reclaimed.add(event.memcg)
        if (made := _step(event)) is None:
            continue
        what = made["what"]
        counts[what] += 1
        if counts[what] > _MOST:
            left_out[what] = event.ts_ns
        else:
            found.append(_at(episode, event.ts_ns, made))
    for what, ts_ns in left_out.items():
        found.append(_at(episode, ts_ns, {"what": "more", "of": what, "count": counts[what] - _MOST}))
    return tuple(sorted(found, key=lambda s: float(s["t_ms"])))


def _at(episode: Episode, ts_ns: int, fields: dict[str, Any]) -> dict[str, Any]:
    return {"t_ms": round((ts_ns - episode.start_ns) / 1e6, 3), **fields}


#: What a step is called, and its fields: key, or key=attribute.
_STEPS: dict[type[ev.Event], tuple[str, str]] = {
    ev.Crossing: ("crossed", "domain signal kind quantity available usage working_set"),
    ev.Seen: ("seen", "by signal available"),
    ev.Suspended: ("held", "signal reason available pods outside kubelet_would_evict=pod_name"),
    ev.Decided: (
        "decided",
        "by pod=pod_name rank grace_s available observed trigger pod_working_set=working_set",
    ),
    ev.Refused: ("refused", "signal pods budget problem instead"),
    ev.PodHeld: ("pod_held", "pod=pod_name reason brake cap usage available step second_line signal left_out"),
    ev.PodReleased: ("pod_released", "pod=pod_name why held_ms grew usage available instead left_out"),
    ev.Stalled: ("stalled", "over pod=pod_name share why cause=cause_name lacks grew available high_before high"),
    ev.Signalled: ("signalled", "by pod=pod_name signal"),
    ev.Gone: ("gone", "by pod=pod_name freed"),
    ev.KubeletEvicted: ("reported_evicted", "by pod=pod_name message"),
    ev.Clear: ("clear", "domain signal kind available"),
    ev.Reclaim: ("reclaim", "memcg"),
    ev.Mark: (
        "oom",
        "pid=victim_pid comm=victim_comm pod=whose rss oom_score_adj limit_of usage=oom_usage limit=oom_limit "
        "invoker_pid invoker=invoker_comm",
    ),
    ev.Kill: ("sigkill", "pid=victim_pid comm=victim_comm pod=pod_name from ours"),
    ev.Exit: ("exited", "pid comm pod=whose"),
    ev.Checked: ("checked", "source agrees detail"),
    ev.Lost: ("lost", "of=what count"),
}
#: Attributes that no event has as it is shown. (0 of `cap` and the like: there is none.)
_WORKED_OUT: dict[str, Callable[[Any], Any]] = {
    "kind": lambda event: "hard" if event.hard else "soft",
    "whose": lambda event: event.pod_name or event.pod,
    "cap": lambda event: event.cap or None,
    "second_line": lambda event: event.second_line or None,
    "left_out": lambda event: event.left_out or None,
    "over": lambda event: event.over or None,
    "held_ms": lambda event: event.held_ns / 1e6,
    "limit_of": lambda event: event.oom_path or event.scope,
    "from": lambda event: "kernel" if event.si_code == 128 else event.sender_comm,
    "by": lambda event: getattr(event, "by", ev.KUBELET),
}


def _step(event: ev.Event) -> dict[str, Any] | None:
    what, shown = _STEPS.get(type(event), ("", ""))
    if isinstance(event, ev.Suspended) and not event.reason:
        what, shown = "not_held", "signal reason"
    if isinstance(event, ev.Mark) and event.exiting:
        what = "exiting"
    made: dict[str, Any] = {"what": what}
    for one in shown.split():
        key, _, name = one.partition("=")
        work_out = _WORKED_OUT.get(name or key)
        value = getattr(event, name or key) if work_out is None else work_out(event)
        made[key] = list(value) if isinstance(value, tuple) else value
    return made if what else None


def _before(episode: Episode) -> Iterable[dict[str, Any]]:
    """What the flight recorder saw up to the start: the pods that grew most, and page cache that became active."""
    seen: dict[str, list[ev.Sample]] = {}
    for event in episode.events:
        if isinstance(event, ev.Sample) and event.ts_ns <= episode.start_ns:
            seen.setdefault(event.domain, []).append(event)
    names = {c.uid: f"{c.namespace}/{c.name}" for e in episode.events if isinstance(e, ev.Ranked) for c in e.order}
    grown = sorted((every[0].working_set - every[-1].working_set, name) for name, every in seen.items())
    for less, domain in grown[:_GROWERS]:
        if -less >= _NOTABLE:
            first, last = seen[domain][0], seen[domain][-1]
            pod = names.get(last.pod, last.pod) if last.pod else None
            in_s = round((last.ts_ns - first.ts_ns) / 1e9, 3)
            made = {"what": "grew", "domain": domain, "pod": pod, "bytes": -less, "in_s": in_s}
            yield _at(episode, last.ts_ns, made)
    for domain, samples in sorted(seen.items()):
        first, last = samples[0], samples[-1]
        active, inactive = last.active_file - first.active_file, last.inactive_file - first.inactive_file
        if active >= _NOTABLE and inactive < 0:
            made = {"what": "cache_activated", "domain": domain}
            yield _at(episode, last.ts_ns, {**made, "active_file": active, "inactive_file": inactive})
