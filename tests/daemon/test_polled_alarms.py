"""The usage threshold of v1 follows the page cache: aimed at the ceiling plus what is inactive, moved when that moves.

And PSI and memory.events of v2 ring.
"""

import errno
import os
import select
from pathlib import Path

import pytest

from monitor.kernel import bounds, cgroupfs
from monitor.kernel.alarms import EventsFile, PsiTrigger, UsageThreshold
from monitor.kernel.bounds import REAIM_BYTES
from monitor.kernel.rungs import EVENTFD, POLL, PSI
from monitor.kernel.wire import PAGE
from monitor.link.messages import LogLine
from monitor.policy.thresholds import parse_thresholds
from monitor.sources.alarms import Alarms
from monitor.sources.polled_entry import Entry
from monitor.sources.polled_table import PolledTable
from monitor.sources.watch import NODE_SIGNAL, Watch, make_watch
from tests import live

HIERARCHY = cgroupfs.detect()
MIB = live.MIB
CEILING = 48 * MIB
RATE = 1 << 30
pytestmark = pytest.mark.kernel
v1 = pytest.mark.skipif(HIERARCHY.version == 2, reason="usage thresholds are of cgroup v1")
v2 = pytest.mark.skipif(HIERARCHY.version == 1, reason="memory.pressure and memory.events are of cgroup v2")


class Aimed:
    """A watched cgroup with one ceiling, and its alarms in an epoll."""

    def __init__(self, path: Path, rung: str) -> None:
        self.logged: list[LogLine] = []
        self.table = PolledTable(HIERARCHY)
        thresholds = parse_thresholds({"memory.available": "16Mi"})
        self.watch: Watch = make_watch(self.table, "node", NODE_SIGNAL, path, 64 * MIB, thresholds, HIERARCHY.version)
        self.table.set_ceilings(self.watch.index, [CEILING // PAGE])
        self.entry: Entry = self.table.entry(self.watch.index)
        self.epoll = select.epoll()
        self.alarms = Alarms(rung, HIERARCHY.version, self.logged.append)
        self.alarms.open(self.epoll)
        self.alarms.watch([self.watch])

    def read(self) -> None:
        self.table.read_usage(self.entry)
        self.table.read_stat(self.entry)

    def aim(self) -> None:
        self.alarms.aim(self.watch, self.entry)
        if self.alarms._aims:
            live.until(lambda: self.alarms.are_aimed, "aimed")

    @property
    def threshold(self) -> int | None:
        return next(iter(self.alarms._aims.values())).armed

    def rings(self, timeout: float) -> bool:
        found = [fd for fd, _ in self.epoll.poll(timeout) if self.alarms.acknowledge(fd) is not None]
        return bool(found)

    def wait_ns(self, headroom: int) -> int:
        return self.alarms.wait_ns(self.watch, self.entry, headroom, RATE, 0)

    def close(self) -> None:
        self.alarms.watch([])
        self.table.reset()
        self.watch.close()
        self.epoll.close()


cgroup = live.fixture(live.cgroup, "aim")


@v1
def test_it_is_moved_as_page_cache_comes_and_goes(cgroup: Path, tmp_path: Path) -> None:
    aimed, cache = Aimed(cgroup, EVENTFD), str(tmp_path / "cache")
    with live.Puppet(cgroup) as puppet:
        aimed.read()
        aimed.aim()
        assert aimed.threshold == CEILING + aimed.entry.inactive
        puppet.do(f"write({cache!r}, 40)")
        live.until(lambda: aimed.read() or aimed.entry.inactive > 38 * MIB, "cache in memory.stat")
        aimed.aim()
        assert aimed.threshold == CEILING + aimed.entry.inactive > CEILING + 38 * MIB
        assert aimed.rings(0.1), "registered: to be looked at once"
        while aimed.rings(0.02):
            pass
        puppet.do("anon(20)")
        assert aimed.entry.usage > 20 * MIB
        assert not aimed.rings(0.05), "60 MiB of usage, 20 MiB of memory: no crossing"
        puppet.do(f"drop({cache!r})")
        live.until(lambda: aimed.read() or aimed.entry.inactive < MIB, "no cache in memory.stat")
        aimed.aim()
        assert aimed.threshold == CEILING + aimed.entry.inactive
        while aimed.rings(0.02):
            pass
        puppet.do("anon(32)")
        assert aimed.rings(live.TIMEOUT_S), "52 MiB of memory: across"
    aimed.close()
    assert aimed.logged == []


@v1
def test_nobody_looks_while_nothing_can_pass_unannounced(cgroup: Path) -> None:
    aimed = Aimed(cgroup, EVENTFD)
    aimed.entry.inactive = 0
    assert aimed.wait_ns(10 * MIB) == bounds.wait_ns(10 * MIB, RATE, 0), "not registered yet: look"
    aimed.aim()
    assert aimed.wait_ns(10 * MIB) == bounds.COARSEST_NS
    aimed.entry.inactive = REAIM_BYTES
    assert aimed.wait_ns(10 * MIB) == bounds.wait_ns(10 * MIB, RATE, 0) < bounds.COARSEST_NS, "cache could hide growth"
    aimed.close()


@v1
def test_above_every_ceiling_nothing_is_aimed_at(cgroup: Path) -> None:
    aimed = Aimed(cgroup, EVENTFD)
    aimed.entry.crossed = 1
    aimed.alarms.aim(aimed.watch, aimed.entry)
    assert aimed.threshold is None
    aimed.entry.crossed = 0
    aimed.aim()
    assert aimed.threshold == CEILING
    aimed.close()


@v1
@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EMFILE, "LimitNOFILE"),
        (errno.EACCES, "run as root"),
        (errno.ENODEV, "the cgroup was just removed"),
        (errno.ENOSPC, "--hooks poll"),
    ],
)
@pytest.mark.parametrize("call", ["open", "eventfd"])
def test_an_alarm_that_cannot_be_had_has_a_remedy(
    cgroup: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, remedy: str
) -> None:
    """When it is opened, and when it is moved: descriptors may run out at either."""

    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    aimed = None if call == "open" else Aimed(cgroup, EVENTFD)
    with monkeypatch.context() as patch:
        if aimed is None:
            patch.setattr(UsageThreshold, "__init__", fail)
            aimed = Aimed(cgroup, EVENTFD)
        else:
            patch.setattr("monitor.kernel.alarms.os.eventfd", fail)
            aimed.alarms.aim(aimed.watch, aimed.entry)
            (alarm,) = aimed.alarms._aims.values()
            live.until(lambda: alarm.problem, "the thread to fail")
            aimed.alarms.aim(aimed.watch, aimed.entry)
    (logged,) = aimed.logged
    assert logged.msg == "an alarm cannot be had: polling alone"
    assert os.strerror(number) in logged.fields["problem"]
    assert remedy in logged.fields["remedy"]
    if call == "eventfd":  # the thread lives on
        aimed.entry.inactive += MIB
        aimed.aim()
        assert aimed.threshold == CEILING + aimed.entry.inactive
    aimed.close()


