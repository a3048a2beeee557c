"""Events of races through a recording: the reducer ends where it ended live, also from a state in the middle."""

import json
import threading
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.errors import MonitorError
from monitor.race import episode
from monitor.race.episode import Open, State
from monitor.race.events import End, Event
from monitor.race.verdict import verdict
from monitor.settings.config import RunConfig
from monitor.side.export.log import Log
from monitor.side.recording import CONFIG_FIELDS, Recorder, header
from tests.filesystems import Mounts
from tests.race.builders import ended
from tests.race.strategies import streams
from tests.replay.world import fresh, replayed
from tests.waiting import until

REALTIME_NS = 1_700_000_000_000_000_000
CONFIG = RunConfig(eviction_hard={"memory.available": "100Mi"})
TIMEOUT_S = 120.0


def live(events: list[Event], path: Path, states: set[int]) -> list[str]:
    """The incidents of a stream, and its recording, as the helper makes them (`RecordingEventBuilder`)."""
    recorder = Recorder(path, header(CONFIG, 1, REALTIME_NS), Log(), lambda: True)
    state, found = State(), []
    for number, event in enumerate(events):
        recorder.event(event)
        state, over = episode.feed(state, event)
        found += over
        if number in states or recorder.state_wanted:
            recorder.state(state)
    recorder.close(TIMEOUT_S)
    assert recorder.dropped == 0
    return [json.dumps(verdict(one, REALTIME_NS, CONFIG.pass_config()).to_json()) for one in found]


@given(streams(), st.sets(st.integers(0, 40)))
@settings(max_examples=150, deadline=None)
def test_incidents_come_out_byte_for_byte(events: list[Event], states: set[int]) -> None:
    path = fresh() / "rec"
    wanted = live(ended(events), path, states)
    found = replayed(path.read_bytes())
    assert [json.dumps(one) for one in found.incidents] == wanted
    assert (found.events, found.skipped, found.differences, found.damage) == (len(events) + 1, 0, [], None)
    assert json.dumps(replayed(path.read_bytes()).to_json()) == json.dumps(found.to_json())


def test_a_state_is_written_with_all_its_fields() -> None:
    """One that is new in the reducer and not in the snapshot would be lost in silence."""
    written = State(open=(Open("", "node", 1, 2),)).to_json()
    assert list(written) == [field.name for field in fields(State)]
    assert list(written["open"][0]) == [field.name for field in fields(Open)]


@given(streams(), st.data())
@settings(max_examples=100, deadline=None)
def test_a_rotated_file_stands_alone(events: list[Event], data: st.DataObject) -> None:
    """From the state in it on, everything is as it was."""
    events = ended(events)
    split = data.draw(st.integers(0, len(events) - 1))
    path = fresh() / "rec"
    recorder = Recorder(path, header(CONFIG, 1, REALTIME_NS), Log(), lambda: True)
    state = State()
    incidents: list[tuple[int, str]] = []
    for number, event in enumerate(events):
        if number == split:
            recorder._queue()
            recorder._worker.submit(lambda: setattr(recorder._writer, "file_bytes", 0))  # the next block is too much
        recorder.event(event)
        state, over = episode.feed(state, event)
        if number == split:
            recorder.state(state)
        made = [verdict(one, REALTIME_NS, CONFIG.pass_config()).to_json() for one in over]
        incidents += [(number, json.dumps(one)) for one in made]
    recorder.close(TIMEOUT_S)
    alone = replayed(path.read_bytes())
    assert [json.dumps(one) for one in alone.incidents] == [one for number, one in incidents if number > split]
    assert alone.skipped == (1 if split else 0)


def test_the_header_holds_no_secrets() -> None:
    secret = RunConfig(alertmanagers=("http://u:pw@a",), state_dir="/secret")
    assert not {"alertmanagers", "state_dir"} & set(CONFIG_FIELDS)
    text = json.dumps(header(secret, 2, 0))
    assert "pw" not in text
    assert "token" not in text


def test_a_full_disk_is_reported_once_and_recording_goes_on_when_there_is_room(
    mounts: Mounts, capfd: pytest.CaptureFixture[str]
) -> None:
    disk = mounts.tmpfs("small", 64 << 10)
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(64 << 10))
    recorder = Recorder(disk / "rec", header(CONFIG, 1, 0), Log(), lambda: True)
    for i in range(3):
        recorder.event(End(i))
        recorder._queue()
    until(lambda: recorder.dropped == 3, "three tries")
    assert recorder.failing
    assert [path.name for path in disk.iterdir()] == ["ballast"], "no file without a header"
    ballast.unlink()
    recorder.event(End(3))
    recorder.close(TIMEOUT_S)
    assert not recorder.failing
    found = replayed((disk / "rec").read_bytes())
    assert (found.damage, found.events) == (None, 1)
    assert recorder.state_wanted  # what follows shall be understood without what is missing
    output = capfd.readouterr().err
    assert output.count("the recording cannot be written; trying again") == 1
    assert "No space left on device" in output
    assert output.count("the recording is written again") == 1


def test_a_queue_that_overflows_is_counted_and_a_snapshot_asked_for(tmp_path: Path) -> None:
    asked = []
    recorder = Recorder(tmp_path / "rec", header(CONFIG, 1, 0), Log(), lambda: bool(asked.append(1)) or True)
    recorder.turn()
    assert len(asked) == 1  # at the beginning
    gate = threading.Event()
    recorder._worker.submit(gate.wait)
    sent = 0
    while not recorder.dropped:
        recorder.event(End(sent))
        sent += 1
    kept = sent - recorder.dropped
    gate.set()
    recorder.turn()
    assert len(asked) == 2
    until(lambda: not recorder._worker.waiting, "the queue to be written")
    recorder.event(End(sent))
    recorder.close(TIMEOUT_S)
    found = replayed((tmp_path / "rec").read_bytes())
    assert (found.events, found.gaps) == (kept + 1, [[kept, sent - kept]])


@pytest.mark.parametrize(
    "change",
    [
        {"config": None},
        {"config": []},
        {"config": {"unknown": 1}},
        {"config": {"policy": "kubelet-9.9"}},
        {"config": {"eviction_hard": 5}},
        {"config": {"eviction_hard": {"memory.available": "much"}}},
        {"realtime_ns": None},
        {"realtime_ns": 1e400},
    ],
)
def test_a_header_that_makes_no_sense_is_one_line(tmp_path: Path, change: dict[str, object]) -> None:
    recorder = Recorder(tmp_path / "rec", {**header(CONFIG, 1, 0), **change}, Log(), lambda: True)
    recorder.event(End(1))
    recorder.close(TIMEOUT_S)
    with pytest.raises(MonitorError, match="the recording's header cannot be used: ") as caught:
        replayed((tmp_path / "rec").read_bytes())
    assert "\n" not in str(caught.value)
