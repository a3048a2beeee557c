"""Processes in the cgroup of an evicted pod by mistake: process 1, the monitor and its kin, the kernel's."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from monitor.actions.evict import Eviction
from monitor.actions.victim import SPARED
from monitor.kernel import cgroupfs
from monitor.kernel.cgroup_procs import pids_below
from monitor.kernel.procfs import Spared, is_kernel_thread
from tests import live
from tests.actions.killing import prepared
from tests.commands import run as run_command

pytestmark = pytest.mark.kernel
VERSION = cgroupfs.detect().version

#: Evicts the cgroup that it runs in itself, with its parent and a child of its own.
SUICIDE = """
import os, subprocess, sys, time
from pathlib import Path
from monitor.actions.evict import (Eviction)
from monitor.actions.victim import (Victim)
pod = Path(sys.argv[1])
child = subprocess.Popen(["sleep", "1000"])
victim = Victim("uid", pod, int(sys.argv[2]))
victim.refresh()
assert victim.spared >= {os.getpid(), os.getppid()}, (victim.spared, os.getpid(), os.getppid())
eviction = Eviction.begun(victim, 0, 0)
deadline = time.monotonic() + 60
while child.poll() is None and time.monotonic() < deadline:
    eviction.step(time.monotonic_ns())
print(child.returncode, flush=True)
"""

pod = live.fixture(live.cgroup, "spared")


def test_the_monitor_and_its_parent_survive_the_eviction_of_their_own_cgroup(pod: Path) -> None:
    """`cgroup.kill` took them all; by pidfd the parent's parent was among the victims."""
    run = f'echo $$ > {pod}/cgroup.procs; ("$@"; echo parent) ; echo grandparent'
    done = run_command(
        "sh", "-c", run, "sh", sys.executable, "-c", SUICIDE, str(pod), str(VERSION), env=live.environment()
    )
    assert done.stdout.split() == [str(-signal.SIGKILL), "parent", "grandparent"], done.stderr


def test_nobody_of_them_is_signalled(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test fakes that process 1 and this session are in the cgroup, and moves neither."""
    with live.Puppet(pod) as puppet, live.Puppet(pod) as side:
        SPARED.add(side.pid)
        listed = {1, os.getpid(), os.getppid(), side.pid, puppet.pid}
        monkeypatch.setattr("monitor.kernel.cgroup_procs.walk", lambda path: iter([(str(path), set(listed))]))
        with closing(prepared(pod, VERSION)) as victim:
            assert set(victim.pidfds) == {puppet.pid}
            assert victim.spared == listed - {puppet.pid}
            eviction = Eviction.begun(victim, 0, 0)
            assert puppet.wait() == -signal.SIGKILL
            for _ in range(20):
                assert not eviction.step(0)  # not empty, and it never signals what is left
        side.do("pass")


@contextmanager
def kernel_thread(pod: Path) -> Iterator[int]:
    """A thread of the kernel that may be moved, in the cgroup until the block ends."""
    procs = "cgroup.procs"
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or not is_kernel_thread(int(entry.name)):
            continue
        try:
            (pod / procs).write_text(entry.name)
        except OSError:
            continue  # bound to its CPU, or to its cgroup
        try:
            yield int(entry.name)
        finally:
            (cgroupfs.detect().root / procs).write_text(entry.name)
        return
    pytest.skip("no thread of the kernel may be moved into a cgroup here")


def test_a_thread_of_the_kernel_is_not_signalled(pod: Path) -> None:
    assert is_kernel_thread(2)
    assert not is_kernel_thread(1)
    assert not is_kernel_thread(os.getpid())
    with kernel_thread(pod) as thread, live.Puppet(pod) as puppet:
        assert pids_below(pod) == {thread, puppet.pid}
        with closing(prepared(pod, VERSION)) as victim:
            assert set(victim.pidfds) == {puppet.pid}


def test_a_number_that_is_used_again_spares_nobody() -> None:
    """A pod that forks until it has the pid of a helper that ended was never killed."""
    spared = Spared()
    with subprocess.Popen(["sleep", "1000"]) as process:
        spared.add(process.pid)
        assert process.pid in spared.pids()
        process.kill()
    assert spared.pids() == {1, os.getpid()}
    spared.add(process.pid)  # a pid without a process now
    assert spared.pids() == {1, os.getpid()}


def test_where_they_are_is_asked_before_all_of_a_pod_is_killed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cgroup.kill` of a pod of thousands, before the look at it came to them. (Their places on v2 are faked.)"""
    spared = Spared()
    assert not spared.within(Path("/sys/fs/cgroup/kubepods/poda"))
    monkeypatch.setattr("monitor.kernel.procfs.Process.memory_cgroup", lambda *_: Path("/kubepods/poda/c"))
    assert spared.within(Path("/sys/fs/cgroup/kubepods/poda"))
    assert spared.within(Path("/sys/fs/cgroup/kubepods/poda/c"))
    assert not spared.within(Path("/sys/fs/cgroup/kubepods/podb"))