@pytest.mark.parametrize("rung", [POLL, PSI])
def test_other_rungs_always_look(cgroup: Path, rung: str) -> None:
    aimed = Aimed(cgroup, rung)
    aimed.aim()
    assert not aimed.alarms.are_aimed
    assert aimed.wait_ns(10 * MIB) == bounds.wait_ns(10 * MIB, RATE, 0)
    # A cgroup of v1 has no memory.pressure: that is logged, and polling goes on.
    lacking = rung == PSI and HIERARCHY.version == 1
    assert [one.msg for one in aimed.logged] == (["an alarm cannot be had: polling alone"] * 2 if lacking else [])
    assert all(one.fields["remedy"] and one.fields["remedy"] not in one.fields["problem"] for one in aimed.logged)
    aimed.close()


@v2
def test_psi_and_memory_events_ring_and_are_silent_when_the_cgroup_is_gone(cgroup: Path, tmp_path: Path) -> None:
    cgroup, cache = cgroupfs.make(cgroup / "psi"), str(tmp_path / "cache")
    cgroupfs.set_limit(cgroup, 48 * MIB)
    aimed = Aimed(cgroup, PSI)
    rung: set[type] = set()

    def look() -> bool:
        for fd, _ in aimed.epoll.poll(0):
            rung.add(type(aimed.alarms._by_fd[fd]))
            assert aimed.alarms.acknowledge(fd) == 0, "that it is near, not that it was passed"
        return rung == {PsiTrigger, EventsFile}

    assert not aimed.rings(0.1), "nobody is in it"
    with live.Puppet(cgroup) as puppet:
        puppet.do(f"write({cache!r}, 64)")
        live.until(lambda: puppet.do(f"read({cache!r})") or look(), "both")
    live.until(lambda: not aimed.rings(0), "quiet when nobody stalls")
    cgroupfs.remove(cgroup)
    live.until(lambda: not aimed.rings(0.05), "silence: what is removed is ready for ever")
    aimed.close()
    assert aimed.logged == []
