"""The queue of one receiver, its journal, and what becomes of both when things go wrong."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.side.alerts import queue
from monitor.side.alerts.journal import COMPACT_BYTES, Journal, decode, encode, journal_path
from monitor.side.alerts.queue import EXTEND_S, FIRING, RESOLVED, Outbox
from monitor.side.alerts.rules import HOLD_S, Alert
from monitor.side.alerts.send import AlertSender
from tests.alerts.services import LogLines
from tests.live import until


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
    again = Outbox(every)
    for operation in outbox.take_operations():
        again.replay(decode(encode(operation)[:-1]))
    for one in (outbox, again):
        assert one.active()[0].ends_at == 100 + 330 + 990
        assert told(one, 1419) == []
        assert told(one, 1422) == [(RESOLVED, "E")]


def test_an_event_is_not_extended_for_a_few_seconds() -> None:
    outbox = Outbox(every=True)
    outbox.fire(event(at=100, hold=330))
    outbox.take_operations()
    outbox.fire(event(at=100, hold=330 + EXTEND_S - 1))
    assert outbox.take_operations() == []


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


def test_a_disk_that_hangs_costs_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes the operations: they are replaced by one snapshot, which says the same."""
    monkeypatch.setattr(queue, "MAX_OPERATIONS", 10)
    outbox = Outbox(every=True)
    for n in range(50):
        outbox.fire(lasting(f"A{n}"))
        assert len(outbox.operations) <= 10
    (snapshot,) = outbox.take_operations()
    again = Outbox(every=True)
    again.replay(snapshot)
    assert again.snapshot() == outbox.snapshot()
    assert outbox.take_operations() == []


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


def played(outbox: Outbox, steps: list[tuple[str, str, int]]) -> float:
    now = 1000.0
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


@given(st.booleans(), _STEPS)
def test_replaying_gives_the_same_state(every: bool, steps: list[tuple[str, str, int]]) -> None:
    outbox, again = Outbox(every), Outbox(every)
    played(outbox, steps)
    for operation in outbox.take_operations():
        again.replay(decode(encode(operation)[:-1]))
    # How high the last number is does not matter once what it numbered is gone, as long as none is used twice.
    assert {**again.snapshot(), "snapshot": 0} == {**outbox.snapshot(), "snapshot": 0}
    assert again._seq >= max(outbox._pending, default=0)


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


@given(
    st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 255)), min_size=1, max_size=5), st.integers(0, 100_000)
)
def test_a_damaged_journal_loses_only_the_damaged_lines(flips: list[tuple[int, int]], cut: int) -> None:
    outbox = Outbox(every=True)
    for n in range(20):
        outbox.fire(lasting(f"A{n}"))
    lines = [encode(operation) for operation in outbox.take_operations()]
    data = bytearray(b"".join(lines))
    for at, value in flips:
        data[at % len(data)] = value
    del data[len(data) - cut % 200 :]
    kept = [
        name for name, line in zip((f"A{n}" for n in range(20)), lines, strict=True) if b"\n" + line in b"\n" + data
    ]
    path = Path("/dev/shm") / f"outrace-test-journal-{os.getpid()}"
    try:
        path.write_bytes(data)
        again = Outbox(every=True)
        Journal(path).load(again)
    finally:
        path.unlink()
    found = [alert.name for alert in again.active()]
    assert [name for name in found if name in kept] == [name for name in kept if name in found]
    assert set(kept) <= set(found)


# files


def test_the_journal_is_compacted(tmp_path: Path) -> None:
    outbox, journal = Outbox(every=True), Journal(tmp_path / "j")
    journal.compact(outbox.snapshot())
    while not journal.long:
        outbox.fire(event(at=float(len(outbox.operations))))
        outbox.ack(outbox.batch(1), 1.0)
        outbox.fire(event(at=1e6))
        journal.append(outbox.take_operations())
    assert journal.path.stat().st_size > COMPACT_BYTES
    journal.compact(outbox.snapshot())
    assert journal.path.stat().st_size < COMPACT_BYTES
    again = Outbox(every=True)
    assert Journal(journal.path).load(again) == 0
    assert again.snapshot() == outbox.snapshot()
    assert [path.name for path in tmp_path.iterdir()] == ["j"]


def test_the_journal_is_private_and_no_link_is_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = tmp_path / "j"
    path.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link") as caught:
        Journal(path).load(Outbox(every=True))
    assert caught.value.errno == errno.ELOOP
    Journal(path).compact({"snapshot": 0, "active": [], "pending": []})
    assert victim.read_text() == "precious"
    assert not path.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o600


