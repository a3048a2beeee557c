"""How the hot loop waits: for descriptors, for a moment, and both while somebody takes memory."""

import os
import select
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.hot.busy_poll import NEAR_BYTES, SAVED_NS, BusyPoll
from monitor.hot.pass_timer import TICK_NS, PassTimer
from monitor.hot.sleep import SHORT_NS, Sleep


class Deaf:
    """An epoll that never comes back by itself: only a descriptor wakes it."""

    def __init__(self) -> None:
        self.epoll = select.epoll()

    def register(self, fd: int, events: int) -> None:
        self.epoll.register(fd, events)

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        self.asked_s = timeout
        return self.epoll.poll(60.0)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_a_short_wait_is_ended_by_a_timer_and_not_before(pipe: tuple[int, int]) -> None:
    """A timeout of epoll is whole milliseconds, rounded up."""
    deaf: Any = Deaf()
    sleep = Sleep(deaf)
    for wait_ns in (250_000, SHORT_NS - 1_000_000):
        due = time.monotonic_ns() + wait_ns
        assert list(sleep.until(due)) == [], "the timer is nobody else's descriptor"
        assert time.monotonic_ns() >= due


def test_descriptors_end_a_wait(pipe: tuple[int, int]) -> None:
    epoll = select.epoll()
    sleep = Sleep(epoll)
    epoll.register(pipe[0], select.EPOLLIN)
    os.write(pipe[1], b"x")
    assert list(sleep.until(time.monotonic_ns() + 60 * 10**9)) == [pipe[0]]
    assert list(sleep.until(time.monotonic_ns() + SHORT_NS // 2)) == [pipe[0]]
    os.read(pipe[0], 1)
    assert list(sleep.until(0)) == [], "what is overdue is not waited for"


class Watched:
    """What a busy poll looks at: a pod that moves by a step whenever the ring is read."""

    def __init__(self, *, looks: bool) -> None:
        self.arming = SimpleNamespace(looks=looks, next_look_ns=0)
        self.watches = [SimpleNamespace(index=0, thresholds=("hard",))]
        self.table = SimpleNamespace(room=lambda _: NEAR_BYTES - 1)
        self.steps, self.is_calm, self.looked = 1, True, 0
        self.busy_poll = BusyPoll(self, self, self.consume, self.look)  # type: ignore[arg-type]
        self.busy_poll._credit_ns = SAVED_NS

    def consume(self) -> None:
        self.steps += 1

    def look(self, now_ns: int) -> None:
        """The second one finds a threshold met."""
        assert now_ns >= self.arming.next_look_ns
        self.looked += 1
        self.arming.next_look_ns = now_ns + 1_000_000
        self.is_calm = self.looked < 2


def test_a_look_that_is_due_does_not_wait_for_pods_to_rest() -> None:
    watched = Watched(looks=True)
    watched.busy_poll.spin(0)
    assert watched.looked == 2, "it went on after the first, and ended with the second"


def test_where_every_change_is_told_nobody_looks_meanwhile() -> None:
    watched = Watched(looks=False)
    watched.busy_poll.spin(0)
    assert watched.looked == 0
    assert watched.steps > 2, "the ring was read until the budget was spent"


@pytest.mark.parametrize(
    ("planned", "again", "pressed", "due"),
    [
        (None, None, False, None),
        (None, None, True, 100 + TICK_NS),
        (7, 9, True, 7),
        (None, 9, True, 9),
        (7 + 2 * TICK_NS, None, True, 100 + TICK_NS),
        (7, None, False, 7),
    ],
)
def test_under_pressure_a_pass_is_due_a_tick_after_the_last_one(
    planned: int | None, again: int | None, pressed: bool, due: int | None
) -> None:
    """Whatever else wakes the loop meanwhile: looks every 1.6 ms were as many passes, 15 % of a CPU for hours."""
    timer = PassTimer()
    timer.begin(100)
    timer._recheck_ns = again
    assert timer.due_ns(planned, pressed) == due
