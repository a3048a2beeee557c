"""From a stream of events to episodes: a stretch of pressure, or a limit that was hit, from its first sign to quiet.

A pure reducer, bounded in memory. The node and kubepods share their pods, so their pressure is one episode; a container
or pod at a limit of its own has an episode of its own, named by the path of its cgroup.

Records come from several rings, so they may arrive a little out of order: an event waits until the stream is `slack_ns`
ahead of it, and events of one time are taken in an order of their own. Which ring was read first changes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from monitor.race import events as ev
from monitor.race.codec import Record

QUIET, STOPPED, CROWDED, OPEN = "quiet", "record stops", "crowded", "open"

_time = attrgetter("ts_ns")
#: Settings of the wall clock that are remembered: an episode is judged seconds after it began, after an hour at most.
_CLOCKS = 16
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
    hard: bool = False  # a hard threshold was crossed
    ranked_ns: int | None = None  # time of the last ranking it has
    touched_ns: int = 0  # how far the stream was when a process was last killed or gone here
    marked: tuple[int, ...] = ()  # pids with a mark
    marked_pods: tuple[str, ...] = ()
    killed: tuple[int, ...] = ()  # pids that a user's signal was for
    killed_pods: tuple[str, ...] = ()  # of any kill or mark
    realtime_ns: int | None = None  # what makes its times Unix times


@dataclass(frozen=True, slots=True)
class Episode(Record):
    """What happened, sorted by time. `start_ns` is its first sign (a crossing, a mark, a kill); samples and reclaim of
    the time before are among the events. `ended`: "quiet" (of kills in a place of their own that do not stop: cut
    between two of them, see `Bounds.longest_ns`), "record stops", "crowded" (too many at once, or cut while a victim
    was not gone) or "open" (still going on). `realtime_ns`: what makes its times Unix times, by the wall clock at
    its start; None without a `Clock` event.
    """

    domain: str
    start_ns: int
    end_ns: int
    ended: str
    events: tuple[ev.Event, ...]
    watched: tuple[ev.Watched, ...] = ()
    realtime_ns: int | None = None


@dataclass(frozen=True, slots=True)
class State(Record):
    """What the reducer remembers between two events. A replay can go on from its JSON."""

    bounds: Bounds = DEFAULT_BOUNDS
    waiting: tuple[ev.Event, ...] = ()  # by time
    latest_ns: int = 0  # the newest time seen
    recorder: tuple[ev.Event, ...] = ()  # the flight recorder: samples, reclaim, kills and exits before anything began
    watched: tuple[ev.Watched, ...] = ()
    ranked: ev.Ranked | None = None
    open: tuple[Open, ...] = ()
    clocks: tuple[ev.Clock, ...] = ()  # by time, the latest few


def feed(state: State, event: ev.Event) -> tuple[State, tuple[Episode, ...]]:
    """Take one event; gives the episodes that are over by now. `End` ends them all."""
    if isinstance(event, ev.End):
        state, done = _take_all(state, (*state.waiting, event))
        done += [_finished(state, o, STOPPED, max(event.ts_ns, o.last_ns)) for o in state.open]
        return State(state.bounds, watched=state.watched, ranked=state.ranked, clocks=state.clocks), tuple(done)
    latest = max(state.latest_ns, event.ts_ns)
    horizon = latest - state.bounds.slack_ns
    at = bisect_right(state.waiting, event.ts_ns, key=_time)
    waiting = (*state.waiting[:at], event, *state.waiting[at:])
    if len(waiting) > state.bounds.samples:
        horizon = latest  # a bound on memory: events of these few ms are taken in the order that is known
    due = bisect_right(waiting, horizon, key=_time)
    state = replace(state, waiting=waiting[due:], latest_ns=latest)
    if not due:
        return state, ()
    state, done = _take_all(state, waiting[:due])
    return state, tuple(done)


def ongoing(state: State, since_ns: int | None = None) -> tuple[Episode, ...]:
    """The episodes as they stand at this moment, events still waiting included: for an alert that cannot wait.
    ``since_ns``: `State.latest_ns` of the last time; only those in which a process was killed or gone since.
    """
    state, done = _take_all(state, state.waiting)
    touched = [o for o in state.open if since_ns is None or o.touched_ns >= since_ns]
    return (*done, *[_finished(state, o, OPEN, max(state.latest_ns, o.last_ns)) for o in touched])


def moment(event: ev.Event) -> tuple[int, int]:
    """Sort key: time, then cause before effect."""
    return (event.ts_ns, ev.PLACE[type(event)])


def in_order(events: Iterable[ev.Event]) -> list[ev.Event]:
    """By `moment`, then by content, which is looked at only where it decides: a ranking's text is 10 KiB."""
    found = sorted(events, key=moment)
    if len(found) < 2:
        return found
    ordered: list[ev.Event] = []
    for _, group in groupby(found, key=moment):
        same = list(group)
        ordered += same if len(same) == 1 else sorted(same, key=repr)
    return ordered


