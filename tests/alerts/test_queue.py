"""The queue of one receiver, the state file, and what becomes of both when things go wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.side.alerts import queue, state
from monitor.side.alerts.queue import EXTEND_S, FIRING, RESOLVED, Outbox
from monitor.side.alerts.rules import HOLD_S, Alert
from monitor.side.alerts.send import AlertSender
from tests.alerts.services import LogLines
from tests.live import environment, until

URL = "http://127.0.0.1:9"  # where nobody listens


def lasting(name: str = "P", at: float = 100.0, **annotations: str) -> Alert:
    return Alert(name, {"node": "n"}, annotations, at)


def event(name: str = "E", at: float = 100.0, hold: float = 50.0) -> Alert:
    return Alert(name, {"node": "n"}, {}, at, at + hold)


def told(outbox: Outbox, now: float) -> list[tuple[str, str]]:
    """Everything the receiver takes now: (status, name)."""
    found = []
    outbox.tick(now)
    while batch := outbox.batch(64):
        found += [(change.status, change.alert.name) for change in batch]
        outbox.ack(batch, now)
    return found


def restarted(outbox: Outbox) -> Outbox:
    """What the next process makes of what this one wrote down."""
    again = Outbox(outbox.every)
    again.load(json.loads(json.dumps(outbox.snapshot())))
    return again


@pytest.mark.parametrize("every", [True, False])
def test_fires_once_and_resolves_once(every: bool) -> None:
    outbox = Outbox(every)
    assert outbox.fire(lasting())
    assert not outbox.fire(lasting(at=103.0, available="7"))
    assert outbox.active()[0].annotations == {"available": "7"}
    assert outbox.active()[0].starts_at == 100
    assert told(outbox, 104) == [(FIRING, "P")]
    outbox.end(lasting().fingerprint, 110)
    assert told(outbox, 109) == []
    assert told(outbox, 110) == [(RESOLVED, "P")]
    assert told(outbox, 999) == []
    assert not outbox.firing


@pytest.mark.parametrize("every", [True, False])
def test_an_event_that_goes_on_is_extended(every: bool) -> None:
    """Kills that do not stop: the incident began when it began and ends later each time it is judged."""
    outbox = Outbox(every)
    assert outbox.fire(event(at=100, hold=330))
    assert told(outbox, 101) == [(FIRING, "E")]
    for more in range(10, 1000, 10):
        assert not outbox.fire(event(at=100, hold=330 + more))
        assert told(outbox, 100 + more) == []
    assert not outbox.fire(event(at=100, hold=400))  # what was known earlier and comes late
    for one in (outbox, restarted(outbox)):
        assert one.active()[0].ends_at == 100 + 330 + 990
        assert told(one, 1419) == []
        assert told(one, 1422) == [(RESOLVED, "E")]


def test_an_event_is_not_extended_for_a_few_seconds() -> None:
    changes: list[None] = []
    outbox = Outbox(True, lambda: changes.append(None))
    outbox.fire(event(at=100, hold=330))
    outbox.fire(event(at=100, hold=330 + EXTEND_S - 1))
    assert len(changes) == 1


@pytest.mark.parametrize("every", [True, False])
def test_an_end_is_taken_back(every: bool) -> None:
    outbox = Outbox(every)
    outbox.fire(lasting())
    told(outbox, 100)
    outbox.end(lasting().fingerprint, 110)
    outbox.fire(lasting(at=105))
    assert told(outbox, 200) == []
    assert outbox.active()[0].ends_at is None


@pytest.mark.parametrize("every", [True, False])
def test_an_end_nobody_looked_at_is_not_taken_back(every: bool) -> None:
    outbox = Outbox(every)
    outbox.fire(lasting())
    told(outbox, 100)
    outbox.end(lasting().fingerprint, 110)
    outbox.fire(lasting(at=120))
    # A webhook hears of both changes; to Alertmanager only the last one matters.
    assert told(outbox, 120) == ([(RESOLVED, "P"), (FIRING, "P")] if every else [(FIRING, "P")])


def test_a_clock_set_back_makes_no_end_before_the_start() -> None:
    outbox = Outbox(every=True)
    outbox.fire(lasting(at=100))
    outbox.end(lasting().fingerprint, 50)
    outbox.tick(100)
    assert [change.alert.ends_at for change in outbox._pending.values()] == [None, 100]


def test_a_second_event_counts_and_prolongs() -> None:
    outbox = Outbox(every=False)
    assert outbox.fire(event(at=100))
    assert told(outbox, 100) == [(FIRING, "E")]
    assert not outbox.fire(event(at=100))
    assert outbox.fire(event(at=130))
    (change,) = outbox.batch(64)
    assert change.alert.annotations["occurrences"] == "2"
    assert told(outbox, 130) == [(FIRING, "E")]
    assert told(outbox, 179) == []
    assert told(outbox, 180) == [(RESOLVED, "E")]


def test_alertmanager_hears_late_events_for_the_whole_hold_time() -> None:
    """It was down from before the event until long after its end."""
    outbox = Outbox(every=False)
    outbox.fire(event(at=100, hold=50))
    outbox.fire(lasting(at=100))
    outbox.end(lasting().fingerprint, 120)
    assert told(outbox, 1000) == [(FIRING, "E"), (FIRING, "P")]
    assert told(outbox, 1049) == []
    assert told(outbox, 1050) == [(RESOLVED, "E")]
    assert told(outbox, 1000 + HOLD_S) == [(RESOLVED, "P")]


def test_a_webhook_hears_late_what_happened_when() -> None:
    outbox = Outbox(every=True)
    outbox.fire(event(at=100, hold=50))
    outbox.tick(1000)
    assert [change.alert.ends_at for change in outbox._pending.values()] == [150, 150]
    assert told(outbox, 1000) == [(FIRING, "E"), (RESOLVED, "E")]


@pytest.mark.parametrize("every", [True, False])
def test_the_oldest_resolved_is_dropped_first(every: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "MAX_WAITING", 3)
    outbox = Outbox(every)
    for name in "AB":
        outbox.fire(lasting(name))
        told(outbox, 100)
    for name in "AB":
        outbox.end(lasting(name).fingerprint, 110)
    outbox.tick(110)
    outbox.fire(lasting("C"))
    outbox.fire(lasting("D"))
    assert outbox.dropped == 1
    outbox.fire(lasting("E"))
    assert outbox.dropped == 2
    assert told(outbox, 120) == [(FIRING, "C"), (FIRING, "D"), (FIRING, "E")]
    for name in "FGHI":
        outbox.fire(lasting(name))
    assert outbox.dropped == 3  # nothing but firing ones: the oldest of them
    # Alertmanager gets even that one, with the next repetition of all that is firing.
    assert [change.alert.name for change in outbox.repeats()] == list("CDEFGHI")


def test_what_is_firing_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "MAX_ACTIVE", 10)
    outbox = Outbox(every=False)
    for n in range(25):
        outbox.fire(lasting(f"A{n}"))
        told(outbox, 100)
    assert [alert.name for alert in outbox.active()] == [f"A{n}" for n in range(15, 25)]
    assert outbox.dropped == 15


# laws

_NAMES = st.sampled_from("ABC")
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("fire"), _NAMES, st.integers(0, 9)),
        st.tuples(st.just("event"), _NAMES, st.integers(0, 9)),
        st.tuples(st.just("end"), _NAMES, st.integers(-5, 9)),
        st.tuples(st.just("tick"), _NAMES, st.integers(0, 400)),
        st.tuples(st.just("ack"), _NAMES, st.integers(1, 3)),
        st.tuples(st.just("refuse"), _NAMES, st.just(0)),
    ),
    max_size=40,
)


def played(outbox: Outbox, steps: list[tuple[str, str, int]], now: float = 1000.0) -> float:
    for what, name, number in steps:
        if what == "fire":
            outbox.fire(lasting(name, now))
        elif what == "event":
            outbox.fire(event(name, now, number))
        elif what == "end":
            outbox.end(lasting(name).fingerprint, now + number)
        elif what == "tick":
            now += number
            outbox.tick(now)
        elif what == "ack":
            outbox.ack(outbox.batch(number), now)
        elif batch := outbox.batch(1):
            outbox.refuse(batch[0])
    return now


@given(st.booleans(), _STEPS, _STEPS)
def test_a_restart_changes_nothing(
    every: bool, before: list[tuple[str, str, int]], after: list[tuple[str, str, int]]
) -> None:
    outbox = Outbox(every)
    now = played(outbox, before)
    again = restarted(outbox)
    assert again.snapshot() == outbox.snapshot()
    for one in (outbox, again):
        played(one, after, now)
    assert again.snapshot() == outbox.snapshot()


@given(st.booleans(), _STEPS)
def test_every_change_is_announced(every: bool, steps: list[tuple[str, str, int]]) -> None:
    """What `on_change` saw last is what there is, but for what is only brought up to date: it comes again."""
    seen: list[dict[str, Any]] = []
    outbox = Outbox(every, lambda: seen.append(outbox.snapshot()))
    played(outbox, steps)
    seen.insert(0, Outbox(every).snapshot())
    restored = Outbox(every)
    restored.load(seen[-1])
    later = 10_000.0
    assert told(restored, later) == told(outbox, later)


@given(st.booleans(), _STEPS)
def test_a_receiver_that_comes_back_knows_what_is_firing(every: bool, steps: list[tuple[str, str, int]]) -> None:
    """Whatever happened: after it took all that waits, the last it heard of each alert is how things stand."""
    outbox = Outbox(every)
    now = played(outbox, [step for step in steps if step[0] not in ("ack", "refuse")])
    heard = {name: status for status, name in told(outbox, now)}
    firing = {alert.name for alert in outbox.active()}
    assert {name for name, status in heard.items() if status == FIRING} == firing
    told(outbox, now + 2 * HOLD_S + 1000)
    assert {alert.name for alert in outbox.active()} == {a.name for a in outbox.active() if a.ends_at is None}


@given(_STEPS)
def test_a_webhook_hears_no_resolved_without_its_firing(steps: list[tuple[str, str, int]]) -> None:
    outbox = Outbox(every=True)
    now = played(outbox, [step for step in steps if step[0] not in ("ack", "refuse")])
    state: dict[str, str] = {}
    for status, name in told(outbox, now + 10_000):
        assert status == FIRING or state.get(name) == FIRING
        state[name] = status


# the file


def test_the_state_is_private_and_no_link_is_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = tmp_path / state.FILE_NAME
    path.symlink_to(victim)
    log = LogLines()
    sending = AlertSender(tmp_path, [URL], [], log, "n")
    assert "symbolic links" in log.said("cannot be read")[0]["problem"]
    sending.start()
    sending.fire(lasting())
    assert sending.close(10)
    assert victim.read_text() == "precious"
    assert not path.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 1000,
        b"\xff\xfe garbage\n" * 50,
        b"[" * 100_000,
        b"3",
        b'{"version": 99, "receivers": {}}',
        b'{"version": 1, "receivers": 3}',
        b'{"version": 1, "receivers": {"KEY": 3}}',
        b'{"version": 1, "receivers": {"KEY": {"seq": 1, "active": [{}], "pending": []}}}',
        b'{"version": 1, "receivers": {"KEY": {"seq": "x", "active": [], "pending": []}}}',
    ],
)
def test_any_garbage_is_survived_and_logged(tmp_path: Path, content: bytes) -> None:
    with AlertSenderOf(tmp_path) as sending:
        sending.fire(lasting())
    (key,) = json.loads((tmp_path / state.FILE_NAME).read_bytes())["receivers"]
    (tmp_path / state.FILE_NAME).write_bytes(content.replace(b"KEY", key.encode()))
    log = LogLines()
    assert list(AlertSender(tmp_path, [URL], [], log, "n").counters.values()) == [
        {"sent": 0, "failed": 0, "dropped": 0, "waiting": 0}
    ]
    assert len(log.said("alerts from before the restart")) == 1


class AlertSenderOf:
    """A sender to nobody, closed at the end: all it was given is then in the file."""

    def __init__(self, directory: Path, webhooks: tuple[str, ...] = ()) -> None:
        self.sending = AlertSender(directory, [URL], list(webhooks), LogLines(), "n")

    def __enter__(self) -> AlertSender:
        self.sending.start()
        return self.sending

    def __exit__(self, *_: object) -> None:
        assert self.sending.close(10)


def test_a_state_dir_that_cannot_be_written_stops_no_alert(tmp_path: Path) -> None:
    log = LogLines()
    sending = AlertSender(tmp_path / "missing", [URL], [], log, "n")
    sending.start()
    sending.fire(lasting("A", time.time()))
    (name,) = sending.counters
    until(lambda: sending.counters[name]["failed"] >= 3, "it is tried all the same")
    assert len(log.said("would not survive a restart")) == 1
    (tmp_path / "missing").mkdir()
    until(lambda: any((tmp_path / "missing").iterdir()), "written as soon as that is possible")
    assert sending.close(10)
    again = AlertSender(tmp_path / "missing", [URL], [], log, "n")
    assert again.counters[name]["waiting"] == 1


def test_a_receiver_that_is_configured_no_more_is_forgotten(tmp_path: Path) -> None:
    with AlertSenderOf(tmp_path, (f"{URL}/x",)) as sending:
        sending.fire(lasting())
    assert len(json.loads((tmp_path / state.FILE_NAME).read_bytes())["receivers"]) == 2
    log = LogLines()
    sending = AlertSender(tmp_path, [URL], [], log, "n")
    sending.start()
    assert sending.close(10)
    assert len(json.loads((tmp_path / state.FILE_NAME).read_bytes())["receivers"]) == 1
    assert log.said("configured no more") == [{"receivers": 1}]


def test_the_state_holds_no_secrets(tmp_path: Path) -> None:
    with AlertSenderOf(tmp_path, ("https://me:pass@127.0.0.1:9/T0K3N", "https://127.0.0.1:9/other")) as sending:
        assert list(sending.counters)[1:] == ["webhook 127.0.0.1:9", "webhook 127.0.0.1:9 #2"]
        sending.fire(lasting())
    everything = "".join(path.name + path.read_text() for path in tmp_path.iterdir())
    assert len(json.loads((tmp_path / state.FILE_NAME).read_bytes())["receivers"]) == 3
    assert "pass" not in everything
    assert "T0K3N" not in everything


def test_nobody_waits_for_a_disk_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a flush that never ends, ten thousand alerts are taken, and bounded, and deliveries go on."""
    stuck, reached = threading.Event(), threading.Event()

    def hang(_: int) -> None:
        reached.set()
        stuck.wait()

    monkeypatch.setattr(os, "fsync", hang)
    sending = AlertSender(tmp_path, [URL], [], LogLines(), "n")
    sending.start()
    sending.fire(lasting("A", time.time()))
    assert reached.wait(30)
    for n in range(10_000):
        sending.fire(lasting(f"A{n}", time.time()))
    (found,) = sending.counters.values()
    assert found["waiting"] == queue.MAX_WAITING
    assert found["dropped"] >= 10_000 - queue.MAX_WAITING
    until(lambda: next(iter(sending.counters.values()))["failed"] >= 3, "it is tried again and again")
    assert not sending.close(0.2)
    stuck.set()


