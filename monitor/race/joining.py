"""What belongs to an episode that is going on, and what has to end before it does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from monitor.race import events as ev
from monitor.race.codec import Record

#: How long before its mark a victim may have left: what lies between is a preemption. No pid is used again so soon.
EARLY_EXIT_NS = 1_000_000_000
#: Key of the one episode that node and kubepods have together, and how that of a stalled pod begins.
PRESSURE, STALL = "", "stall "
#: A stall lasts until its end is reported: for so long at most.
_STALL_NS = 24 * 3600 * 10**9

#: What only accompanies an episode, and does not keep it open.
_ASIDE = (
    ev.Ranked | ev.WorkingSets | ev.Reclaim | ev.Lost | ev.Seen | ev.Suspended | ev.Refused | ev.Checked
    | ev.KubeletEvicted
)  # fmt: skip

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bounds(Record):
    """How long and how much. Times in ns.

    `settle_ns`: an episode is over when nothing happened for so long after the last threshold cleared and the last
    victim died. `slack_ns`: how far the rings may be apart. `before_ns`: how much of the flight recorder an episode
    takes along. `victim_ns`: a victim that did not die in this time (plus its grace) is not waited for: it is the 30 s
    a kubelet waits. `events`, `samples`: most kept of an episode, the first half and the latest half of what comes.
    `longest_ns`: endless kills at one limit are cut into episodes of this length: the episode of a container that is
    killed again as soon as it is back would never end.
    """

    settle_ns: int = 2_000_000_000
    slack_ns: int = 50_000_000
    before_ns: int = 30_000_000_000
    victim_ns: int = 30_000_000_000
    events: int = 1024
    samples: int = 2048
    open: int = 32
    longest_ns: int = 60_000_000_000


DEFAULT_BOUNDS = Bounds()


@dataclass(frozen=True, slots=True)
class Open(Record):
    """An episode going on. What every event is compared with is kept beside the events: looking through a thousand of
    them, in each of 30 episodes, took longer than the events were apart.
    """

    key: str
    domain: str
    start_ns: int
    last_ns: int
    events: tuple[ev.Event, ...] = ()
    samples: tuple[ev.Event, ...] = ()
    met: frozenset[tuple[str, str, bool]] = frozenset()  # thresholds, by domain, signal, hard
    pids: tuple[tuple[int, int], ...] = ()  # victims awaited: pid, until when
    pods: tuple[tuple[str, int], ...] = ()  # pods being evicted: uid, until when
    holds: tuple[tuple[str, int], ...] = ()  # pods that are held: uid, until when
    dropped: int = 0
    hard: bool = False  # a hard threshold was crossed
    ranked_ns: int | None = None  # time of the last ranking it has
    touched_ns: int = 0  # how far the stream was when a process was last killed or gone here
    marked: tuple[int, ...] = ()  # pids with a mark
    marked_pods: tuple[str, ...] = ()
    killed: tuple[int, ...] = ()  # pids that a user's signal was for
    killed_pods: tuple[str, ...] = ()  # of any kill or mark
    realtime_ns: int | None = None  # what makes its times Unix times


def key_of(event: ev.Event) -> tuple[str, str] | None:
    """Key and domain of the episode that this event may begin or surely belongs to."""
    if isinstance(event, ev.Crossing | ev.Clear | ev.Seen | ev.Suspended | ev.Decided | ev.Refused | ev.PodHeld):
        return (PRESSURE if event.domain in (ev.NODE, ev.KUBEPODS) else event.domain), event.domain
    if isinstance(event, ev.Stalled):
        return STALL + event.domain, event.domain
    if isinstance(event, ev.Mark):
        if event.scope in ev.RACE_SCOPES:
            return PRESSURE, (ev.KUBEPODS if event.scope in ev.KUBEPODS_SCOPES else ev.NODE)
        path = event.oom_path or event.memcg
        return path, path
    return None


def concerns(o: Open, event: ev.Event) -> bool:
    if isinstance(event, ev.Clock):
        return False
    if isinstance(event, ev.Sample):  # most events by far
        return o.key == PRESSURE or o.domain == event.domain or (event.pod is not None and event.pod in o.marked_pods)
    if isinstance(event, ev.Mark) and event.exiting and event.victim_pid in o.killed:
        return True  # the end of that episode, not the beginning of another
    where = key_of(event)
    if where is not None:
        return o.key == where[0]
    if isinstance(event, ev.Lost):
        return True
    if isinstance(event, ev.Kill):
        # What a runtime kills after an OOM in a container belongs there; anything in a pod is of interest in pressure.
        same_pod = event.pod is not None and event.pod in o.killed_pods
        return o.key == PRESSURE or same_pod or (event.by_user and o.key == event.memcg)
    if isinstance(event, ev.Exit):
        return any(pid == event.pid for pid, _ in o.pids)
    if isinstance(event, ev.Checked):
        return event.victim_pid in o.marked
    if o.key == PRESSURE:
        return True  # reclaim, signals and ends of evicted pods
    return isinstance(event, ev.Reclaim) and o.domain == event.memcg


def too_long(o: Open, event: ev.Event, bounds: Bounds) -> bool:
    """Whether endless kills belong to another episode from this event on: the next kill that begins a story of its own
    (what follows upon a kill stays with it), or any once no victim could be waited for any more.
    """
    age_ns = event.ts_ns - o.start_ns
    if o.key == PRESSURE or o.met or o.pods or o.holds or age_ns < bounds.longest_ns:
        return False
    if isinstance(event, ev.Mark):
        begins = not event.exiting
    else:
        begins = isinstance(event, ev.Kill) and event.by_user and not o.marked
    return (begins and concerns(o, event)) or age_ns >= bounds.longest_ns + bounds.victim_ns


def of_victim(old: ev.Event, event: ev.Event) -> bool:
    """The OOM killer's SIGKILL, and perhaps the exit, recorded before the mark: a victim may be gone when its mark is
    traced, if it runs on the killer's CPU, or was frozen, ending anyway, and is let go by the mark.
    """
    if not isinstance(event, ev.Mark):
        return False
    return (isinstance(old, ev.Kill) and old.victim_pid == event.victim_pid) or (
        isinstance(old, ev.Exit) and old.pid == event.victim_pid and old.ts_ns >= event.ts_ns - EARLY_EXIT_NS
    )


def joined(o: Open, event: ev.Event, bounds: Bounds, before: bool = False) -> Open:
    if isinstance(event, ev.Sample):
        samples = (*o.samples, event)
        if len(samples) > bounds.samples:
            half = len(samples) // 2
            # The older half is thinned out: every second sample of it goes.
            samples = (*samples[:half:2], *samples[half:])
        return replace(o, samples=samples)
    if isinstance(event, ev.Exit):
        o = replace(o, pids=_without(o.pids, event.pid))
    events, half = (*o.events, event), bounds.events // 2
    if len(events) > bounds.events:
        o, events = replace(o, dropped=o.dropped + 1), (*events[:half], *events[half + 1 :])
    o = _indexed(replace(o, events=events), event, bounds)
    if before or not _lasts(o, event):
        return o
    return replace(_tracked(o, event, bounds), last_ns=max(o.last_ns, event.ts_ns))


def _lasts(o: Open, event: ev.Event) -> bool:
    """Whether the episode is going on because of this event."""
    if isinstance(event, _ASIDE):
        return False
    if isinstance(event, ev.Clear):  # may be repeated
        return event.threshold in o.met
    if isinstance(event, ev.Kill) and not event.ours:
        # The mark of an OOM kill says where it belongs; users kill at any time, pressure or not. A pod that a runtime
        # stops under pressure, or just after, may be a kubelet's eviction: then the episode waits for its end. (One
        # that obeys SIGTERM has given its memory back when its sandbox gets SIGKILL.)
        return (event.by_user and o.key != PRESSURE) or (event.by_runtime and o.key == PRESSURE)
    if o.key == PRESSURE and isinstance(event, ev.Signalled | ev.Gone):
        return any(uid == event.pod for uid, _ in o.pods)  # not one that was evicted for a disk
    return True


def _indexed(o: Open, event: ev.Event, bounds: Bounds) -> Open:
    if isinstance(event, ev.Ranked):
        return replace(o, ranked_ns=event.ts_ns)
    if not isinstance(event, ev.Mark | ev.Kill):
        return o
    most = bounds.events
    pods = (event.pod,) if event.pod is not None else ()
    o = replace(o, killed_pods=_with(o.killed_pods, pods, most))
    if isinstance(event, ev.Mark):
        return replace(
            o, marked=_with(o.marked, (event.victim_pid,), most), marked_pods=_with(o.marked_pods, pods, most)
        )
    return replace(o, killed=_with(o.killed, (event.victim_pid,), most)) if event.by_user else o


def _with(known: tuple[T, ...], new: tuple[T, ...], most: int) -> tuple[T, ...]:
    return (*known, *[one for one in new if one not in known])[-most:]


def _without(awaited: tuple[tuple[T, int], ...], gone: T) -> tuple[tuple[T, int], ...]:
    return tuple([one for one in awaited if one[0] != gone])


def _tracked(o: Open, event: ev.Event, bounds: Bounds) -> Open:
    """What has to end before the episode does."""
    if isinstance(event, ev.Crossing):
        return replace(o, hard=o.hard or event.hard, met=o.met | {event.threshold})
    if isinstance(event, ev.Clear):
        return replace(o, met=o.met - {event.threshold})
    if isinstance(event, ev.Mark):
        awaited = (*o.pids, (event.victim_pid, event.ts_ns + bounds.victim_ns))
        return replace(o, pids=awaited[-bounds.events :])
    if isinstance(event, ev.Decided) and not event.observed:
        until = event.ts_ns + event.grace_s * 10**9 + bounds.victim_ns
        return replace(o, pods=(*_without(o.pods, event.pod), (event.pod, until)))
    if isinstance(event, ev.Kill) and event.by_runtime and event.pod is not None:
        known = any(uid == event.pod for uid, _ in o.pods)
        return o if known else replace(o, pods=(*o.pods, (event.pod, event.ts_ns + bounds.victim_ns)))
    if isinstance(event, ev.PodHeld) or (isinstance(event, ev.Stalled) and not event.over):
        until = (event.until_ns if isinstance(event, ev.PodHeld) else event.ts_ns + _STALL_NS) + bounds.victim_ns
        return replace(o, holds=(*_without(o.holds, event.pod), (event.pod, until)))
    if isinstance(event, ev.PodReleased | ev.Stalled):
        return replace(o, holds=_without(o.holds, event.pod))
    if isinstance(event, ev.Gone):
        return replace(o, pods=_without(o.pods, event.pod))
    if isinstance(event, ev.Signalled) and event.signal == ev.SIGKILL and event.by == ev.KUBELET:
        until = event.ts_ns + bounds.victim_ns
        return replace(o, pods=tuple([(uid, min(was, until) if uid == event.pod else was) for uid, was in o.pods]))
    return o
