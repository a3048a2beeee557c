"""Pods with more processes than descriptors are kept for, that fork while they are killed, in cgroups of any depth."""

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path

import pytest

from monitor.actions.evict import LOOK_NS, Eviction
from monitor.actions.victim import _AT_ONCE, Victim
from monitor.kernel import cgroupfs
from monitor.kernel.cgroup_procs import pids_below
from tests import live
from tests.actions.killing import descriptors, finish, prepared
from tests.actions.killing import pod as pod
from tests.filesystems import nested

pytestmark = pytest.mark.kernel
Crowd = Callable[[int], Victim]
#: As on cgroup v1 and before Linux 5.14 everywhere: without cgroup.kill.
BY_PIDFDS = 1
CROWD = "for _ in range({}):\n  if not os.fork():\n    signal.pause()"
#: 20 chains of processes, each of which forks the next and ends: a listed process is gone when it is to be signalled.
HOPS = """
made = mmap.mmap(-1, 8)
def hop():
    while made[0] == 0:
        if os.fork(): os._exit(0)
for _ in range(20):
    if not os.fork(): hop(); os._exit(0)
"""


@pytest.fixture
def crowd(pod: Path) -> Iterator[Crowd]:
    """Of so many processes that sleep, and of the one that made them: a pod made ready to be killed by pidfds."""
    with live.Puppet(pod / "c0") as parent:

        def made(number: int) -> Victim:
            parent.do(f"exec({CROWD.format(number)!r})")
            live.until(lambda: len(pids_below(pod)) > number, f"{number} processes")
            return prepared(pod, BY_PIDFDS)

        yield made


@pytest.mark.once
def test_a_pod_of_5000_processes_dies_to_the_last(pod: Path, crowd: Crowd) -> None:
    finish(Eviction.begun(crowd(5000), 0, 0))
    assert pids_below(pod) == set()


def test_processes_that_are_never_there_any_more_when_they_are_signalled(pod: Path) -> None:
    """They hop from pid to pid; the parent is not killed, so that it cannot be what ends them."""
    with live.Puppet(pod.parent) as parent:
        parent.do(f"open('{pod}/c1/cgroup.procs', 'w').write('0'); exec({HOPS!r})")
        (pod.parent / "cgroup.procs").write_text(str(parent.pid))
        live.until(lambda: len(pids_below(pod)) > 5, "some of them")
        eviction = Eviction.begun(prepared(pod, BY_PIDFDS), 0, 0)
        deadline = time.monotonic() + live.TIMEOUT_S
        while not eviction.step(0):
            assert time.monotonic() < deadline
            eviction.looked(time.monotonic_ns(), 0)
            time.sleep(max(0, eviction.deadline_ns() - time.monotonic_ns()) / 1e9)
        eviction.victim.close()
        assert pids_below(pod) == set()
        parent.do("made[0] = 1")


