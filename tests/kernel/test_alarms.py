"""What the kernel announces without BPF: timers, PSI, memory.events, usage thresholds; all on one raw epoll."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import live

from monitor.errors import CannotError
from monitor.kernel import cgroupfs
from monitor.kernel.alarms import EventsFile, PsiTrigger, Timer, UsageThreshold

pytestmark = pytest.mark.kernel
MIB = live.MIB
V1 = cgroupfs.detect().version == 1
PRESSURE = Path("/proc/pressure/memory")


@pytest.fixture
def epoll() -> Iterator[select.epoll]:
    with select.epoll() as made:
        yield made


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


@pytest.mark.skipif(not V1, reason="usage thresholds are of cgroup v1")
def test_a_usage_threshold_is_announced_and_can_be_moved(epoll: select.epoll) -> None:
    with live.cgroup("threshold") as path, live.Puppet(path) as puppet:
        alarm = UsageThreshold(path)
        epoll.register(alarm.fileno(), alarm.events)
        alarm.aim(64 * MIB)
        live.until(lambda: alarm.armed == 64 * MIB, "registered")
        assert epoll.poll(live.TIMEOUT_S), "it is to be looked at once it is registered"
        alarm.acknowledge()
        puppet.do("anon(32)")
        assert epoll.poll(0.05) == [], "32 MiB are not 64"
        alarm.aim(40 * MIB)
        live.until(lambda: alarm.armed == 40 * MIB, "moved")
        live.until(lambda: epoll.poll(0) and alarm.acknowledge() is None, "told of")
        live.until(lambda: not epoll.poll(0), "quiet")
        puppet.do("anon(16)")
        assert epoll.poll(live.TIMEOUT_S), "48 MiB are more than 40"
        alarm.acknowledge()
        assert epoll.poll(0.05) == []
        epoll.unregister(alarm.fileno())
        alarm.close()
        live.until(lambda: not alarm._thread.is_alive(), "the thread's end")


@pytest.mark.skipif(not V1, reason="usage thresholds are of cgroup v1")
def test_a_usage_threshold_leaves_no_descriptors() -> None:
    with live.cgroup("threshold-fds") as path:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            alarm = UsageThreshold(path)
            for mib in (10, 20, 30):
                alarm.aim(mib * MIB)
            live.until(lambda alarm=alarm: alarm.armed == 30 * MIB, "the last one")
            alarm.close()
            live.until(lambda alarm=alarm: not alarm._thread.is_alive(), "the thread's end")
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_psi_trigger_is_to_be_had_with_any_privileges() -> None:
    if not PRESSURE.exists():
        pytest.skip(f"this kernel has no {PRESSURE}")
    trigger = PsiTrigger(PRESSURE)
    assert trigger.window_us in (50_000, 500_000, 2_000_000)
    trigger.close()
    with pytest.raises(CannotError, match="no PSI trigger on /proc/pressure/none"):
        PsiTrigger(Path("/proc/pressure/none"))


@pytest.mark.skipif(V1, reason="memory.events and memory.pressure of a cgroup are of v2")
def test_a_cgroup_at_its_limit_is_announced_by_psi_and_memory_events(epoll: select.epoll) -> None:
    with live.cgroup("events", 48 * MIB) as path:
        events = EventsFile(path)
        epoll.register(events.fileno(), events.events)
        pressure = PsiTrigger(path / "memory.pressure")
        epoll.register(pressure.fileno(), pressure.events)
        assert epoll.poll(0.1) == []
        with live.Puppet(path) as puppet:
            puppet.tell("anon(96)")
            assert puppet.answer() == "", "killed"
        seen: set[int] = set()
        deadline = time.monotonic() + live.TIMEOUT_S
        while events.fileno() not in seen and time.monotonic() < deadline:
            seen |= {fd for fd, _ in epoll.poll(1.0)}
        assert events.fileno() in seen
        events.acknowledge()
        pressure.acknowledge()
        live.until(lambda: not [fd for fd, _ in epoll.poll(0) if fd == events.fileno()], "quiet after it was read")
        events.close()
        pressure.close()
