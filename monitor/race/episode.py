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

from monitor.race import events as ev
from monitor.race.codec import Record
from monitor.race.joining import DEFAULT_BOUNDS, PRESSURE, Bounds, Open, concerns, joined, key_of, of_victim, too_long

QUIET, STOPPED, CROWDED, OPEN = "quiet", "record stops", "crowded", "open"

_time = attrgetter("ts_ns")
#: Settings of the wall clock that are remembered: an episode is judged seconds after it began, after an hour at most.
_CLOCKS = 16


@dataclass(frozen=True, slots=True)
class Episode(Record):
    """What happened, sorted by time. `start_ns` is its first sign (a crossing, a mark, a kill); samples and reclaim of
    the time before are among the events. `ended`: "quiet" (of kills in a place of their own that do not stop: cut
    between two of them, see `Bounds.longest_ns`), "record stops", "crowded" (too many at once, or cut while a victim
    was not gone) or "open" (still going on). `dropped`: events beyond the bounds. `realtime_ns`: what makes its times
    Unix times, by the wall clock at its start; None without a `Clock` event.
    """

    domain: str
    start_ns: int
    end_ns: int
    ended: str
    events: tuple[ev.Event, ...]
    watched: tuple[ev.Watched, ...] = ()
    dropped: int = 0
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
    return Episode(domain, o.start_ns, max(end_ns, o.start_ns), ended, events, state.watched, o.dropped, o.realtime_ns)