def test_nobody_survives_because_there_are_more_than_descriptors(
    pod: Path, crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killer that rests is outrun by a pod that forks; and an empty pod gets its rest."""
    monkeypatch.setattr("monitor.actions.victim.MAX_PIDFDS", 8)
    victim = crowd(50)
    assert len(victim.pidfds) <= 8
    eviction = Eviction.begun(victim, 0, 0)
    assert eviction.deadline_ns() <= eviction.signalled_ns
    finish(eviction)
    assert (pids_below(pod), len(eviction.pids)) == (set(), 51)
    victim.refresh()
    # Looking takes at most a fifth of the time: it runs ahead of all others, and the victim may wait for this CPU.
    for took_ns, rest_ns in ((0, LOOK_NS), (100_000, LOOK_NS), (5_000_000, 20_000_000), (10**9, 4 * 10**9)):
        eviction.looked(7, took_ns)
        assert eviction.deadline_ns() == 7 + rest_ns


def test_the_rings_are_read_between_thousands_of_signals(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that jumps stands for signals that take long."""
    monkeypatch.setattr("monitor.actions.victim._SEND_NS", 0)
    victim = crowd(2 * _AT_ONCE)
    victim.kill()
    assert len(victim._signalled) == _AT_ONCE
    assert victim.unfinished
    finish(Eviction.begun(victim, 0, 0))


def test_descriptors_are_opened_for_so_many_at_a_time(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hot thread does nothing else meanwhile; the next look goes on."""
    monkeypatch.setattr("monitor.actions.victim._OPEN", 8)
    victim = crowd(20)
    assert (len(victim.pidfds), victim.is_partial) == (8, True)
    while victim.is_partial:
        before = len(victim.pidfds)
        victim.refresh()
        assert len(victim.pidfds) <= before + 8
    assert len(victim.pidfds) == 21
    finish(Eviction.begun(victim, 0, 0))


def test_a_pod_of_ordinary_size_is_looked_at_as_a_whole_however_slow_that_is(
    pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an emulated CPU 5 ms went by with the pod's own cgroup, which has no process: its victim held no descriptor,
    so that no early SIGKILL could be sent.
    """
    monkeypatch.setattr("monitor.actions.victim._PART_NS", -1)  # a clock that jumps stands for a slow machine
    with live.Puppet(pod / "c0") as one, live.Puppet(pod / "c1") as other:
        victim = prepared(pod, BY_PIDFDS)
        assert set(victim.pidfds) == {one.pid, other.pid}
        assert (victim.is_blind, victim.is_partial, victim.unfinished) == (False, False, False)
        victim.close()


def test_a_pod_of_thousands_of_cgroups_is_looked_at_in_parts(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """17,000 cgroups take half a second, in which no crossing would be answered; what was found is killed meanwhile."""
    held = descriptors(pod)
    for i in range(60):
        cgroupfs.make(pod / f"c1/n{i}")
    monkeypatch.setattr("monitor.actions.victim._PART_NS", -1)
    monkeypatch.setattr("monitor.actions.victim._PART_CGROUPS", 1)
    with live.Puppet(pod / "c1/n7") as one, live.Puppet(pod / "c1/n55") as other, live.Puppet(pod / "c0") as third:
        victim = prepared(pod, BY_PIDFDS)
        assert victim.is_partial
        looks = 1
        while victim.is_partial:
            victim.refresh()
            looks += 1
        assert looks > 60
        assert set(victim.pidfds) == {one.pid, other.pid, third.pid}
        with live.Puppet(pod / "c1/n20") as late:
            eviction = Eviction.begun(victim, 0, 0)
            while not eviction.step(0):
                eviction.looked(7, 10**9)
                assert eviction.deadline_ns() in (7, 7 + 4 * 10**9), "no rest before it was looked at as a whole"
            assert {process.wait() for process in (one, other, third, late)} == {-9}
        victim.refresh()
        if not victim.is_partial:
            victim.refresh()  # that was the last part of the look before
        assert victim.is_partial
        victim.close()
    assert descriptors(pod) == held


@contextmanager
def few_descriptors(spare: int) -> Iterator[None]:
    """About ``spare`` descriptors on top of those that are open now: of other tests some with high numbers may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = {int(fd) for fd in os.listdir("/proc/self/fd")}
    most = next(islice((number for number in count() if number not in opened), spare, None))
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_that_may_not_open_so_many_descriptors_kills_all_the_same(pod: Path, crowd: Crowd) -> None:
    """RLIMIT_NOFILE (EMFILE): those held die, then the rest; and something is left to read cgroups with."""
    crowd(200).close()
    victim = Victim("uid", pod, BY_PIDFDS)
    with few_descriptors(60):
        victim.refresh()
        assert 0 < len(victim.pidfds) < 60
        os.close(os.open("/dev/null", os.O_RDONLY))
        eviction = Eviction.begun(victim, 0, 0)
        finish(eviction)
    assert pids_below(pod) == set()


def test_processes_in_cgroups_deeper_than_a_path_is_long(pod: Path) -> None:
    """Their paths are refused (ENAMETOOLONG); any user that may make cgroups can make such paths."""
    with nested(pod) as innermost, live.Puppet(pod / "c0") as buried, live.Puppet(pod / "c1") as other:
        procs = os.open("cgroup.procs", os.O_WRONLY, dir_fd=innermost)
        os.write(procs, str(buried.pid).encode())
        os.close(procs)
        held = descriptors(pod)
        assert pids_below(pod) == {buried.pid, other.pid}
        assert descriptors(pod) == held
        finish(Eviction.begun(prepared(pod, BY_PIDFDS), 0, 0))
        assert buried.wait() == other.wait() == -9


def test_descriptors_that_were_given_up_are_not_taken_for_others(
    pod: Path, crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reuses a pid at once: the process that is waited for must be known by more than that."""
    from tests.daemon.test_evictor import Bench

    monkeypatch.setattr("monitor.actions.victim.MAX_PIDFDS", 8)
    crowd(40).close()
    bench = Bench(pod)
    eviction = bench.begin()
    deadline = time.monotonic() + live.TIMEOUT_S
    while time.monotonic() < deadline:
        bench.endings(0.01)
        eviction.next_look_ns = 0
        if bench.evictor.follow(1, 0):
            break
        assert bench.evictor._leaving <= set(eviction.pidfds())
    assert bench.evictor.current is None
    assert not bench.evictor.stuck
    assert pids_below(pod) == set()
