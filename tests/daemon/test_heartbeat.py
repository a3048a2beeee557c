"""When a helper hangs, and when it only has to wait: real processes in the states by which they differ."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from monitor.kernel.procfs import readable
from monitor.kernel.timer import Timer
from monitor.link import channel, heartbeat
from monitor.link.counters import SharedStats
from monitor.link.heartbeat import ENDING, STARTING, TURNING, Evidence, Heartbeat, HeartbeatWatch
from monitor.link.messages import LogLine
from tests import live

SLEEP = "import time, sys; print(1, flush=True); time.sleep(1000)"
SPIN = "print(1, flush=True)\nwhile True: pass"
#: Its main thread waits for the interpreter, which another thread does not give back: one call of C.
GIL = """
import re, threading
print(1, flush=True)
threading.Thread(target=lambda: re.match('(a+)+$', 'a' * 60 + 'b')).start()
"""
#: It turns, and works hard.
BUSY = "import time, sys; print(1, flush=True)\nwhile True: time.sleep(0.01); sum(range(10000))"


@pytest.fixture
def stats() -> Iterator[SharedStats]:
    made = SharedStats.create()
    yield made
    os.close(made.fd)


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", request.param], stdout=subprocess.PIPE, text=True
    ) as child:
        child.stdout.readline()
        yield child
        child.kill()


def watched(stats: SharedStats, pid: int, seconds: float) -> str:
    """What is reported of a process that gives no heartbeat; "" if nothing in that time."""
    with closing(Timer()) as timer:
        begun = HeartbeatWatch(stats, timer)
        begun.begin(time.monotonic_ns())
        Heartbeat(stats, timer).enter(TURNING)
        stats.set("side_start_cpu_ns", 0)  # what it noted is the CPU time of this whole session of tests
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            left = 60.0 if begun.next_ns is None else begun.next_ns / 1e9 - time.monotonic()
            readable(timer.fileno(), min(left, live.TIMEOUT_S))
            if why := begun.look(time.monotonic_ns(), pid):
                return why
        return ""


SPENT, STOPPED = "of CPU time in one turn", "is stopped"


@pytest.mark.parametrize(
    ("run", "expected"),
    [(SLEEP, "sleeps in state S"), (SPIN, SPENT), (GIL, SPENT), (SLEEP, STOPPED), (SPIN, STOPPED)],
    indirect=["run"],
)
def test_one_that_hangs_is_noticed(stats: SharedStats, run: subprocess.Popen[str], expected: str) -> None:
    if expected == STOPPED:
        run.send_signal(signal.SIGSTOP)
    assert expected in watched(stats, run.pid, live.TIMEOUT_S)


@pytest.mark.parametrize("run", [SPIN], indirect=True)
def test_one_that_gets_no_cpu_does_not_hang(stats: SharedStats, run: subprocess.Popen[str]) -> None:
    """It wants one, and others have it: for as long as it takes."""
    cpu = min(os.sched_getaffinity(run.pid))
    os.sched_setaffinity(run.pid, {cpu})
    os.sched_setscheduler(run.pid, os.SCHED_IDLE, os.sched_param(0))
    others = [subprocess.Popen([sys.executable, "-S", "-E", "-c", SPIN], stdout=subprocess.DEVNULL) for _ in range(3)]
    try:
        for other in others:
            os.sched_setaffinity(other.pid, {cpu})
        assert watched(stats, run.pid, 4.0) == ""
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.parametrize("run", [BUSY], indirect=True)
def test_one_that_turns_slowly_does_not_hang(stats: SharedStats, run: subprocess.Popen[str]) -> None:
    """Its beats come late, as on a machine that is out of memory; but it runs in between."""
    assert watched(stats, run.pid, 2.5) == ""


def test_one_that_winds_up_the_timer_is_not_looked_at(stats: SharedStats) -> None:
    with closing(Timer()) as timer:
        watch, side = HeartbeatWatch(stats, timer), Heartbeat(stats, timer)
        watch.begin(time.monotonic_ns())
        assert watch.next_ns is None
        assert readable(timer.fileno(), live.TIMEOUT_S), "it runs out"
        side.ping()
        assert watch.look(stats.get("side_heartbeat_ns"), -1) == ""
        assert watch.next_ns is None
        assert readable(timer.fileno(), live.TIMEOUT_S)


def looked(
    stats: SharedStats, monkeypatch: pytest.MonkeyPatch, stage: int, seen: Evidence, seconds: float, cpu: float = 0
) -> float | None:
    """Seconds without a heartbeat until it is reported as hung, by this evidence; its CPU time grows by ``cpu``."""
    start = 1_000_000_000
    timer = Timer()
    watch = HeartbeatWatch(stats, timer)
    watch.begin(start)
    stats.set("side_stage", stage)
    at = [start]

    def examine(_: int) -> Evidence:
        return seen._replace(
            cpu_ns=int((at[0] - start) * cpu), runs=seen.runs + (int(at[0]) if seen.state == "R" else 0)
        )

    monkeypatch.setattr(heartbeat, "examine", examine)
    with closing(timer):
        while at[0] < start + seconds * 1e9:
            at[0] = watch.next_ns if watch.next_ns is not None else at[0] + heartbeat.MISSED_NS
            if watch.look(at[0], 1):
                return (at[0] - start) / 1e9
        return None


def bound(ns: int) -> tuple[float, float]:
    """Reported then, or within 3 s: two looks."""
    return ns / 1e9, ns / 1e9 + 3


@pytest.mark.parametrize(
    ("stage", "seen", "cpu", "within"),
    [
        (TURNING, Evidence("T", 1, 0, None), 0, (0, 2)),
        (TURNING, Evidence("t", 1, 0, None), 0, (0, 2)),
        (TURNING, Evidence("S", 1, 0, True), 0, (0, 2)),
        (TURNING, Evidence("D", 1, 0, True), 0, (0, 2)),
        (STARTING, Evidence("T", 1, 0, None), 0, (0, 2)),
        (STARTING, Evidence("D", 1, 0, True), 0, (0, 2)),
        (TURNING, Evidence("R", 1, 0, None), 1, (0, 2)),  # an endless loop at the full speed of a CPU
        # Nothing is waited for without end, but for longer:
        (TURNING, Evidence("D", 1, 0, False), 0, bound(heartbeat.PAGING_NS)),  # it waits for a page of its own
        (TURNING, Evidence("R", 1, 0, None), 0.1, bound(10 * heartbeat.SPENT_NS)),  # a tenth of a CPU is all it gets
        (STARTING, Evidence("R", 1, 0, None), 1, bound(heartbeat.SPENT_AT_START_NS)),  # it imports
        (ENDING, Evidence("S", 1, 0, True), 0, bound(heartbeat.ENDING_NS)),  # it stores incidents
        (TURNING, Evidence("D", 1, 0, None), 0, None),  # nothing shows where: then a guess does not kill
        (TURNING, Evidence("R", 1, 0, None), 0, None),
        (TURNING, Evidence("", 0, 0, None), 0, None),  # gone: its pidfd shows it
    ],
)
def test_what_is_evidence(
    stats: SharedStats,
    monkeypatch: pytest.MonkeyPatch,
    stage: int,
    seen: Evidence,
    cpu: float,
    within: tuple[float, float] | None,
) -> None:
    found = looked(stats, monkeypatch, stage, seen, 100.0 if within else 2.0, cpu)
    assert found is None if within is None else within[0] <= (found or -1) <= within[1]


def test_a_slow_machine_has_more_cpu_time_in_a_turn(stats: SharedStats, monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper reports how much its start took."""
    stats.set("side_start_cpu_ns", 10_000_000_000)
    found = looked(stats, monkeypatch, TURNING, Evidence("R", 1, 0, None), 30.0, cpu=1)
    assert found >= 10.0


def test_one_that_was_away_itself_gathers_its_evidence_first(
    stats: SharedStats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hot process was stopped for a while, and the helper with it (a frozen virtual machine)."""
    timer = Timer()
    watch = HeartbeatWatch(stats, timer)
    watch.begin(0)
    stats.set("side_stage", TURNING)
    monkeypatch.setattr(heartbeat, "examine", lambda _: Evidence("S", 1, 0, True))
    with closing(timer):
        assert watch.look(60_000_000_000, 1) == ""
        stats.set("side_heartbeat_ns", 60_200_000_000)
        assert watch.look(60_250_000_000, 1) == ""


def test_what_nobody_reads_fills_a_channel_and_blocks_nobody() -> None:
    hot, side = channel.pair()
    with hot, side:
        # One that blocks ends by pytest's timeout.
        assert not all(channel.send(hot, LogLine("info", "x" * 1000)) for _ in range(100_000))
