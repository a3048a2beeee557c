"""A timer on a raw epoll."""

import select
import time

import pytest

from monitor.kernel.timer import Timer
from tests import live

pytestmark = pytest.mark.kernel

epoll = live.fixture(select.epoll)


def test_a_timer_is_ready_once_after_its_time(epoll: select.epoll) -> None:
    timer = Timer()
    epoll.register(timer.fileno(), timer.events)
    assert epoll.poll(0.01) == []
    start = time.monotonic_ns()
    timer.set(3_000_000)
    assert epoll.poll(live.TIMEOUT_S) == [(timer.fileno(), select.EPOLLIN)]
    assert time.monotonic_ns() - start >= 3_000_000
    timer.acknowledge()
    assert epoll.poll(0.01) == []
    timer.set(0)  # at once, not never
    assert epoll.poll(live.TIMEOUT_S)
    timer.close()