def test_damage_is_told_and_the_rest_is_used(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9"
    path = journal_path(tmp_path, f"alertmanager {url}")
    outbox = Outbox(every=False)
    outbox.fire(lasting("A"))
    outbox.fire(lasting("B"))
    first, second = map(encode, outbox.take_operations())
    path.write_bytes(first + second[:-20])
    log = LogLines()
    sending = AlertSender(tmp_path, [url], [], log, "n")
    (told_of,) = log.said("damaged")
    assert told_of["lines_lost"] == 1
    assert told_of["path"] == str(path)
    assert list(sending.counters.values()) == [{"sent": 0, "failed": 0, "dropped": 0, "waiting": 1}]


@pytest.mark.parametrize(
    "content",
    [
        b"\0" * 1000,
        b"\xff\xfe garbage\n" * 50,
        encode({"what": 1}),
        encode({"fire": 3}),
        encode({"ack": "x", "at": None}),
        encode({"snapshot": 1, "active": [{}], "pending": []}),
        b"00000000 \n",
        b"zzzzzzzz {}\n",
        b"[" * 100_000,
    ],
)
def test_any_garbage_is_survived(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "j"
    path.write_bytes(content)
    outbox = Outbox(every=True)
    assert Journal(path).load(outbox) >= 1
    assert outbox.snapshot() == {"snapshot": 0, "active": [], "pending": []}


def test_a_state_dir_that_cannot_be_written_stops_no_alert(tmp_path: Path) -> None:
    log = LogLines()
    sending = AlertSender(tmp_path / "missing", ["http://127.0.0.1:9"], [], log, "n")
    sending.start()
    sending.fire(lasting("A", time.time()))
    (name,) = sending.counters
    until(lambda: sending.counters[name]["failed"] >= 3, "it is tried all the same")
    assert len(log.said("would not survive a restart")) == 1
    (tmp_path / "missing").mkdir()
    until(lambda: any((tmp_path / "missing").iterdir()), "written as soon as that is possible")
    assert sending.close(10)
    again = AlertSender(tmp_path / "missing", ["http://127.0.0.1:9"], [], log, "n")
    assert again.counters[name]["waiting"] == 1


def test_a_receiver_that_is_configured_no_more_is_forgotten(tmp_path: Path) -> None:
    old = AlertSender(tmp_path, ["http://127.0.0.1:9"], ["http://127.0.0.1:9/x"], LogLines(), "n")
    old.start()
    old.fire(lasting("A", time.time()))
    assert old.close(10)
    assert len(list(tmp_path.iterdir())) == 2
    log = LogLines()
    AlertSender(tmp_path, ["http://127.0.0.1:9"], [], log, "n")
    assert [path.name for path in tmp_path.iterdir()] == [
        journal_path(tmp_path, "alertmanager http://127.0.0.1:9").name
    ]
    assert len(log.said("configured no more")) == 1


def test_journals_tell_no_secrets(tmp_path: Path) -> None:
    sending = AlertSender(tmp_path, [], ["https://me:pass@h/T0K3N", "https://h/other"], LogLines(), "n")
    assert list(sending.counters) == ["webhook h:443", "webhook h:443 #2"]
    sending.start()
    sending.close(0)
    until(lambda: len(list(tmp_path.glob("*.journal"))) == 2, "both are there")
    everything = "".join(path.name + path.read_text() for path in tmp_path.iterdir())
    assert "pass" not in everything
    assert "T0K3N" not in everything


def test_the_caller_never_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a thread that is stuck in the kernel for ever, ten thousand alerts are taken, and bounded."""
    import threading

    stuck, reached = threading.Event(), threading.Event()

    def hang(*_: Any) -> None:
        reached.set()
        stuck.wait()

    monkeypatch.setattr(Journal, "append", hang)
    sending = AlertSender(tmp_path, ["http://127.0.0.1:9"], [], LogLines(), "n")
    sending.start()
    sending.fire(lasting("A", time.time()))
    assert reached.wait(30)
    for n in range(10_000):
        sending.fire(lasting(f"A{n}", time.time()))
    (found,) = sending.counters.values()
    assert found["waiting"] == queue.MAX_WAITING
    assert found["dropped"] >= 10_000 - queue.MAX_WAITING
    stuck.set()
    sending.close(10)


def test_lines_have_checksums() -> None:
    line = encode({"ack": 1, "at": 2.5})
    assert line.endswith(b"\n")
    assert decode(line[:-1]) == {"ack": 1, "at": 2.5}
    assert json.loads(line[9:]) == {"ack": 1, "at": 2.5}
    with pytest.raises(ValueError):
        decode(line[:-1].replace(b"2.5", b"3.5"))
