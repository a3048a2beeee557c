"""What the kernel announces without BPF: timers, PSI, memory.events, usage thresholds; all on one raw epoll."""

import errno
import os
import platform
import re
import resource
import select
import sys
import time
from pathlib import Path

import pytest

from monitor.errors import CannotError
from monitor.kernel import cgroupfs
from monitor.kernel.alarms import EventsFile, PsiTrigger, Timer, UsageThreshold
from tests import live
from tests.commands import run

pytestmark = pytest.mark.kernel
MIB = live.MIB
V1 = cgroupfs.detect().version == 1
PRESSURE = Path("/proc/pressure/memory")

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


@pytest.mark.skipif(not V1, reason="usage thresholds are of cgroup v1")
def test_a_usage_threshold_is_announced_and_can_be_moved(epoll: select.epoll) -> None:
    with live.cgroup("threshold") as path, live.Puppet(path) as puppet:
        alarm = UsageThreshold(path)
        epoll.register(alarm.fileno(), alarm.events)
        alarm.aim(64 * MIB)
        live.until(lambda: alarm.armed == 64 * MIB, "registered")
        assert epoll.poll(live.TIMEOUT_S), "it is to be looked at once it is registered"
        assert not alarm.acknowledge(), "nothing has passed it"
        puppet.do("anon(32)")
        assert epoll.poll(0.05) == [], "32 MiB are not 64"
        alarm.aim(40 * MIB)
        live.until(lambda: alarm.armed == 40 * MIB, "moved")
        live.until(lambda: epoll.poll(0) and alarm.acknowledge() is False, "the alarm")
        live.until(lambda: not epoll.poll(0), "quiet")
        puppet.do("anon(16)")
        assert epoll.poll(live.TIMEOUT_S), "48 MiB are more than 40"
        assert alarm.acknowledge(), "the kernel reports it"
        assert epoll.poll(0.05) == []
        epoll.unregister(alarm.fileno())
        alarm.close()
        live.until(lambda: not alarm._thread.is_alive(), "the thread's end")


@pytest.mark.skipif(not V1, reason="usage thresholds are of cgroup v1")
def test_a_usage_threshold_leaves_no_descriptors() -> None:
    with live.cgroup("threshold-fds") as path:
        before = live.open_descriptors()
        for _ in range(3):
            alarm = UsageThreshold(path)
            for mib in (10, 20, 30):
                alarm.aim(mib * MIB)
            live.until(lambda alarm=alarm: alarm.armed == 30 * MIB, "the last one")
            alarm.close()
            live.until(lambda alarm=alarm: not alarm._thread.is_alive(), "the thread's end")
        assert live.open_descriptors() == before


@pytest.mark.skipif(not V1, reason="usage thresholds are of cgroup v1")
def test_a_usage_threshold_without_a_descriptor_stands_where_it_was() -> None:
    live.emulated()  # which reads files, and is remembered
    with live.cgroup("threshold-limit") as path:
        alarm = UsageThreshold(path)
        alarm.aim(32 * MIB)
        live.until(lambda: alarm.armed == 32 * MIB, "registered")
        free = os.dup(0)
        os.close(free)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        try:
            alarm.aim(64 * MIB)
            live.until(lambda: alarm.problem or not alarm._thread.is_alive(), "the problem")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert (alarm.problem, alarm.armed) == (os.strerror(errno.EMFILE), 32 * MIB)
        alarm.aim(48 * MIB)
        live.until(lambda: alarm.armed == 48 * MIB, "moved when there is one")
        assert alarm.problem == ""
        alarm.close()
        live.until(lambda: not alarm._thread.is_alive(), "the thread's end")


WINDOW = f"""
from pathlib import Path
from monitor.kernel.alarms import PsiTrigger
print(PsiTrigger(Path({str(PRESSURE)!r})).window_us)
"""


@pytest.mark.parametrize("dropped", [True, False], ids=["without CAP_SYS_RESOURCE", "as we are"])
def test_a_psi_trigger_takes_the_shortest_window_that_is_allowed(dropped: bool) -> None:
    if not PRESSURE.exists():
        pytest.skip(f"this kernel has no {PRESSURE}")
    status = Path("/proc/self/status").read_text()
    capable = int(status.partition("CapEff:")[2].split()[0], 16) >> 24 & 1 and not dropped  # CAP_SYS_RESOURCE is bit 24
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    running = (int(release[1]), int(release[2]))
    quickest = 50_000 if running >= (6, 5) else 500_000
    wrapper = ("setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource") if dropped else ()
    done = run(*wrapper, sys.executable, "-c", WINDOW, env=live.environment())
    assert (done.stdout, done.stderr) == (f"{quickest if capable or running < (6, 1) else 2_000_000}\n", "")


def test_a_psi_trigger_that_cannot_be_had_is_an_error() -> None:
    with pytest.raises(CannotError, match="no PSI trigger on /proc/pressure/none"):
        PsiTrigger(Path("/proc/pressure/none"))


def test_stall_is_announced_by_psi_once(epoll: select.epoll, tmp_path: Path) -> None:
    """In a cgroup of its own on v2, else in the machine (which has stalls of others too)."""
    cache = str(tmp_path / "cache")
    with live.cgroup("stall", 48 * MIB) as path:
        file = PRESSURE if V1 else path / "memory.pressure"
        if not file.exists():
            pytest.skip(f"this kernel has no {file}")
        trigger = PsiTrigger(file)
        epoll.register(trigger.fileno(), trigger.events)
        if not V1:
            assert epoll.poll(0.1) == [], "nobody is in it"
        with live.Puppet(path) as puppet:
            puppet.do(f"write({cache!r}, 64)")
            # It does not fit, so every page read takes the place of one that is read again: direct reclaim, refaults.
            seen = live.until(lambda: puppet.do(f"read({cache!r})") or epoll.poll(0), "pressure")
            assert seen == [(trigger.fileno(), select.EPOLLPRI)], "readable it always is: that is no news"
        if not V1:
            trigger.acknowledge()
            live.until(lambda: not epoll.poll(0), "quiet when nobody stalls")
        trigger.close()


@pytest.mark.skipif(V1, reason="memory.events of a cgroup is of v2")
def test_a_cgroup_at_its_limit_is_announced_by_memory_events(epoll: select.epoll) -> None:
    with live.cgroup("events", 48 * MIB) as path:
        events = EventsFile(path)
        epoll.register(events.fileno(), events.events)
        assert epoll.poll(0.1) == []
        with live.Puppet(path) as puppet:
            puppet.tell("anon(96)")
            assert puppet.answer() == "", "killed"
        assert [fd for fd, _ in epoll.poll(live.TIMEOUT_S)] == [events.fileno()]
        events.acknowledge()
        live.until(lambda: not epoll.poll(0), "quiet after it was read")
        events.close()
