"""The queue of one receiver: what is delivered, and when."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.side.alerts import queue
from monitor.side.alerts.queue import FIRING, RESOLVED, Outbox
from monitor.side.alerts.rules import HOLD_S, Alert


def lasting(name: str = "P", at: float = 100.0, **annotations: str) -> Alert:
    return Alert(name, {"node": "n"}, annotations, at)


def event(name: str = "E", at: float = 100.0, hold: float = 50.0) -> Alert:
    return Alert(name, {"node": "n"}, {}, at, at + hold)


def active(outbox: Outbox) -> list[Alert]:
    """What is firing, with its end where that is known."""
    return [replace(one.alert, ends_at=one.ends_at) for one in outbox._active.values()]


def end(outbox: Outbox, over: Alert, when: float) -> None:
    """This alert is over at ``when``; the others last."""
    outbox.end_others({alert.fingerprint for alert in active(outbox)} - {over.fingerprint}, when)


def delivered(outbox: Outbox, now: float) -> list[tuple[str, str]]:
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
    outbox.fire(lasting())
    outbox.fire(lasting(at=103.0, available="7"))
    assert active(outbox)[0].annotations == {"available": "7"}
    assert active(outbox)[0].starts_at == 100
    assert delivered(outbox, 104) == [(FIRING, "P")]
    end(outbox, lasting(), 110)
    assert (delivered(outbox, 109), delivered(outbox, 110)) == ([], [(RESOLVED, "P")])
    assert delivered(outbox, 999) == []
    assert not outbox.firing


@pytest.mark.parametrize("every", [True, False])
def test_an_event_that_goes_on_is_extended(every: bool) -> None:
    """Kills that do not stop: the incident began when it began and ends later each time it is judged."""
    outbox = Outbox(every)
    outbox.fire(event(at=100, hold=330))
    assert delivered(outbox, 101) == [(FIRING, "E")]
    for more in range(10, 1000, 10):
        outbox.fire(event(at=100, hold=330 + more))
        assert delivered(outbox, 100 + more) == []
    outbox.fire(event(at=100, hold=400))  # what was known earlier and comes late
    assert active(outbox)[0].ends_at == 100 + 330 + 990
    assert (delivered(outbox, 1419), delivered(outbox, 1422)) == ([], [(RESOLVED, "E")])


@pytest.mark.parametrize("every", [True, False])
def test_an_end_is_taken_back_while_it_is_to_come(every: bool) -> None:
    outbox = Outbox(every)
    outbox.fire(lasting())
    delivered(outbox, 100)
    end(outbox, lasting(), 110)
    outbox.fire(lasting(at=105))
    assert (delivered(outbox, 109), active(outbox)[0].ends_at) == ([], None)
    end(outbox, lasting(), 110)
    outbox.fire(lasting(at=120))
    # A webhook hears of both changes; to Alertmanager only the last one matters.
    assert delivered(outbox, 120) == ([(RESOLVED, "P"), (FIRING, "P")] if every else [(FIRING, "P")])


def test_a_clock_set_back_makes_no_end_before_the_start() -> None:
    outbox = Outbox(every=True)
    outbox.fire(lasting(at=100))
    end(outbox, lasting(), 50)
    outbox.tick(100)
    assert [change.alert.ends_at for change in outbox._pending.values()] == [None, 100]


def test_a_second_event_counts_and_prolongs() -> None:
    outbox = Outbox(every=False)
    outbox.fire(event(at=100))
    assert delivered(outbox, 100) == [(FIRING, "E")]
    outbox.fire(event(at=100))
    outbox.fire(event(at=130))
    (change,) = outbox.batch(64)
    assert change.alert.annotations["occurrences"] == "2"
    assert (delivered(outbox, 130), delivered(outbox, 179)) == ([(FIRING, "E")], [])
    assert delivered(outbox, 180) == [(RESOLVED, "E")]


def test_alertmanager_hears_late_events_for_the_whole_hold_time() -> None:
    """It was down from before the event until long after its end."""
    outbox = Outbox(every=False)
    outbox.fire(event(at=100, hold=50))
    outbox.fire(lasting(at=100))
    end(outbox, lasting(), 120)
    assert (delivered(outbox, 1000), delivered(outbox, 1049)) == ([(FIRING, "E"), (FIRING, "P")], [])
    assert delivered(outbox, 1050) == [(RESOLVED, "E")]
    assert delivered(outbox, 1000 + HOLD_S) == [(RESOLVED, "P")]


def test_a_webhook_hears_late_what_happened_when() -> None:
    outbox = Outbox(every=True)
    outbox.fire(event(at=100, hold=50))
    outbox.tick(1000)
    assert [change.alert.ends_at for change in outbox._pending.values()] == [150, 150]
    assert delivered(outbox, 1000) == [(FIRING, "E"), (RESOLVED, "E")]


@pytest.mark.parametrize("every", [True, False])
def test_the_oldest_resolved_is_dropped_first(every: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "MAX_WAITING", 3)
    outbox = Outbox(every)
    for name in "AB":
        outbox.fire(lasting(name))
        delivered(outbox, 100)
    for name in "AB":
        end(outbox, lasting(name), 110)
    outbox.tick(110)
    outbox.fire(lasting("C"))
    outbox.fire(lasting("D"))
    assert outbox.dropped == 1
    outbox.fire(lasting("E"))
    assert outbox.dropped == 2
    assert delivered(outbox, 120) == [(FIRING, "C"), (FIRING, "D"), (FIRING, "E")]
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
        delivered(outbox, 100)
    assert [alert.name for alert in active(outbox)] == [f"A{n}" for n in range(15, 25)]
    assert outbox.dropped == 15


@pytest.mark.parametrize("every", [True, False])
def test_pods_do_not_push_out_what_is_said_of_the_node(every: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user makes any number of units, each with alerts of its own name."""
    for name in ("MAX_ACTIVE", "MAX_WAITING"):
        monkeypatch.setattr(queue, name, 10)
    outbox = Outbox(every)
    outbox.fire(lasting("node"))
    for n in range(25):
        outbox.fire(replace(lasting("pod"), labels={"pod": f"u{n}"}))
    assert [alert.name for alert in active(outbox)].count("node") == 1
    assert (FIRING, "node") in delivered(outbox, 100)


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
            end(outbox, lasting(name), now + number)
        elif what == "tick":
            now += number
            outbox.tick(now)
        elif what == "ack":
            outbox.ack(outbox.batch(number), now)
        elif batch := outbox.batch(1):
            outbox.refuse(batch[0])
    return now


@given(st.booleans(), _STEPS)
def test_a_receiver_that_comes_back_knows_what_is_firing(every: bool, steps: list[tuple[str, str, int]]) -> None:
    """Whatever happened: after it took all that waits, the last it heard of each alert is how things stand."""
    outbox = Outbox(every)
    now = played(outbox, [step for step in steps if step[0] not in ("ack", "refuse")])
    heard = {name: status for status, name in delivered(outbox, now)}
    firing = {alert.name for alert in active(outbox)}
    assert {name for name, status in heard.items() if status == FIRING} == firing
    delivered(outbox, now + 2 * HOLD_S + 1000)
    assert {alert.name for alert in active(outbox)} == {a.name for a in active(outbox) if a.ends_at is None}


@given(_STEPS)
def test_a_webhook_hears_no_resolved_without_its_firing(steps: list[tuple[str, str, int]]) -> None:
    outbox = Outbox(every=True)
    now = played(outbox, [step for step in steps if step[0] not in ("ack", "refuse")])
    state: dict[str, str] = {}
    for status, name in delivered(outbox, now + 10_000):
        assert status == FIRING or state.get(name) == FIRING
        state[name] = status
