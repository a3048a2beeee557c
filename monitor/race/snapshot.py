"""The state of the reducer (`monitor.race.episode`) as plain JSON and back, exactly: where a replay can go on from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monitor.race.codec import RecordError
from monitor.race.episode import State
from monitor.race.events import Clock, Event, Ranked, Watched, event_from_json
from monitor.race.joining import Bounds, Open


def state_to_json(state: State) -> dict[str, Any]:
    """Lists, dicts, numbers and texts."""
    return {
        "bounds": state.bounds.to_json(),
        "waiting": _events(state.waiting),
        "latest_ns": state.latest_ns,
        "recorder": _events(state.recorder),
        "watched": _events(state.watched),
        "ranked": None if state.ranked is None else state.ranked.to_json(),
        "open": [
            {
                "key": one.key,
                "domain": one.domain,
                "start_ns": one.start_ns,
                "last_ns": one.last_ns,
                "events": _events(one.events),
                "samples": _events(one.samples),
                "met": sorted(map(list, one.met)),
                "pids": [list(pair) for pair in one.pids],
                "pods": [list(pair) for pair in one.pods],
                "dropped": one.dropped,
                "hard": one.hard,
                "ranked_ns": one.ranked_ns,
                "touched_ns": one.touched_ns,
                "marked": list(one.marked),
                "marked_pods": list(one.marked_pods),
                "killed": list(one.killed),
                "killed_pods": list(one.killed_pods),
                "realtime_ns": one.realtime_ns,
            }
            for one in state.open
        ],
        "clocks": _events(state.clocks),
    }


def state_from_json(data: Mapping[str, Any]) -> State:
    """The state that `state_to_json` wrote. Raises RecordError, LookupError or TypeError for anything else."""
    ranked = None if data["ranked"] is None else event_from_json(data["ranked"])
    if ranked is not None and not isinstance(ranked, Ranked):
        raise RecordError("ranked: is another event")
    return State(
        bounds=Bounds.from_json(data["bounds"]),
        waiting=_read(data["waiting"]),
        latest_ns=data["latest_ns"],
        recorder=_read(data["recorder"]),
        watched=tuple([event for event in _read(data["watched"]) if isinstance(event, Watched)]),
        ranked=ranked,
        open=tuple(
            [
                Open(
                    key=one["key"],
                    domain=one["domain"],
                    start_ns=one["start_ns"],
                    last_ns=one["last_ns"],
                    events=_read(one["events"]),
                    samples=_read(one["samples"]),
                    met=frozenset([(domain, signal, hard) for domain, signal, hard in one["met"]]),
                    pids=tuple([(pid, until) for pid, until in one["pids"]]),
                    pods=tuple([(uid, until) for uid, until in one["pods"]]),
                    dropped=one["dropped"],
                    hard=one["hard"],
                    ranked_ns=one["ranked_ns"],
                    touched_ns=one["touched_ns"],
                    marked=tuple(one["marked"]),
                    marked_pods=tuple(one["marked_pods"]),
                    killed=tuple(one["killed"]),
                    killed_pods=tuple(one["killed_pods"]),
                    realtime_ns=one.get("realtime_ns"),  # not in recordings of 0.1
                )
                for one in data["open"]
            ]
        ),
        clocks=tuple([event for event in _read(data.get("clocks", [])) if isinstance(event, Clock)]),
    )


def _events(events: tuple[Event, ...]) -> list[dict[str, Any]]:
    return [event.to_json() for event in events]


def _read(events: list[dict[str, Any]]) -> tuple[Event, ...]:
    return tuple([event_from_json(event) for event in events])
