"""When the wall clock is set, or the machine was asleep, the record has from when on."""

import json
import time
from pathlib import Path

import pytest

from monitor.cli.replay import replay
from monitor.race.episode import Episode, State, feed
from monitor.race.events import Clock, End, Event, Tick
from monitor.race.verdict import verdict
from monitor.settings.config import RunConfig
from monitor.side import event_builder
from monitor.side.event_builder import STEP_NS
from monitor.side.export.log import Log
from monitor.side.judge import wall_offset_ns
from monitor.side.recording import Reader, Recorder, header
from tests.daemon.test_event_builder import Heard
from tests.race.builders import clear, crossing, ms

S = 1_000_000_000
AT = 1_800_000_000 * S


def test_only_a_step_is_reported_and_from_the_last_reading_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert abs(wall_offset_ns() - (time.time_ns() - time.monotonic_ns())) < 60 * S
    offsets = [5 * S, 5 * S + STEP_NS - 1, 5 * S - STEP_NS + 1, 9 * S, 9 * S]
    monkeypatch.setattr(event_builder, "wall_offset_ns", lambda: offsets.pop(0))
    now = [0]
    heard = Heard(tmp_path, now=lambda: now[0])
    for now[0] in (100, 200, 300, 400, 500):
        heard.event_builder.turn()
    assert heard.of(Clock) == [Clock(100, 5 * S), Clock(301, 9 * S)]


def test_a_replay_of_a_run_in_which_the_clock_was_set_gives_the_same(tmp_path: Path) -> None:
    config = RunConfig(eviction_hard={"memory.available": "100Mi"})
    recorder = Recorder(tmp_path / "rec", header(config, 1, AT - ms(0)), Log(), lambda: True)
    state, over = State(), list[Episode]()

    def take(event: Event) -> None:
        nonlocal state
        recorder.event(event)
        state, done = feed(state, event)
        over.extend(done)
        if recorder.state_wanted:
            recorder.state(state)

    for t, offset in ((0, 0), (60_000, 3600)):
        clock = Clock(ms(t) - 1, AT - ms(0) + offset * S)
        for event in (clock, crossing(t), clear(t + 10), Tick(ms(t + 5_000))):
            take(event)
    take(End(ms(70_000)))
    recorder.close(30.0)
    live = [json.dumps(verdict(one, AT - ms(0), config.pass_config()).to_json()) for one in over]
    assert [json.loads(one)["start"] for one in live] == ["2027-01-15T08:00:00.000Z", "2027-01-15T09:01:00.000Z"]
    with open(tmp_path / "rec", "rb") as file:
        found = replay(Reader(file, "rec"))
    assert [json.dumps(one) for one in found.incidents] == live
    assert (found.unix_ns(ms(1)), found.unix_ns(ms(60_001))) == (AT + 1_000_000, AT + 3660 * S + 1_000_000)
