"""What holds for any stream of events whatever; and the same record gives the same verdict, always."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.race.codec import RecordError, plain
from monitor.race.counterfactual import world
from monitor.race.episode import Bounds, Episode, State, feed, in_order, moment, ongoing
from monitor.race.events import Event, event_from_json
from monitor.race.facts import Facts
from monitor.race.incident import FLAGS, LOST_RACES, VERDICTS, Incident
from monitor.race.verdict import verdict
from tests.race.builders import episodes
from tests.race.strategies import events, streams


@given(events())
def test_every_event_survives_json(event: Event) -> None:
    text = json.dumps(plain(event))
    assert event_from_json(json.loads(text)) == event
    assert list(plain(event))[:2] == ["event", "ts_ns"]


@given(events(), st.data())
def test_a_damaged_event_is_refused_by_name(event: Event, data: st.DataObject) -> None:
    damaged = plain(event)
    key = data.draw(st.sampled_from(list(damaged)))
    damaged[key] = {"not": "this"}
    with pytest.raises(RecordError, match=rf"\b{key}\b"):
        event_from_json(damaged)


@given(streams())
def test_every_episode_gets_exactly_one_verdict_with_the_right_signs_and_survives_json(stream: list[Event]) -> None:
    for episode in episodes(*stream):
        assert Episode.from_json(json.loads(json.dumps(episode.to_json()))) == episode
        found = verdict(episode)
        assert Incident.from_json(json.loads(json.dumps(found.to_json()))) == found
        assert found.verdict in VERDICTS
        assert set(found.flags) <= set(FLAGS)
        assert bool(found.missing) == (found.verdict == "undetermined")
        assert found.summary
        numbers = [n for n in (found.margin_bytes, found.margin_ms) if n is not None]
        if found.verdict in LOST_RACES:
            assert all(n <= 0 for n in numbers)
        elif found.verdict in ("own_limit", "undetermined"):
            assert numbers == []
        else:
            assert all(n >= 0 for n in numbers)
        could_see = world(Facts(episode))
        if could_see is not None:
            assert could_see.working_set
            assert could_see.oom_ns is None or could_see.oom_ns >= 0


@given(streams(), st.randoms(use_true_random=False))
def test_the_order_of_arrival_within_the_slack_changes_nothing(stream: list[Event], rng: random.Random) -> None:
    bounds = Bounds(slack_ns=100_000_000)
    ordered = sorted(stream, key=lambda e: e.ts_ns)
    # Each event is late by less than the slack, or, of equal times, in any order.
    shuffled = sorted(ordered, key=lambda e: (e.ts_ns + rng.randrange(75_000_000), rng.random()))
    assert episodes(*shuffled, bounds=bounds) == episodes(*ordered, bounds=bounds)


@given(st.lists(events(), max_size=20))
def test_events_are_sorted_as_by_their_key(stream: list[Event]) -> None:
    assert in_order(stream) == in_order(stream[::-1]) == sorted(stream, key=lambda e: (*moment(e), repr(e)))
    for episode in episodes(*stream):
        assert [e.ts_ns for e in episode.events] == sorted(e.ts_ns for e in episode.events)


@given(streams(80))
@settings(max_examples=30)
def test_memory_is_bounded(stream: list[Event]) -> None:
    bounds = Bounds(events=8, samples=8, open=2)
    state = State(bounds)
    for event in sorted(stream, key=lambda e: (*moment(e), repr(e))):
        state, done = feed(state, event)
        assert len(state.open) <= 2
        assert len(state.recorder) <= 8
        assert len(state.waiting) <= 8
        for o in state.open:
            assert len(o.pods) <= 2
            kept = (o.events, o.samples, o.pids, o.marked, o.marked_pods, o.killed, o.killed_pods)
            assert all(len(known) <= 8 for known in kept)
        assert all(len(e.events) <= 16 for e in done)
        for episode in ongoing(state):
            assert verdict(episode).verdict in VERDICTS
