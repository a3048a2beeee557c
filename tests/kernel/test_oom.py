"""Real OOM kills in child cgroups: the victim, the killer, the limit; and the kills that only look like one."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from monitor.kernel import cgroupfs
from monitor.kernel.domains import POD
from monitor.kernel.wire import OomEvent
from tests import live
from tests.kernel.test_budgets import murders

pytestmark = pytest.mark.kernel
MIB = live.MIB
SI_USER, SI_KERNEL = 0, 128


def chain(watch: live.Watching, pid: int) -> list[OomEvent]:
    """mark, kill and exit of a victim in the order of their times, once the exit is there: they come on two rings."""
    watch.oom(lambda e: e.kind == "exit" and e.victim_pid == pid)
    watch.consume()
    return sorted((e for e in watch.ooms if e.victim_pid == pid), key=lambda e: e.ts_ns)


def rss(pid: int) -> dict[str, int]:
    """Bytes of the parts of a process's resident set, and its virtual size."""
    with open(f"/proc/{pid}/status") as file:
        lines = [line.split() for line in file if line.endswith(" kB\n")]
    return {line[0].rstrip(":"): int(line[1]) << 10 for line in lines}


def test_the_limit_of_a_parent_is_hit_by_another_than_the_victim() -> None:
    with live.Watching(attach=False) as watch, live.cgroup("oom", 64 * MIB) as parent:
        big, small = cgroupfs.make(parent / "big"), cgroupfs.make(parent / "small")
        ids = {path: cgroupfs.cgroup_id(path) for path in (parent, big, small)}
        index = watch.add(big, flags=POD)
        with live.Puppet(big) as victim, live.Puppet(small) as invoker:
            Path(f"/proc/{victim.pid}/oom_score_adj").write_text("500")
            victim.do("open('/proc/self/comm', 'w').write('a (comm) of 15!')")
            before = rss(victim.pid)
            victim.do("anon(40)")
            # The victim makes room. On a slow CPU it is not quick enough, and the kernel takes the invoker as well.
            invoker.tell("anon(32)")
            assert victim.wait() == -signal.SIGKILL
            assert invoker.answer() in ("done", "")
            records = chain(watch, victim.pid)
        # A victim that is woken on the invoker's CPU takes it away, and may be gone before it is marked.
        assert sorted(e.kind for e in records) == ["exit", "kill", "mark"]
        kill, mark, gone = (next(e for e in records if e.kind == kind) for kind in ("kill", "mark", "exit"))
        assert kill.ts_ns < min(mark.ts_ns, gone.ts_ns)
        for event in records:
            assert (event.victim_pid, event.victim_tid) == (victim.pid, victim.pid)
            assert (event.victim_comm, event.victim_cgroup) == ("a (comm) of 15!", ids[big])
            assert (event.domain, event.oom_score_adj) == (index, 500)
        for event in (kill, mark):
            assert (event.invoker_pid, event.invoker_tid, event.invoker_cgroup) == (
                invoker.pid,
                invoker.pid,
                ids[small],
            )
            assert event.invoker_comm.startswith("python")
        assert kill.si_code == gone.si_code == SI_KERNEL
        assert not mark.exiting
        assert not mark.memsw
        assert (mark.oom_cgroup, mark.oom_limit) == (ids[parent], 64 * MIB)
        assert 63 * MIB <= mark.oom_usage <= 64 * MIB
        assert mark.uid == os.getuid()
        # Each CPU keeps up to 32 pages of a counter to itself, and the interpreter needs a little more.
        assert abs(mark.anon_rss - before["RssAnon"] - 40 * MIB) < MIB
        assert abs(mark.file_rss - before["RssFile"]) < MIB
        assert (mark.shmem_rss, mark.swap) == (0, 0)
        assert mark.total_vm >= mark.anon_rss + mark.file_rss
        assert mark.anon_rss // 512 <= mark.pgtables < 2 * MIB  # 8 bytes for each page of 4 KiB


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("threads", [0, 4])
def test_the_victims_own_limit_is_hit(watched: bool, threads: int) -> None:
    """Also outside every watched cgroup. A victim's threads are one process."""
    with live.Watching(attach=False) as watch, live.cgroup("own", 96 * MIB) as parent:
        pod = cgroupfs.make(parent / "pod")
        inner = cgroupfs.make(pod / "container")
        cgroupfs.set_limit(pod, 24 * MIB)
        index = watch.add(pod, flags=POD) if watched else None
        with live.Puppet(inner) as puppet:
            before = rss(puppet.pid)
            sleep = "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()"
            puppet.do(f"[{sleep} for _ in range({threads})]")
            puppet.tell("threading.Thread(target=anon, args=(48,)).start()" if threads else "anon(48)")
            assert puppet.wait() == -signal.SIGKILL
            records = chain(watch, puppet.pid)
        # A process without a watched cgroup has no record of the signal alone: see test_budgets.
        kinds = ["exit", "kill", "mark"] if watched else ["exit", "mark"]
        assert sorted((e.kind, e.domain) for e in records) == [(kind, index) for kind in kinds]
        mark = next(e for e in records if e.kind == "mark")
        assert mark.invoker_pid == mark.victim_pid == puppet.pid
        assert (mark.invoker_tid != puppet.pid) == bool(threads), "a thread asked for the memory"
        assert (mark.oom_cgroup, mark.oom_limit) == (cgroupfs.cgroup_id(pod), 24 * MIB)
        assert mark.victim_cgroup == cgroupfs.cgroup_id(inner)
        # What the interpreter needed before it joined stays charged where it was. The rest of the limit is page tables.
        assert threads or 22 * MIB <= mark.anon_rss - before["RssAnon"] <= 24 * MIB