def test_a_storm_is_written_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushes = 0
    fsync = os.fsync

    def counted(fd: int) -> None:
        nonlocal flushes
        flushes += 1
        fsync(fd)

    monkeypatch.setattr(os, "fsync", counted)
    began = time.monotonic()
    with AlertSenderOf(tmp_path) as sending:
        for n in range(500):
            sending.fire(lasting(f"A{n}"))
    assert flushes <= 3 + (time.monotonic() - began) / state.BATCH_S
    (name,) = sending.counters
    assert AlertSender(tmp_path, [URL], [], LogLines(), "n").counters[name]["waiting"] == 500


#: Fires a second alert, and ends itself with SIGKILL at the n-th system call that opens or changes a name.
SUICIDE = """
import os, signal, sys
from pathlib import Path
from monitor.side.alerts.rules import Alert
from monitor.side.alerts.send import AlertSender
from monitor.side.export.log import Log
count = int(sys.argv[2])
def hook(event, arguments):
    global count
    if event in ("open", "os.rename", "os.remove") and "alerts.json" in str(arguments[0]):
        count -= 1
        if count < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sender = AlertSender(Path(sys.argv[1]), ["http://127.0.0.1:9"], [], Log(), "n")
sys.addaudithook(hook)
sender.start()
sender.fire(Alert("second", {}, {}, 100.0))
assert sender.close(30)
"""


def test_killed_at_any_moment_the_old_or_the_new_state_is_there(tmp_path: Path) -> None:
    for step in range(20):
        directory = tmp_path / str(step)
        directory.mkdir()
        with AlertSenderOf(directory) as sending:
            sending.fire(lasting())
        code = [sys.executable, "-c", SUICIDE, str(directory), str(step)]
        done = subprocess.run(code, env=environment(), stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        if done.returncode == 0:
            assert waiting(directory) == 2
            break
        assert waiting(directory) in (1, 2)
    assert step >= 3, "it was killed before, in and after the write"
    assert done.returncode == 0


def waiting(directory: Path) -> int:
    """Alerts that wait, by the next process, which finds nothing to complain of."""
    log = LogLines()
    (found,) = AlertSender(directory, [URL], [], log, "n").counters.values()
    assert [line for line in log.lines if line[0] != "info"] == []
    return found["waiting"]
