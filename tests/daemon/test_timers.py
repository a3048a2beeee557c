"""The hot loop: its table of timers, its life cycle, and how it waits."""

import errno
import os
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.hot.loop import Guard, Loop, Timer
from monitor.hot.pass_timer import TICK_NS, PassTimer
from monitor.hot.records import NEAR_BYTES, SAVED_NS, BusyPoll
from monitor.kernel.timer import SHORT_NS
from monitor.kernel.troubles import TROUBLES


def test_what_an_earlier_handler_makes_due_runs_in_the_same_turn_and_what_a_later_one_does_in_the_next(
    loop: Loop,
) -> None:
    due: dict[str, int | None] = {"first": None, "second": 5, "third": None, "later": 6}
    ran: list[str] = []

    def timer(name: str, asks: str = "") -> Timer:
        def run(_: int) -> None:
            ran.append(name)
            due[name] = None
            if asks:
                due[asks] = 0

        return name, lambda: due[name], run

    loop.set_timers([timer("first"), timer("second", "third"), timer("third", "first"), timer("later")])
    loop.run_due(5)
    assert ran == ["second", "third"]
    assert loop.next_ns() == 0, "at once"
    loop.run_due(5)
    assert ran == ["second", "third", "first"]
    assert loop.next_ns() == 6
    loop.run_due(6)
    assert ran == ["second", "third", "first", "later"]
    assert loop.next_ns() is None


# the loop


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture
def loop() -> Loop:
    stats: Any = SimpleNamespace(add=lambda *_: None)
    TROUBLES.take()
    return Loop(Guard(stats), stats)


def raising(_: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def turn(loop: Loop, *handlers: Callable[[int], object]) -> None:
    """With timers that are due."""
    loop.set_timers([("", lambda: 0, handler) for handler in handlers])
    loop.turn()


def test_a_number_that_is_used_again_goes_to_whoever_registered_last(loop: Loop, pipe: tuple[int, int]) -> None:
    """Closing takes a descriptor out of the epoll without an event."""
    old: list[int] = []
    new: list[int] = []
    closed, write = os.pipe()
    loop.register(closed, old.append)
    os.close(write)
    again = os.dup2(pipe[0], closed)  # in one step: a thread of an earlier test may take a number that is free
    os.write(pipe[1], b"x")
    turn(loop, lambda _: None)
    assert (old, new) == ([], [])
    loop.register(again, new.append)
    turn(loop, lambda _: None)
    loop.unregister(again)
    turn(loop, lambda _: None)
    assert (old, new) == ([], [again])
    os.close(again)


def test_descriptors_come_before_what_is_due_and_a_handler_that_fails_costs_only_itself(
    loop: Loop, pipe: tuple[int, int]
) -> None:
    done: list[Any] = []

    def fails(fd: int) -> None:
        done.append(fd)
        raising(fd)

    loop.register(pipe[0], fails)
    os.write(pipe[1], b"x")
    turn(loop, raising, lambda _: done.append("due"))
    assert done == [pipe[0], "due"]
    (trouble,) = TROUBLES.take()
    assert (trouble.call, trouble.number, trouble.times) == ("loop", errno.EIO, 2)


def test_a_short_wait_is_ended_by_a_timer_and_not_before(loop: Loop) -> None:
    """A timeout of epoll is whole milliseconds, rounded up."""
    epoll = loop._epoll
    loop._epoll = SimpleNamespace(poll=lambda _: epoll.poll(60.0))  # only a descriptor wakes it
    for wait_ns in (250_000, SHORT_NS - 1_000_000):
        due = time.monotonic_ns() + wait_ns
        assert list(loop.wait(due)) == [], "no descriptor is reported for the timer"
        assert time.monotonic_ns() >= due


def test_descriptors_end_a_wait(loop: Loop, pipe: tuple[int, int]) -> None:
    loop.register(pipe[0], raising)
    os.write(pipe[1], b"x")
    assert list(loop.wait(time.monotonic_ns() + 60 * 10**9)) == [pipe[0]]
    assert list(loop.wait(time.monotonic_ns() + SHORT_NS // 2)) == [pipe[0]]
    os.read(pipe[0], 1)
    assert list(loop.wait(0)) == [], "what is overdue is not waited for"


class Watched:
    """What a busy poll looks at: a pod that moves by a step whenever the ring is read."""

    def __init__(self, *, looks: bool) -> None:
        self.arming = SimpleNamespace(looks=looks, next_look_ns=0)
        self.watches = [SimpleNamespace(index=0, thresholds=("hard",), compared=False, formula=0)]
        self.table = SimpleNamespace(room=lambda _: NEAR_BYTES - 1)
        self.steps, self.is_calm, self.looked = 1, True, 0
        self.now_ns = 1_000_000_000
        self.busy_poll = BusyPoll(self, self, self.consume, self.look, lambda: self.now_ns)
        self.busy_poll._credit_ns = SAVED_NS

    def consume(self) -> None:
        self.now_ns += 100_000
        self.steps += 1

    def look(self, now_ns: int) -> None:
        """The second one finds a threshold met."""
        assert now_ns >= self.arming.next_look_ns
        self.looked += 1
        self.arming.next_look_ns = now_ns + 1_000_000
        self.is_calm = self.looked < 2


def test_a_look_that_is_due_does_not_wait_for_pods_to_rest() -> None:
    """Where every change is reported there is none, and the ring is read until the budget is spent."""
    looking, reading = Watched(looks=True), Watched(looks=False)
    looking.busy_poll.spin(0)
    assert looking.looked == 2, "it went on after the first, and ended with the second"
    reading.busy_poll.spin(0)
    assert (reading.looked, reading.steps - 1) == (0, SAVED_NS // 100_000)


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
