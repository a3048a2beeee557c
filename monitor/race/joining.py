"""What belongs to an episode that is going on, and what has to end before it does."""

from __future__ import annotations

from dataclasses import dataclass, replace

from monitor.race.codec import Record
from monitor.race.events import (
    KUBELET,
    KUBEPODS,
    NODE,
    RACE_SCOPES,
    SIGKILL,
    Checked,
    Clear,
    Crossing,
    Decided,
    Event,
    Exit,
    Gone,
    Kill,
    Lost,
    Mark,
    Ranked,
    Reclaim,
    Sample,
    Seen,
    Signalled,
)

#: How long before its mark a victim may have left: what lies between is a preemption. No pid is used again so soon.
EARLY_EXIT_NS = 1_000_000_000
#: Key of the one episode that node and kubepods have together.
PRESSURE = ""


@dataclass(frozen=True, slots=True)
class Bounds(Record):
    """How long and how much. Times in ns.

    `settle_ns`: an episode is over when nothing happened for so long after the last threshold cleared and the last
    victim died. `slack_ns`: how far the rings may be apart. `before_ns`: how much of the flight recorder an episode
    takes along. `victim_ns`: a victim that did not die in this time (plus its grace) is not waited for: it is the 30 s
    a kubelet waits. `events`, `samples`: most kept of an episode, the first half and the latest half of what comes.
    """

    settle_ns: int = 2_000_000_000
    slack_ns: int = 50_000_000
    before_ns: int = 30_000_000_000
    victim_ns: int = 30_000_000_000
    events: int = 1024
    samples: int = 2048
    open: int = 32


DEFAULT_BOUNDS = Bounds()


@dataclass(frozen=True, slots=True)
class Open:
    """An episode going on."""

    key: str
    domain: str
    start_ns: int
    last_ns: int
    events: tuple[Event, ...] = ()
    samples: tuple[Event, ...] = ()
    met: frozenset[tuple[str, str, bool]] = frozenset()  # thresholds, by domain, signal, hard
    pids: tuple[tuple[int, int], ...] = ()  # victims awaited: pid, until when
    pods: tuple[tuple[str, int], ...] = ()  # pods being evicted: uid, until when
    dropped: int = 0


def place_of(event: Event) -> tuple[str, str] | None:
    """Key and domain of the episode that this event may begin or surely belongs to."""
    if isinstance(event, Crossing | Clear | Seen | Decided):
        return (PRESSURE if event.domain in (NODE, KUBEPODS) else event.domain), event.domain
    if isinstance(event, Mark):
        if event.scope in RACE_SCOPES:
            return PRESSURE, (KUBEPODS if event.scope == KUBEPODS else NODE)
        path = event.oom_path or event.memcg
        return path, path
    return None


def concerns(o: Open, event: Event) -> bool:
    """Whether an event belongs to an episode that is open."""
    if isinstance(event, Mark) and event.exiting and _was_killed(o, event):
        return True  # the end of that story, not the beginning of another
    place = place_of(event)
    if place is not None:
        return o.key == place[0]
    if isinstance(event, Lost):
        return True
    if isinstance(event, Kill) and event.by_user:
        # What a runtime kills after an OOM in a container belongs there; anything in a pod is of interest in pressure.
        return o.key == PRESSURE or o.key == event.memcg or any(_same_pod(e, event) for e in o.events)
    if isinstance(event, Exit):
        return any(pid == event.pid for pid, _ in o.pids)
    if isinstance(event, Checked):
        return any(isinstance(e, Mark) and e.victim_pid == event.victim_pid for e in o.events)
    if o.key == PRESSURE:
        return True  # samples, reclaim, kills by the kernel, signals and ends of evicted pods
    if isinstance(event, Sample):
        return o.domain == event.domain or any(isinstance(e, Mark) and e.pod == event.pod for e in o.events)
    if isinstance(event, Reclaim):
        return o.domain == event.memcg
    return isinstance(event, Kill) and any(_same_pod(e, event) for e in o.events)


def _was_killed(o: Open, mark: Mark) -> bool:
    """Whether the episode tells of a signal that the marked process was ending by."""
    return any(isinstance(e, Kill) and e.by_user and e.victim_pid == mark.victim_pid for e in o.events)


def _same_pod(event: Event, kill: Kill) -> bool:
    return isinstance(event, Mark | Kill) and kill.pod is not None and event.pod == kill.pod


def of_victim(old: Event, event: Event) -> bool:
    """The OOM killer's SIGKILL, and perhaps the exit, recorded before the mark.

    A victim may be gone when its mark is traced: one that runs on the killer's CPU as soon as it is killed, or a frozen
    one that was ending anyway and is let go by the mark.
    """
    if not isinstance(event, Mark):
        return False
    return (isinstance(old, Kill) and old.victim_pid == event.victim_pid) or (
        isinstance(old, Exit) and old.pid == event.victim_pid and old.ts_ns >= event.ts_ns - EARLY_EXIT_NS
    )


def joined(o: Open, event: Event, bounds: Bounds, before: bool = False) -> Open:
    """The episode with one more event."""
    if isinstance(event, Sample):
        samples = (*o.samples, event)
        if len(samples) > bounds.samples:
            half = len(samples) // 2
            # The older half is thinned out: every second sample of it goes.
            samples = (*samples[:half:2], *samples[half:])
        return replace(o, samples=samples)
    if isinstance(event, Exit):
        o = replace(o, pids=tuple([p for p in o.pids if p[0] != event.pid]))
    if len(o.events) < bounds.events:
        o = replace(o, events=(*o.events, event))
    else:
        half = bounds.events // 2
        o = replace(o, events=(*o.events[:half], *o.events[half + 1 :], event), dropped=o.dropped + 1)
    if before or isinstance(event, Ranked | Reclaim | Lost | Seen | Checked):
        return o
    o = _tracked(o, event, bounds)
    return replace(o, last_ns=max(o.last_ns, event.ts_ns))


def _tracked(o: Open, event: Event, bounds: Bounds) -> Open:
    """What has to end before the episode does."""
    if isinstance(event, Crossing):
        return replace(o, met=o.met | {(event.domain, event.signal, event.hard)})
    if isinstance(event, Clear):
        return replace(o, met=o.met - {(event.domain, event.signal, event.hard)})
    if isinstance(event, Mark):
        awaited = (*o.pids, (event.victim_pid, event.ts_ns + bounds.victim_ns))
        return replace(o, pids=awaited[-bounds.events :])
    if isinstance(event, Decided) and not event.observed:
        until = event.ts_ns + event.grace_s * 10**9 + bounds.victim_ns
        return replace(o, pods=(*[p for p in o.pods if p[0] != event.pod], (event.pod, until)))
    if isinstance(event, Gone):
        return replace(o, pods=tuple([p for p in o.pods if p[0] != event.pod]))
    if isinstance(event, Signalled) and event.signal == SIGKILL and event.by == KUBELET:
        until = event.ts_ns + bounds.victim_ns
        return replace(o, pods=tuple([(uid, min(was, until) if uid == event.pod else was) for uid, was in o.pods]))
    return o
