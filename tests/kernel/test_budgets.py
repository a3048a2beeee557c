"""What processes of a pod can make the programs write, and how long reading it may take: both have an end."""

import os
import select
import signal
import subprocess
import time
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.actions.procfeed import BpfFeed
from monitor.hot.evictor import EvictionNote
from monitor.kernel import cgroupfs
from monitor.kernel.domains import POD
from monitor.kernel.pins import Ring
from monitor.kernel.procfs import readable
from monitor.kernel.wire import EVICTION, PAGE
from tests import live

pytestmark = pytest.mark.kernel
MIB = live.MIB
#: bpf/oom.c, bpf/procs.c, bpf/pressure.c: what may come at once, and how many a second afterwards.
KILLS, KILLS_FROM_OUTSIDE, KILLS_PER_S = 256, 4096, 100
PROCESSES, PROCESSES_PER_S = 1000, 500
STEPS, STEPS_PER_S = 256, 5000

#: ``n`` children that are killed one after the other by their parent; a child of `os.fork` raises where none is to be
#: had, so no -1 is ever signalled.
_MURDERS = """
def murder(n):
    for _ in range(n):
        pid = os.fork()
        if not pid:
            signal.pause()
        os.kill(pid, 9)
        os.waitpid(pid, 0)
"""


def murders(puppet: live.Puppet, n: int) -> float:
    """Have a puppet murder ``n`` children; how many seconds that took, at least."""
    puppet.do(f"exec({_MURDERS!r})")
    return timed(puppet, f"murder({n})")


def timed(puppet: live.Puppet, statement: str) -> float:
    """How many seconds it took, at least."""
    puppet.do(f"began = time.monotonic(); {statement}; took = time.monotonic() - began")
    puppet.tell("print(took, flush=True)")
    took = float(puppet.answer())
    assert puppet.answer() == "done"
    return took


def test_signals_to_the_dead_are_no_records() -> None:
    """28,000 a second of them held the hot process in one read of the ring for ever."""
    with live.Watching(attach=False) as watch, live.cgroup("zombie") as pod, live.Puppet(pod) as puppet:
        watch.add(pod, flags=POD)
        puppet.do("child = os.fork() or os._exit(0)")
        puppet.do("os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)")
        puppet.do("for _ in range(2000): os.kill(child, 9)")
        assert watch.counted()["emitted_kill"] == 0
        # Neither are those to one that was killed already, and has not got a CPU to die on yet.
        puppet.do("child = os.fork() or signal.pause()")
        puppet.do("for _ in range(1000): os.kill(child, 9)")
        puppet.do("os.waitpid(child, 0)")
        number = cgroupfs.cgroup_id(pod)  # ends of those that the OOM killer takes elsewhere are counted too
        watch.oom(lambda e: e.kind == "exit" and e.victim_cgroup == number)
        ends = [e for e in watch.ooms if e.kind == "exit" and e.victim_cgroup == number]
        assert (watch.counted()["emitted_kill"], len(ends)) == (1, 1)


@pytest.mark.newest
def test_a_pod_may_have_so_many_kills_reported() -> None:
    """What another pod does, and what the kernel kills, is not on that account."""
    with live.Watching(attach=False) as watch, live.cgroup("murders") as node:
        storm, other = cgroupfs.make(node / "storm"), cgroupfs.make(node / "other")
        for path in (storm, other):
            watch.add(path, flags=POD)
        cgroupfs.set_limit(storm, 48 * MIB)
        with live.Puppet(storm) as puppet, live.Puppet(storm) as victim, live.Puppet(other) as bystander:
            took = murders(puppet, 600)
            murders(bystander, 3)
            victim.tell("anon(96)")
            victim.wait()
            watch.oom(lambda e: e.kind == "exit" and e.victim_pid == victim.pid)
            records = [e for e in watch.ooms if e.victim_pid == victim.pid]
            assert sorted(e.kind for e in records) == ["exit", "kill", "mark"]
            assert next(e for e in records if e.kind == "mark").exiting is False
        watch.consume()
        reported = [event for event in watch.ooms if event.kind == "kill" and event.victim_pid != victim.pid]
        ids = {path: cgroupfs.cgroup_id(path) for path in (storm, other)}
        ours = [event for event in reported if event.victim_cgroup == ids[storm]]
        assert len(ours) <= KILLS + 2 + KILLS_PER_S * (took + 1)
        assert watch.table.over(ids[storm])["kills"] == 600 + 1 - len(ours)  # the puppet is killed at its end
        # With each record of a kill comes one of the end, and with none none.
        both = [e for e in watch.ooms if e.victim_cgroup in ids.values()]
        killed, ended = (sorted(e.victim_pid for e in both if e.kind == kind) for kind in ("kill", "exit"))
        assert killed == ended
        assert len([event for event in reported if event.victim_cgroup == ids[other]]) == 3 + 1  # and the puppet itself
        assert watch.table.over(ids[other])["kills"] == 0