def _take_all(state: State, events: Iterable[ev.Event]) -> tuple[State, list[Episode]]:
    done: list[Episode] = []
    for event in in_order(events):
        state, over = _expire(state, event)
        done += over
        state = _take(state, event)
        while len(state.open) > state.bounds.open:
            first = next((o for o in state.open if o.key != PRESSURE), state.open[0])
            done.append(_finished(state, first, CROWDED, event.ts_ns))
            state = replace(state, open=tuple([o for o in state.open if o is not first]))
    return state, done


def _expire(state: State, event: ev.Event) -> tuple[State, list[Episode]]:
    """End what was quiet long enough before ``event``, and what is too long for it."""
    done, kept = [], []
    for o in state.open:
        if _is_over(o, event.ts_ns, state.bounds):
            done.append(_finished(state, o, QUIET, o.last_ns))
        elif too_long(o, event, state.bounds):
            done.append(_finished(state, o, CROWDED if o.pids else QUIET, o.last_ns))
        else:
            kept.append(o)
    return (replace(state, open=tuple(kept)) if done else state), done


def _is_over(o: Open, now_ns: int, bounds: Bounds) -> bool:
    if now_ns - o.last_ns < bounds.settle_ns:
        return False
    # A soft threshold may be met for hours after the hard pressure: a kill then is another story.
    if any(hard for _, _, hard in o.met) or (o.met and not o.hard):
        return False
    return all(until <= now_ns for _, until in (*o.pids, *o.pods, *o.holds))


def _take(state: State, event: ev.Event) -> State:
    if isinstance(event, ev.Tick | ev.End):
        return state
    if isinstance(event, ev.Clock):
        return replace(
            state, clocks=tuple(sorted([*state.clocks, event], key=attrgetter("ts_ns", "realtime_ns"))[-_CLOCKS:])
        )
    if isinstance(event, ev.Watched):
        same = event.threshold
        others = [w for w in state.watched if w.threshold != same]
        return replace(state, watched=tuple(sorted([*others, event], key=lambda w: w.threshold)))
    if isinstance(event, ev.Ranked):
        state = replace(state, ranked=event)
        # One that has a ranking gets another when that counts: with a decision or a mark (`_with`).
        return replace(
            state, open=tuple([o if o.ranked_ns is not None else joined(o, event, state.bounds) for o in state.open])
        )
    if isinstance(event, ev.Sample | ev.Reclaim | ev.Lost | ev.Kill | ev.Exit | ev.Checked):
        state = replace(state, recorder=_recorded(state, event))
    concerned = [concerns(o, event) for o in state.open]
    if not any(concerned):
        opener = _opened(state, event)
        if opener is None:
            return state
        return replace(state, open=(*state.open, opener))
    pairs = zip(state.open, concerned, strict=True)
    return replace(state, open=tuple([_with(state, o, event) if its else o for o, its in pairs]))


