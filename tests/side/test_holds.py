"""Held pods as the side has them: log lines, counts, and messages that come twice."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.link.hold_messages import Held, HoldEnded
from monitor.side.holds import Holds

MIB = 1 << 20
HELD = Held(
    id=1, decision=0, pod="u", name="ns/hog", ts_ns=0, crossed_ns=None, brake="limit", cap=64 * MIB, usage=60 * MIB,
    signal="memory.available", domain="node", quantity=32 * MIB, available=31 * MIB, second_line=8 * MIB,
    reason="grows", until_ns=10**18,
)  # fmt: skip
ENDED = HoldEnded(
    id=1, pod="u", name="ns/hog", ts_ns=5, held_ns=2 * 10**9, why="clear", grew=MIB, usage=61 * MIB, available=90 * MIB
)


@pytest.fixture
def lines() -> list[tuple[str, dict[str, Any]]]:
    return []


@pytest.fixture
def holds(lines: list[tuple[str, dict[str, Any]]]) -> Holds:
    log = SimpleNamespace(warning=lambda text, **fields: lines.append((text, fields)))
    view: Any = SimpleNamespace(log=log, cluster=None)
    return Holds(view)


def test_a_hold_is_logged_counted_and_over(holds: Holds, lines: list[tuple[str, dict[str, Any]]]) -> None:
    held = HELD._replace(ts_ns=time.monotonic_ns() - 10**9)
    holds.held(held)
    assert holds.now == {"u": held}
    assert 1 <= holds.longest_s() < 60
    (shown,) = holds.shown()
    assert (shown["pod"], shown["cap"], shown["reason"]) == ("ns/hog", 64 * MIB, "grows")
    holds.over(ENDED)
    assert (dict(holds.now), holds.longest_s(), holds.shown()) == ({}, 0.0, [])
    assert (holds.begun, holds.ended, holds.seconds, holds.grown_bytes) == ({"grows": 1}, {"clear": 1}, 2.0, MIB)
    (begin, fields), (end, ended) = lines
    assert (begin, fields["pod"], fields["uid"], fields["held_ns"]) == ("pod held", "ns/hog", "u", held.ts_ns)
    assert fields["threshold"] == 32 * MIB
    assert (end, ended["why"], ended["grew"], ended["ended_ns"]) == ("hold ended", "clear", MIB, 5)


def test_another_brake_is_the_same_hold(holds: Holds, lines: list[tuple[str, dict[str, Any]]]) -> None:
    holds.held(HELD)
    holds.held(HELD._replace(brake="limit+high", ts_ns=7))
    assert [text for text, _ in lines] == ["pod held", "the brake of a held pod changed"]
    assert holds.begun.total() == 1
    assert holds.since_ns == {"u": 0}


def test_a_hold_lasts_since_it_began_whoever_goes_on_with_it(holds: Holds) -> None:
    """The brake was changed since, and the side or the hot process is another one."""
    now_ns = time.monotonic_ns()
    holds.held(HELD._replace(ts_ns=now_ns - 10**9, since_ns=now_ns - 100 * 10**9, resent=True))
    assert 100 <= holds.longest_s() < 160
    (shown,) = holds.shown()
    assert 100 <= shown["held_s"] < 160


def test_what_is_sent_again_is_logged_once(holds: Holds, lines: list[tuple[str, dict[str, Any]]]) -> None:
    """A side that starts in the middle is told of holds that are over, and of those in force, more than once."""
    for message in (HELD, HELD._replace(resent=True), HELD._replace(resent=True)):
        holds.held(message)
    holds.over(ENDED)
    holds.over(ENDED._replace(resent=True))
    holds.held(HELD._replace(resent=True))
    assert [text for text, _ in lines] == ["pod held", "hold ended"]
    assert holds.now == {}
    assert holds.ended.total() == 1


def test_the_cap_of_a_hold_is_known_as_a_limit(holds: Holds) -> None:
    holds.held(HELD)
    assert holds.is_at_cap("u", 64 * MIB)
    assert not holds.is_at_cap("u", 65 * MIB)
    assert not holds.is_at_cap("another", 64 * MIB)
    holds.held(HELD._replace(cap=0))
    assert not holds.is_at_cap("u", 0)