#: A pid namespace with ``n`` children of its init, which ends: the kernel kills them.
_ZAP = """
import ctypes
def zap(n):
    pid = os.fork()
    if not pid:
        if ctypes.CDLL(None).unshare(0x20000000):
            os._exit(1)
        init = os.fork()
        if not init:
            for _ in range(n):
                if not os.fork():
                    signal.pause()
            os._exit(0)
        os.waitpid(init, 0)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.mark.once  # 5,000 forks, likewise
def test_the_ends_of_pid_namespaces_are_within_a_budget_and_hide_no_oom_kill() -> None:
    """The kernel kills for a pod whose init ends, with the signal of the OOM killer: 3,651 records in some seconds."""
    with live.Watching(attach=False) as watch, live.cgroup("zap") as pod:
        watch.add(pod, flags=POD)
        number = cgroupfs.cgroup_id(pod)
        many, small = cgroupfs.make(pod / "many"), cgroupfs.make(pod / "small")
        cgroupfs.set_limit(small, 48 * MIB)
        with live.Puppet(many) as puppet, live.Puppet(small) as victim:
            puppet.do(f"exec({_ZAP!r})")
            began = time.monotonic()
            for _ in range(40):
                puppet.do("zap(400)")
                watch.consume()  # the ring holds 1,400
                if watch.table.over(number)["kills"] > 400:
                    break
            took = time.monotonic() - began
            ours = cgroupfs.cgroup_id(many)
            reported = len([e for e in watch.ooms if e.kind == "kill" and e.victim_cgroup == ours])
            assert watch.table.over(number)["kills"] > 400
            assert reported <= KILLS_FROM_OUTSIDE + 2 + KILLS_PER_S * (took + 1)
            # With each record of a kill comes one of the end, and with none none.
            assert len([e for e in watch.ooms if e.kind == "exit" and e.victim_cgroup == ours]) <= reported
            victim.tell("anon(96)")
            victim.wait()
            watch.oom(lambda e: e.kind == "exit" and e.victim_pid == victim.pid)
            mark = next(e for e in watch.ooms if e.kind == "mark" and e.victim_pid == victim.pid)
        assert mark.exiting is False


def test_the_ends_of_pid_namespaces_in_no_watched_cgroup_are_no_records() -> None:
    """Any user has the kernel send 1,500 such signals a second, and the ring lost the records of pods."""
    with live.Watching(attach=False) as watch, live.cgroup("pod") as pod, live.cgroup("elsewhere") as outside:
        watch.add(pod, flags=POD)
        ours = {cgroupfs.cgroup_id(path) for path in (pod, outside)}  # OOM kills elsewhere are reported
        with live.Puppet(outside) as puppet, live.Puppet(pod) as last:
            puppet.do(f"exec({_ZAP!r})")
            puppet.do("zap(50)")
            last.process.kill()
            last.wait()
            watch.oom(lambda e: e.kind == "exit" and e.victim_pid == last.pid)
        assert {event.victim_pid for event in watch.ooms if event.victim_cgroup in ours} == {last.pid}


@pytest.mark.once  # 3,000 forks take minutes on an emulated CPU, where no pod forks faster than its budget
def test_a_pod_may_have_so_many_new_processes_reported() -> None:
    seen: list[int] = []  # cgroups
    scores: Any = SimpleNamespace(on_process=lambda _, cgroup: seen.append(cgroup))
    with live.Watching(attach=False) as watch, live.cgroup("forks") as node:
        storm, other = cgroupfs.make(node / "storm"), cgroupfs.make(node / "other")
        for path in (storm, other):
            watch.add(path, flags=POD)
        ids = {path: cgroupfs.cgroup_id(path) for path in (storm, other)}
        with (
            live.Puppet(storm) as puppet,
            live.Puppet(other) as bystander,
            closing(BpfFeed(watch.pins, scores)) as feed,
        ):
            took = murders(puppet, 3000)
            murders(bystander, 2)
            while readable(feed, 0):
                feed.consume()
        reported = seen.count(ids[storm])
        assert reported <= PROCESSES + 2 + PROCESSES_PER_S * (took + 1)
        assert watch.table.over(ids[storm])["processes"] == 3000 - reported
        assert seen.count(ids[other]) == 2


def test_a_pod_may_have_so_many_steps_reported() -> None:
    with live.cgroup("steps") as pod, live.Watching() as watch, live.Puppet(pod) as puppet:
        index = watch.add(pod, step=PAGE)
        watch.sweeper.run()
        took = timed(puppet, "[(anon(16), kept.pop()) for _ in range(12)]")
        watch.consume()
        steps = [event for event in watch.events if event.domain == index]
        over = watch.table.over(cgroupfs.cgroup_id(pod))["steps"]
        assert len(steps) <= STEPS + 2 + STEPS_PER_S * (took + 1)
        assert len(steps) + over > STEPS


def test_a_read_ends_with_its_budget() -> None:
    """And what is left is found again."""
    seen: list[bytes] = []
    with live.cgroup("budget") as pod, live.Watching() as watch, live.Puppet(pod) as puppet:
        watch.add(pod, step=MIB)
        watch.sweeper.run()
        watch.consume()
        ring = Ring(watch.pins, "steps", seen.append)
        poll = select.epoll()
        poll.register(ring, select.EPOLLIN)
        try:
            puppet.do("anon(16)")
            assert poll.poll(live.TIMEOUT_S)
            assert (ring.consume(3), ring.more, len(seen)) == (3, True, 3)
            assert poll.poll(0)  # nothing was written since
            assert (ring.consume(2), ring.more, len(seen)) == (2, True, 5)
            rest = ring.consume()
            assert 10 <= rest <= 12, "one for each MiB"
            assert (ring.more, len(seen)) == (False, 5 + rest)
            assert not poll.poll(0)
            assert len(set(seen)) == len(seen)  # none twice
            puppet.do("anon(2)")
            assert poll.poll(live.TIMEOUT_S)  # and the next one is reported
        finally:
            ring.close()
            poll.close()


#: A child that has 2 MiB of page tables, and ends.
_TABLES = (
    "block = mmap.mmap(-1, 1 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000); "
    "block.madvise(mmap.MADV_NOHUGEPAGE); "
    "[block.__setitem__(at, 1) for at in range(0, 1 << 30, 2 << 20)]; os._exit(0)"
)


@pytest.mark.once  # nor kills
def test_kills_do_not_use_up_the_budget_of_memory_that_comes_back() -> None:
    """A pod that spent its budget of kills, and then left page tables, would have another one die for them."""
    if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 17):
        pytest.skip("before Linux 6.17 the end of a process is traced when its memory was freed already")
    n = 5
    with (
        live.Watching(attach=False) as watch,
        live.cgroup("tables") as pod,
        live.Puppet(pod) as killer,
        live.Puppet(pod) as puppet,
    ):
        watch.add(pod, flags=POD)
        murders(killer, 400)
        killer.tell("murder(1000000)")  # it goes on and on
        for _ in range(n):
            puppet.do(f"child = os.fork() or exec({_TABLES!r})")
            puppet.do("os.waitpid(child, 0)")
        watch.consume()
        left = [event for event in watch.ooms if event.kind == "left" and event.pgtables >= 2 * MIB]
        assert len(left) == n
        over = watch.table.over(cgroupfs.cgroup_id(pod))
        assert over["kills"] > 0
        assert over["exits"] == 0


def test_who_is_not_woken_up_for_his_own_signals_hears_of_what_comes_after_them() -> None:
    """A ring wakes no reader up while it holds something unread: one own SIGKILL hid all later ones."""
    with live.Watching(attach=False) as watch, live.cgroup("ours") as pod, live.cgroup("theirs") as other:
        for path in (pod, other):
            watch.add(path, flags=POD)
        EvictionNote(
            memoryview(watch.pins.mmap("evictions", EVICTION.size)).cast("Q")
        )  # it is this process that evicts
        ring = watch.rings["kills"]
        with (
            live.Puppet(pod) as first,
            live.Puppet(pod) as second,
            live.Puppet(other) as third,
            select.epoll() as epoll,
        ):
            epoll.register(ring.fileno(), select.EPOLLIN)
            os.kill(first.pid, signal.SIGKILL)
            os.kill(second.pid, signal.SIGKILL)
            assert epoll.poll(live.TIMEOUT_S), "not woken up for the end of those it killed"
            for puppet in (first, second):
                puppet.process.wait()
            while ring.consume():
                pass
            subprocess.run(["kill", "-KILL", str(third.pid)], check=True)
            assert epoll.poll(live.TIMEOUT_S), "not woken up for a SIGKILL by another process"
            third.process.wait()

            def ended() -> set[int]:
                ring.consume()
                return {e.victim_pid for e in watch.ooms if e.kind == "exit"}

            # A consume ends before a record that another CPU is still writing.
            ours = [first.pid, second.pid, third.pid]  # OOM kills elsewhere are reported
            live.until(lambda: ended() >= set(ours), "a record of the end of each")
        assert [e.victim_pid for e in watch.ooms if e.kind == "kill" and e.victim_pid in ours] == ours