def test_a_users_sigkill_only_looks_like_one() -> None:
    with live.Watching(attach=False) as watch, live.cgroup("pod") as pod, live.cgroup("elsewhere") as outside:
        index = watch.add(pod, flags=POD)
        with live.Puppet(outside) as other, live.Puppet(pod) as puppet:
            for victim in (other, puppet):
                victim.process.kill()
                victim.wait()
            records = chain(watch, puppet.pid)
            assert [(e.kind, e.si_code, e.domain) for e in records] == [
                ("kill", SI_USER, index),
                ("exit", SI_USER, index),
            ]
            assert records[0].invoker_pid == os.getpid()
            assert [e for e in watch.ooms if e.victim_pid == other.pid] == [], "its cgroup is not watched"


#: A frozen cgroup of the v1 freezer: a process killed in it stays until it is thawed, which a mark does.
freezer = live.fixture(live.freezer)


def test_a_victim_that_was_exiting_anyway(freezer: Path) -> None:
    with live.Watching(attach=False) as watch, live.cgroup("exiting", 64 * MIB) as parent:
        watch.add(parent, flags=POD)
        with live.Puppet(parent) as victim, live.Puppet(parent) as invoker:
            victim.do("anon(40)")
            live.freeze(freezer, victim.pid)
            victim.process.kill()
            assert live.alive(victim.pid)
            invoker.tell("anon(32)")  # and it may be next: emulated, the victim's memory comes late (7.2: 2 of 2)
            assert victim.wait() == -signal.SIGKILL
            watch.oom(lambda e: e.kind == "mark" and e.victim_pid == victim.pid)
            records = chain(watch, victim.pid)
    # The mark thaws before it is traced, so the victim may leave first.
    assert sorted((e.kind, e.si_code) for e in records) == [("exit", SI_USER), ("kill", SI_USER), ("mark", 0)]
    mark = next(e for e in records if e.kind == "mark")
    assert mark.exiting, "the OOM killer killed no process"
    assert mark.invoker_pid == invoker.pid


