"""When a helper hangs: it has wound up no timer for long enough, and the hot process was awake meanwhile."""

import os
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from monitor.kernel.procfs import readable
from monitor.kernel.timer import Timer
from monitor.link import channel, heartbeat
from monitor.link.counters import SharedStats
from monitor.link.heartbeat import Heartbeat, HeartbeatWatch
from monitor.link.messages import LogLine
from tests import live


@pytest.fixture
def stats() -> Iterator[SharedStats]:
    made = SharedStats.create()
    yield made
    os.close(made.fd)


def test_only_one_that_does_not_turn_while_the_hot_process_waits_hangs(
    stats: SharedStats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "MISSED_NS", 1_000_000)
    with closing(Timer()) as timer:
        watch, side = HeartbeatWatch(stats, timer), Heartbeat(stats, timer)
        watch.begin()
        for turns in (True, False, True):
            assert watch.next_ns is None
            assert readable(timer.fileno(), live.TIMEOUT_S), "it runs out"
            before = time.monotonic_ns()
            watch.missed()
            assert not readable(timer.fileno(), 0)
            assert watch.next_ns >= before + heartbeat.MISSED_NS
            if turns:
                side.ping()
            assert watch.hangs() is not turns
            if not turns:
                watch.begin()  # of the next one


def test_what_nobody_reads_fills_a_channel_and_blocks_nobody() -> None:
    hot, side = channel.pair()
    with hot, side:
        # One that blocks ends by pytest's timeout.
        assert not all(channel.send(hot, LogLine("info", "x" * 1000)) for _ in range(100_000))
