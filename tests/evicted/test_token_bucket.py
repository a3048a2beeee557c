"""How many deletes a second."""

from __future__ import annotations

import pytest

from monitor.evicted.token_bucket import TokenBucket
from tests.kube.clock import WaitedClock


def test_no_more_than_the_rate() -> None:
    clock = WaitedClock()
    bucket = TokenBucket(10.0, clock=clock)
    waits = []
    for _ in range(30):
        waits.append(bucket.take())
        clock.wait(waits[-1])
    assert waits[:10] == [0.0] * 10
    assert clock.now == pytest.approx(2.0)
    clock.wait(100.0)  # what was not used is not saved up beyond the burst
    for _ in range(20):
        clock.wait(bucket.take())
    assert clock.now == pytest.approx(103.0)


def test_slow_rates_do_not_wait_for_ever() -> None:
    clock = WaitedClock()
    bucket = TokenBucket(0.5, clock=clock)
    assert (bucket.take(), bucket.take()) == (0.0, 2.0)