@pytest.mark.oldest
def test_records_outlive_their_reader_and_a_full_ring_is_counted() -> None:
    """No reader runs while 1200 processes die in 4 pods; then what fits is there, and the rest is counted."""
    with live.Watching(attach=False) as watch, live.cgroup("many") as node:
        for name in "abcd":  # one alone has a budget: test_budgets
            watch.add(pod := cgroupfs.make(node / name), flags=POD)
            with live.Puppet(pod) as puppet:
                murders(puppet, 300)

        def agreed() -> dict[str, int] | None:
            watch.consume()
            counted = watch.counted()  # of every OOM kill on the machine: one may come in between
            read = {kind: sum(e.kind == kind for e in watch.ooms) for kind in ("kill", "exit")}
            return counted if all(counted[f"emitted_{kind}"] == n for kind, n in read.items()) else None

        counted = live.until(agreed, "as many records read as were emitted")
        for kind in ("kill", "exit"):
            assert counted[f"emitted_{kind}"] + counted[f"lost_{kind}"] >= 4 * 256
            assert counted[f"lost_{kind}"] > 0


def test_reclaim_at_a_limit_is_reported_once_with_the_cache_of_that_moment(files: Path) -> None:
    """Page cache that fits nowhere: the kernel makes room again and again, and kills no process. It is read, not
    written: of dirty pages on a slow disk there may be none to reclaim, and then it kills (6.12, an emulated disk).
    """
    with open(files / "large", "wb") as file:
        file.write(bytes(96 * MIB))
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with live.Watching() as watch, live.cgroup("reclaim", 32 * MIB) as path, live.Puppet(path) as reader:
        index = watch.add(path)
        watch.sweeper.run()
        began = time.monotonic_ns()
        reader.do(f"read({file.name!r})")
        reported = watch.oom(lambda e: e.kind == "reclaim" and e.oom_cgroup == cgroupfs.cgroup_id(path))
        assert began < reported.ts_ns < time.monotonic_ns()
        assert (reported.invoker_pid, reported.oom_limit) == (reader.pid, 32 * MIB)
        assert 30 * MIB <= reported.oom_usage <= 32 * MIB
        assert 8 * MIB < reported.oom_inactive_file + reported.oom_active_file <= 32 * MIB
        watch.consume()
        # It is news again when there was none for a second.
        every = [e.ts_ns for e in watch.ooms if e.kind == "reclaim" and e.oom_cgroup == reported.oom_cgroup]
        assert every[0] == reported.ts_ns
        assert all(b - a >= 1_000_000_000 for a, b in pairwise(every))
        assert watch.table.cgroup_id(index) == reported.oom_cgroup
        assert reader.process.poll() is None


#: Run the program at the beginning of reclaim, as a process of a cgroup, again and again for two seconds.
_RECLAIM = """
import sys, time
from monitor.kernel.pins import Pins
with open(sys.argv[1] + "/cgroup.procs", "w") as procs:
    procs.write("0")
program = Pins(sys.argv[2]).program("on_memcg_reclaim")
block = bytes(4 << 20)
print("ready", flush=True)
sys.stdin.readline()
until = time.monotonic() + 2
while time.monotonic() < until:
    program.run()
"""


@pytest.mark.newest
def test_reclaim_by_several_at_once_is_one_record() -> None:
    """Of two CPUs one may look at the clock first, and see when the other was here last: that is no second ago."""
    with live.Watching(attach=False) as watch, live.cgroup("several") as path, ExitStack() as stack:
        command = (sys.executable, "-P", "-c", _RECLAIM, str(path), str(watch.pins.directory))
        ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        made = [stack.enter_context(subprocess.Popen(command, env=live.environment(), **ends)) for _ in range(4)]
        for process in made:
            stack.callback(process.kill)
            assert process.stdout.readline() == b"ready\n"
        cgroupfs.set_limit(path, cgroupfs.read_cgroup(cgroupfs.detect(), path).usage + MIB)  # less than a huge page
        for process in made:
            process.stdin.write(b"\n")
            process.stdin.flush()
        assert [process.wait(live.TIMEOUT_S) for process in made] == [0] * 4
        watch.consume()
        number = cgroupfs.cgroup_id(path)
        every = [e.ts_ns for e in watch.ooms if e.kind == "reclaim" and e.oom_cgroup == number]
        assert every
        assert [b - a for a, b in pairwise(every) if b - a < 1_000_000_000] == []
