"""The processes of a cgroup: which want a CPU; and on cgroup v2 without looking up a path again."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.actions.victim import Victim
from monitor.kernel import cgroup_procs
from monitor.kernel.cgroup_procs import KeptProcesses
from monitor.kernel.procfs import wants_cpu
from tests import live
from tests.actions.killing import descriptors
from tests.filesystems import Mounts
from tests.puppet import Puppet

pytestmark = pytest.mark.kernel


@pytest.fixture
def pod(mounts: Mounts) -> Iterator[Path]:
    root = mounts.cgroup2("unified") / f"outrace-test-{os.getpid()}"
    for path in (root, root / "a", root / "b"):
        path.mkdir()
    yield root
    for directory, _, _ in os.walk(root, topdown=False):
        os.rmdir(directory)


@pytest.fixture
def kept(pod: Path) -> Iterator[KeptProcesses]:
    made = KeptProcesses(pod, 2)
    yield made
    made.close()


def found(kept: KeptProcesses) -> dict[str, set[int]]:
    return {Path(directory).name: pids for directory, pids in kept.walk() if pids}


def no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a lookup of a path fails, as it would wait for the lock of all directories."""

    def waits(*_: object, **__: object) -> None:
        raise AssertionError("a path was looked up")

    for name in ("open", "scandir", "stat", "listdir"):
        monkeypatch.setattr(os, name, waits)
    monkeypatch.setattr(cgroup_procs, "open", waits, raising=False)


def test_the_second_look_needs_no_path(pod: Path, kept: KeptProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    with Puppet(pod / "a") as first, Puppet(pod / "b") as second:
        assert found(kept) == {"a": {first.pid}, "b": {second.pid}}
        with Puppet(pod / "b") as third, monkeypatch.context() as patch:
            no_path(patch)
            assert found(kept) == {"a": {first.pid}, "b": {second.pid, third.pid}}
            assert kept.pids_in(str(pod / "b")) == {second.pid, third.pid}
            assert kept.populated() is True
    with monkeypatch.context() as patch:
        no_path(patch)
        assert (found(kept), kept.populated()) == ({}, False)


def test_a_cgroup_that_came_is_seen(pod: Path, kept: KeptProcesses) -> None:
    assert found(kept) == {}
    (pod / "a" / "deeper").mkdir()
    with Puppet(pod / "a" / "deeper") as puppet:
        assert found(kept) == {"deeper": {puppet.pid}}
        assert found(kept) == {"deeper": {puppet.pid}}
    (pod / "b").rmdir()
    (pod / "c").mkdir()  # there are as many as before
    with Puppet(pod / "c") as puppet:
        assert found(kept) == {"c": {puppet.pid}}


def test_of_a_pod_that_is_gone_there_is_nobody_left(pod: Path, kept: KeptProcesses) -> None:
    assert found(kept) == {}
    for name in ("a", "b", "."):
        (pod / name).resolve().rmdir()
    assert (found(kept), kept.populated(), kept.pids_in(str(pod))) == ({}, False, set())
    pod.mkdir()  # a service that was started again is another one
    with Puppet(pod):
        assert kept.populated() is False


def test_of_a_pod_with_very_many_cgroups_no_descriptors_are_kept(pod: Path, kept: KeptProcesses) -> None:
    for number in range(cgroup_procs._KEPT):
        (pod / "a" / str(number)).mkdir()
    before = descriptors(pod)
    with Puppet(pod / "a" / "7") as puppet:
        for _ in range(2):
            assert found(kept) == {"7": {puppet.pid}}
    assert descriptors(pod) == before


def test_a_victim_is_looked_at_and_killed_without_a_path(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = descriptors(pod)
    with Puppet(pod / "a") as first:
        victim = Victim("uid", pod, 2)
        victim.refresh()
        with Puppet(pod / "b") as second:
            with monkeypatch.context() as patch:
                no_path(patch)
                victim.refresh()
                assert set(victim.pidfds) == {first.pid, second.pid}
                victim.kill()
            assert (first.wait(), second.wait()) == (-9, -9)
            victim.close()
    assert descriptors(pod) == before


GONE = 2**22 + 1


def test_who_runs_wants_a_cpu_and_who_sleeps_is_stopped_or_gone_does_not() -> None:
    with live.cgroup("procfs") as cgroup, live.Puppet(cgroup) as puppet:
        live.until(lambda: not wants_cpu([puppet.pid, GONE]), "it to wait for a line")
        puppet.do("import threading; go = threading.Event()")
        puppet.do("threading.Thread(target=lambda: go.wait() and [None for _ in iter(int, 1)], daemon=True).start()")
        live.until(lambda: not wants_cpu([puppet.pid]), "both threads to wait")
        puppet.do("go.set()")  # the main thread waits for its next line, the other is at work
        live.until(lambda: wants_cpu([GONE, puppet.pid]), "a thread to be at work")
        puppet.process.send_signal(signal.SIGSTOP)
        live.until(lambda: not wants_cpu([puppet.pid]), "it to stop")
        puppet.process.kill()
        puppet.wait()
        assert not wants_cpu([puppet.pid])


def test_no_more_threads_are_looked_at_than_asked_for() -> None:
    with live.cgroup("procfs") as cgroup, live.Puppet(cgroup) as busy, live.Puppet(cgroup) as idle:
        busy.tell("while True: pass")
        live.until(lambda: wants_cpu([busy.pid]) and not wants_cpu([idle.pid]), "one to be at work, the other not")
        assert wants_cpu([idle.pid, busy.pid])
        assert wants_cpu([idle.pid, busy.pid], most=2)
        assert not wants_cpu([idle.pid, busy.pid], most=1)