def _with(state: State, o: Open, event: ev.Event) -> Open:
    """The episode with one more event; with a mark, which may arrive after its victim's end, what is known of that."""
    ranked = state.ranked
    if ranked is not None and isinstance(event, ev.Mark | ev.Decided) and o.ranked_ns != ranked.ts_ns:
        o = joined(o, ranked, state.bounds)
    o = joined(o, event, state.bounds)
    if isinstance(event, ev.Mark | ev.Kill | ev.Gone | ev.Stalled):
        o = replace(o, touched_ns=state.latest_ns)
    if isinstance(event, ev.Mark):
        for old in state.recorder:
            if of_victim(old, event) and old not in o.events:
                o = joined(o, old, state.bounds, before=True)
    return o


def _recorded(state: State, event: ev.Event) -> tuple[ev.Event, ...]:
    """The flight recorder with one more event: only the last `before_ns`, and only so many."""
    since, first = event.ts_ns - state.bounds.before_ns, max(0, len(state.recorder) + 1 - state.bounds.samples)
    while first < len(state.recorder) and state.recorder[first].ts_ns < since:
        first += 1
    return (*state.recorder[first:], event)


def _opened(state: State, event: ev.Event) -> Open | None:
    """A new episode, if this event begins one; with what the flight recorder holds about it."""
    if isinstance(event, ev.Stalled) and event.over:
        return None
    if isinstance(event, ev.Crossing | ev.Mark | ev.Decided | ev.PodHeld | ev.Stalled):
        where = key_of(event)
        assert where is not None
        key, domain = where
    elif isinstance(event, ev.Kill) and event.by_user:
        key = domain = event.memcg
    else:
        return None
    made = Open(key, domain, event.ts_ns, event.ts_ns, touched_ns=state.latest_ns)
    before = [c for c in state.clocks if c.ts_ns <= event.ts_ns]
    if before:
        made = replace(made, realtime_ns=before[-1].realtime_ns)
    if state.ranked is not None:
        made = joined(made, state.ranked, state.bounds)
    made = joined(made, event, state.bounds)
    for old in state.recorder:
        # A signal of some seconds ago was an episode of its own, or part of an eviction that is over.
        by_user = isinstance(old, ev.Kill) and old.by_user
        if old is not event and ((concerns(made, old) and not by_user) or of_victim(old, event)):
            made = joined(made, old, state.bounds, before=True)
    return made


def _finished(state: State, o: Open, ended: str, end_ns: int) -> Episode:
    """An episode for others to read. Its domain is the one where the OOM killer came, else where it began."""
    # Each was taken in order already, also of one time; only what was recorded before stands behind what it led to.
    events = tuple(sorted((*o.events, *o.samples), key=moment))
    domain = o.domain
    if o.key == PRESSURE:
        mark = next((e for e in events if isinstance(e, ev.Mark) and not e.exiting and e.scope in ev.RACE_SCOPES), None)
        if mark is not None:
            domain = ev.KUBEPODS if mark.scope in ev.KUBEPODS_SCOPES else ev.NODE
    return Episode(domain, o.start_ns, max(end_ns, o.start_ns), ended, events, state.watched, o.realtime_ns)


# what belongs to an episode that is going on, and what has to end before it does


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
    """The OOM killer's SIGKILL, its line in the kernel's log, and perhaps the exit, recorded before the mark: a victim
    may be gone when its mark is traced, if it runs on the killer's CPU, or was frozen, ending anyway, and is let go by
    the mark.
    """
    if not isinstance(event, ev.Mark):
        return False
    if isinstance(old, ev.Kill):
        return old.victim_pid == event.victim_pid
    pid = old.pid if isinstance(old, ev.Exit) else old.victim_pid if isinstance(old, ev.Checked) else None
    return pid == event.victim_pid and old.ts_ns >= event.ts_ns - EARLY_EXIT_NS


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
        events = (*events[:half], *events[half + 1 :])
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
    o = replace(o, killed_pods=_added(o.killed_pods, pods, most))
    if isinstance(event, ev.Mark):
        return replace(
            o, marked=_added(o.marked, (event.victim_pid,), most), marked_pods=_added(o.marked_pods, pods, most)
        )
    return replace(o, killed=_added(o.killed, (event.victim_pid,), most)) if event.by_user else o


def _added(known: tuple[T, ...], new: tuple[T, ...], most: int) -> tuple[T, ...]:
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
