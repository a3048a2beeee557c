"""Held pods as the helper has them: log lines, counts, messages that come twice; one hold of a pod in a minute."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from monitor.kernel.cgroupfs import Hierarchy
from monitor.link.messages import KubeletEviction, PodHeld, PodReleased
from monitor.race.events import Event
from monitor.settings.config import RunConfig
from monitor.side.holds import CHANGES, FOR_MEMORY, MINUTE_NS, HoldRation, Holds
from tests.log_lines import LogLines
from tests.side.parts import Parts

MIB = 1 << 20
HELD = PodHeld(
    hold=1, pod="u", pod_name="ns/hog", ts_ns=0, hard=True, brake="limit", cap=64 * MIB, usage=60 * MIB,
    signal="memory.available", domain="node", quantity=32 * MIB, available=31 * MIB, second_line=8 * MIB,
    reason="grows", until_ns=10**18,
)  # fmt: skip
ENDED = PodReleased(
    hold=1,
    pod="u",
    pod_name="ns/hog",
    ts_ns=5,
    held_ns=2 * 10**9,
    why="clear",
    grew=MIB,
    usage=61 * MIB,
    available=90 * MIB,
)


@pytest.fixture
def log() -> LogLines:
    return LogLines()


@pytest.fixture
def sent() -> list[KubeletEviction]:
    return []


@pytest.fixture
def holds(log: LogLines, sent: list[KubeletEviction]) -> Holds:
    return Holds(Parts(RunConfig(), Hierarchy(2, Path("/")), 0).node, log, cast(Any, sent.append), tells=True)


def test_a_hold_is_logged_counted_and_over(holds: Holds, log: LogLines) -> None:
    held = HELD._replace(ts_ns=time.monotonic_ns() - 10**9)
    holds.held(held)
    assert holds.node.held == {"u": held._replace(since_ns=held.ts_ns)}
    assert 1 <= holds.node.longest_hold_s() < 60
    (shown,) = holds.node.shown_holds()
    assert (shown["pod"], shown["cap"], shown["reason"]) == ("ns/hog", 64 * MIB, "grows")
    holds.over(ENDED)
    assert (dict(holds.node.held), holds.node.longest_hold_s(), holds.node.shown_holds()) == ({}, 0.0, [])
    assert (holds.begun, holds.ended) == ({"grows": 1}, {"clear": 1})
    (level, begin, fields), (last, end, ended) = log.lines
    assert (level, last) == ("warning", "warning")
    assert (begin, fields["pod"], fields["uid"], fields["at_ns"]) == ("pod held", "ns/hog", "u", held.ts_ns)
    assert fields["threshold"] == 32 * MIB
    assert (end, ended["why"], ended["grew"], ended["ended_ns"]) == ("hold ended", "clear", MIB, 5)


def test_evictions_are_passed_on_also_before_the_pod_is_held(holds: Holds, sent: list[KubeletEviction]) -> None:
    """A pod that flushes at SIGTERM grows."""
    holds.evicted("u", f"{FOR_MEMORY} Threshold quantity: 100Mi")
    holds.evicted("other")
    assert sent == [KubeletEviction("u", True), KubeletEviction("other", False)]
    holds.tells = False
    holds.evicted("u")
    assert len(sent) == 2, "the hot process holds no pod"


def test_a_pod_that_is_held_after_it_was_asked_to_end_is_passed_on_once_in_each_hold(
    holds: Holds, sent: list[KubeletEviction]
) -> None:
    """A hot process that was started again learns of its pods later than the helper of those that are to end."""
    holds.evicted("u", FOR_MEMORY)
    sent.clear()
    for number in (1, 1, 2, 2):
        holds.held(HELD._replace(pod="other", hold=number))
        holds.held(HELD._replace(hold=number))
    assert sent == [KubeletEviction("u", False)] * 2
    holds.evicted("u")
    holds.held(HELD._replace(hold=2))  # its brake changed
    assert sent == [KubeletEviction("u", False)] * 3


def test_a_hold_lasts_since_it_began_whoever_goes_on_with_it(holds: Holds) -> None:
    """The brake was changed since, and the helper or the hot process is another one."""
    now_ns = time.monotonic_ns()
    holds.held(HELD._replace(ts_ns=now_ns - 10**9, since_ns=now_ns - 100 * 10**9, resent=True))
    assert 100 <= holds.node.longest_hold_s() < 160
    (shown,) = holds.node.shown_holds()
    assert 100 <= shown["held_s"] < 160


def test_what_is_sent_again_is_logged_once(holds: Holds, log: LogLines) -> None:
    """A helper that starts in the middle gets what the one before had not stored, and then each hold as it is."""
    for message in (HELD, HELD._replace(resent=True), HELD._replace(resent=True)):
        holds.held(message)
    holds.over(ENDED)
    assert [text for _, text, _ in log.lines] == ["pod held", "hold ended"]
    assert holds.node.held == {}
    assert holds.ended.total() == 1


def test_the_cap_of_a_hold_is_known_as_a_limit(holds: Holds) -> None:
    holds.held(HELD)
    assert holds.node.is_at_cap("u", 64 * MIB)
    assert not holds.node.is_at_cap("u", 65 * MIB)
    assert not holds.node.is_at_cap("another", 64 * MIB)
    holds.held(HELD._replace(cap=0))
    assert not holds.node.is_at_cap("u", 0)


#: A pod may be released half a second after there is room again.
CYCLES = 120
Message = PodHeld | PodReleased


def cycles(number: int, every_ns: int = MINUTE_NS // CYCLES, changes: int = 0) -> list[Message]:
    """So many holds, one after the other, and changes of the brake in each."""
    found: list[Message] = []
    for n in range(number):
        at = n * every_ns
        found.append(HELD._replace(hold=n + 1, ts_ns=at))
        found += [HELD._replace(hold=n + 1, ts_ns=at + 1 + change, cap=change) for change in range(changes)]
        found.append(ENDED._replace(hold=n + 1, ts_ns=at + every_ns // 2))
    return found


def told(holds: Holds, messages: list[Message]) -> list[str]:
    """The events in the API server of what the hot process reports."""
    events: list[str] = []
    for message in messages:
        one = holds.rationed(message)
        text = holds.held(one) if isinstance(one, PodHeld) else holds.over(one)
        events += [text] if text else []
    return events


def test_one_hold_of_a_pod_is_told_in_a_minute_and_the_next_has_the_number_of_what_was_left_out(
    holds: Holds, log: LogLines
) -> None:
    events = told(holds, cycles(CYCLES))
    assert [text for _, text, _ in log.lines] == ["pod held", "hold ended"]
    assert [text.partition(" (")[0] for text in events] == ["Held", "Not held any more after 2.0 s"]
    assert (holds.begun.total(), holds.ended.total()) == (CYCLES, CYCLES), "all are counted"
    assert holds.node.held == {}, "the held pods are known all the time"
    log.lines.clear()
    again = [message._replace(hold=message.hold + CYCLES, ts_ns=message.ts_ns + MINUTE_NS) for message in cycles(1)]
    begins, _ = told(holds, again)
    assert [fields.get("left_out") for _, _, fields in log.lines] == [2 * CYCLES - 2, None]
    assert begins.endswith("238 more beginnings, changes and ends of holds of it were not reported.")


def test_a_hold_is_an_event_of_its_pod(tmp_path: Path) -> None:
    """A changed brake is none."""
    parts, events = Parts(RunConfig(state_dir=str(tmp_path)), Hierarchy(2, tmp_path), 512 * MIB), list[Any]()
    cluster: Any = SimpleNamespace(pod_event=lambda *about, warns: events.append((*about[:3], warns)))
    handler = parts.handler(cluster=cluster)
    for message in (HELD, HELD._replace(cap=0), ENDED):
        assert handler.handle(message)
    assert events == [("u", "ns/hog", "OutraceHeld", True), ("u", "ns/hog", "OutraceReleased", False)]


def test_a_brake_that_changes_all_the_time_is_told_a_few_times(holds: Holds, log: LogLines) -> None:
    """On cgroup v2 a pod that stays near its cap gets more of it at every look, 200 times a second."""
    events = told(holds, cycles(1, every_ns=MINUTE_NS // 2, changes=5000))
    texts = [text for _, text, _ in log.lines]
    assert texts == ["pod held", *["the hold of a pod changed"] * CHANGES, "hold ended"]
    assert log.lines[-1][2]["left_out"] == 5000 - CHANGES
    assert len(events) == 2
    assert holds.begun.total() == 1


def test_of_more_pods_than_are_remembered_the_oldest_is_told_of_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.side.holds._MOST", 3)
    ration = HoldRation()
    assert [ration.take(HELD._replace(pod=uid)) for uid in "abcd"] == [0] * 4
    assert len(ration._told) == 3


def test_the_record_of_a_race_is_not_filled_with_one_pods_holds(tmp_path: Path) -> None:
    """Each comes with the order of eviction, 10 KiB, and beyond its bounds a record drops kills of others."""
    parts = Parts(RunConfig(state_dir=str(tmp_path)), Hierarchy(2, tmp_path), 512 * MIB, log=LogLines())
    handler, builder, fed = parts.handler(), parts.races().event_builder, list[Event]()
    handler.record = builder.handle
    builder.feed = fed.append  # type: ignore[method-assign]
    for message in cycles(CYCLES + 1):
        assert handler.handle(message)
    told = [event for event in fed if isinstance(event, PodHeld | PodReleased)]
    assert [(type(event), event.left_out) for event in told] == [
        (PodHeld, 0),
        (PodReleased, 0),
        (PodHeld, 2 * CYCLES - 2),
        (PodReleased, 0),
    ]
