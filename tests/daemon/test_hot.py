"""The daemon on a lab node of the live kernel: who is evicted, who is not, and what is said about it."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import live

from monitor.kernel import cgroupfs
from monitor.kernel.pins import Pins
from monitor.kernel.wire import VICTIM
from monitor.lab.daemon import LabDaemon, Record
from monitor.lab.node import MIB, LabNode, LabPod

pytestmark = pytest.mark.kernel


@pytest.fixture
def losing() -> Iterator[LabNode]:
    """A node in which the OOM killer may win."""
    with LabNode("test-hot", 128 * MIB) as made:
        yield made
    assert not made.cgroup.exists()


@pytest.fixture
def node(losing: LabNode) -> Iterator[LabNode]:
    yield losing
    assert losing.oom_kills() == 0, "the OOM killer was first"


MET = 'threshold_met{kind="hard",signal="memory.available"}'


def hard(mib: int) -> tuple[str, ...]:
    return ("--eviction-hard", f"memory.available<{mib}Mi")


def soft(mib: int, grace: str) -> tuple[str, ...]:
    """A soft threshold, and a hard one far below it."""
    return (
        *hard(1),
        *("--eviction-soft", f"memory.available<{mib}Mi"),
        *("--eviction-soft-grace-period", f"memory.available={grace}"),
    )


def evicted(daemon: LabDaemon, pod: LabPod, since: int = 0) -> tuple[Record, Record]:
    """The decision on ``pod`` and its end, waited for."""
    decision = live.message(daemon, "evicting", since, pod=f"{pod.namespace}/{pod.name}")
    return decision, live.message(daemon, "evicted", since, id=decision["id"])


def decided(daemon: LabDaemon) -> list[str]:
    """Names of the pods decided on, in order."""
    return [record["pod"].split("/")[1] for record in live.messages(daemon, "evicting")]


def passes(daemon: LabDaemon, more: int = 5) -> None:
    """While a threshold is met: wait until the policy has made more passes on fresh numbers."""
    begin = live.metric(daemon, "passes_total")
    live.until(lambda: live.metric(daemon, "passes_total") >= begin + more, "passes of the policy")


# -- observe -----------------------------------------------------------------------------------------------------------


def test_observing_says_it_once_per_crossing_and_touches_nobody(node: LabNode) -> None:
    pod = node.add_pod("hog")
    with live.daemon(node, *hard(80)) as daemon:
        # 200 MiB/s: from one crossing to the next it takes far longer than the 20 ms after which one is news again.
        hog = node.start_hog(pod, mib=64, rate=200)
        for i in range(3):
            hog.go()
            live.message(daemon, "would evict", id=i + 1)
            hog.expect("grown")
            hog.free()
            # Without this, a daemon that gets no CPU meanwhile sees no end of it, and rightly says nothing new.
            live.until(lambda: live.metric(daemon, MET) == 0, "the threshold to be clear")
        assert hog.process.poll() is None
        records = live.messages(daemon, "would evict")
        assert [r["id"] for r in records] == [1, 2, 3]
        for record in records:
            assert (record["pod"], record["signal"], record["kind"]) == ("lab/hog", "memory.available", "hard")
            assert (record["observed"], record["signalled_ns"], record["trigger"]) == (True, None, "user")
            assert record["crossed_ns"] < record["decided_ns"]
            assert record["available"] < record["quantity"] == 80 * MIB
            assert record["available"] > 78 * MIB
            assert record["usage"] > 48 * MIB
        assert live.messages(daemon, "evicting") == live.messages(daemon, "evicted") == []
        counted = daemon.metrics()
        assert counted['outrace_records_total{kind="cross",side="reader"}'] >= 3
        assert counted['outrace_decisions_total{mode="observe",signal="memory.available"}'] == 3
        assert counted["outrace_evictions_total"] == 0
        live.ended(daemon)


# -- enforce -----------------------------------------------------------------------------------------------------------

FORKS = """
children = []
for _ in range(5):
    pid = os.fork()
    if not pid:
        signal.pause()
    children.append(pid)
def breed():
    while True:
        pid = os.fork()
        if not pid:
            time.sleep(0.05); os._exit(0)
        time.sleep(0.002)
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            pass
if not os.fork():
    breed()
print(*children, flush=True)
"""


def test_the_first_pod_goes_whole_and_nobody_else(node: LabNode) -> None:
    database = node.add_pod("database", "Guaranteed", request=64 * MIB)
    web = node.add_pod("web", "Burstable", request=32 * MIB)
    batch = node.add_pod("batch", containers=2)
    with live.daemon(node, "--enforce", *hard(40)) as daemon:
        calm = live.filled(node, web, 16)
        with live.Puppet(batch.containers["c1"]) as family:
            hog = live.filled(node, batch, 24)
            family.tell(f"exec({FORKS!r})")
            pids = [hog.pid, family.pid, *map(int, family.answer().split())]
            assert family.answer() == "done"
            assert len(cgroupfs.processes(batch.cgroup)) >= 8
            # The pod that crosses is within its request: another one pays.
            big = live.filled(node, database, 56)
            decision, end = evicted(daemon, batch)
            assert not [pid for pid in pids if live.alive(pid)]
            assert cgroupfs.processes(batch.cgroup) == []
        assert hog.wait() == -signal.SIGKILL
        for survivor in (calm, big):
            assert survivor.process.poll() is None
        assert decision["trigger"] == "user"
        assert (decision["request"], decision["rank"]) == (0, 1)
        assert decision["decided_ns"] <= decision["signalled_ns"] < end["gone_ns"]
        assert set(pids) <= set(end["pids"])
        assert decided(daemon) == ["batch"]
        assert decision["message"].startswith(
            "The node was low on resource: memory. Threshold quantity: 40Mi, available: "
        )
        assert "Container c0 was using " in decision["message"]

        status = live.state_dir() / "pods" / f"lab_batch_{batch.uid}.json"
        live.until(lambda: status.exists() and "outrace/pids" in status.read_text(), "the status with its outcome")
        written = json.loads(status.read_text())
        assert written["metadata"]["uid"] == batch.uid
        assert (written["status"]["phase"], written["status"]["reason"]) == ("Failed", "Evicted")
        assert written["status"]["message"] == decision["message"]
        assert set(map(str, pids)) <= set(written["metadata"]["annotations"]["outrace/pids"].split(","))
        live.message(daemon, "node conditions changed", conditions=["MemoryPressure"])
        counted = daemon.metrics()
        assert counted["outrace_evictions_total"] == 1
        assert counted["outrace_eviction_failures_total"] == 0
        assert counted['outrace_node_condition{condition="MemoryPressure"}'] == 1


@pytest.mark.once
def test_one_pod_at_a_time_and_the_next_while_still_short(node: LabNode) -> None:
    first, second, third = (node.add_pod(name) for name in ("first", "second", "third"))
    database = node.add_pod("database", "Guaranteed", request=64 * MIB)
    with live.daemon(node, "--enforce", *hard(72)) as daemon:
        # Below 56 MiB of use nothing happens; 90 are used; without the first 64; without the second 46.
        hogs = [live.filled(node, pod, mib) for pod, mib in ((third, 6), (second, 18), (first, 26))]
        live.filled(node, database, 40)
        evicted(daemon, first)
        evicted(daemon, second)
        live.ended(daemon)
        steps = [(r["msg"], r["uid"]) for r in daemon.log if r["msg"] in ("evicting", "evicted")]
        assert steps == [(msg, pod.uid) for pod in (first, second) for msg in ("evicting", "evicted")]
        assert hogs[0].process.poll() is None


@pytest.mark.once
def test_an_evicted_pod_that_runs_again_is_a_candidate_again(node: LabNode) -> None:
    pod = node.add_pod("phoenix")
    with live.daemon(node, "--enforce", *hard(80)) as daemon:
        for i in range(2):
            hog = node.start_hog(pod, mib=100)
            hog.go()
            assert hog.wait() == -signal.SIGKILL
            live.message(daemon, "evicted", id=i + 1)
        live.message(daemon, "an evicted pod runs again: it is a candidate again")
        assert decided(daemon) == ["phoenix"] * 2


def test_a_critical_pod_is_never_evicted_not_even_alone(node: LabNode) -> None:
    pod = node.add_pod("critical", priority=2_000_000_000)
    with live.daemon(node, "--enforce", *hard(80)) as daemon:
        hog = live.filled(node, pod, 64)
        live.message(daemon, "node conditions changed", conditions=["MemoryPressure"])
        passes(daemon)
        assert hog.process.poll() is None
        assert decided(daemon) == []
        hog.free()
        # Beside an ordinary pod, however small, that one goes, and then nobody.
        ordinary = node.add_pod("small")
        live.message(daemon, "pod found", uid=ordinary.uid)
        small = live.filled(node, ordinary, 4)
        hog.go()
        evicted(daemon, ordinary)
        assert small.wait() == -signal.SIGKILL
        hog.expect("grown")
        passes(daemon)
        assert hog.process.poll() is None
        live.ended(daemon)
        assert decided(daemon) == ["small"]


def test_the_kernel_wins_are_told_too(losing: LabNode) -> None:
    """A pod at its own limit dies without the node ever being short."""
    node = losing
    pod = node.add_pod("limited", "Burstable", request=8 * MIB, limit=32 * MIB)
    with live.daemon(node, "--enforce", *hard(10)) as daemon:
        hog = node.start_hog(pod, mib=64)
        hog.go()
        assert hog.wait() == -signal.SIGKILL
        # By pid, because the ring tells of every OOM kill on the machine.
        told = live.message(daemon, "the kernel's OOM killer killed a process", victim_pid=hog.pid)
        assert (told["pod"], told["while_away"]) == ("lab/limited", False)
        assert told["oom_cgroup"] == cgroupfs.cgroup_id(pod.cgroup)
        assert decided(daemon) == []
        assert live.metric(daemon, 'oom_kills_total{scope="memcg"}') >= 1
        assert node.oom_kills() == 1


# -- soft --------------------------------------------------------------------------------------------------------------


def test_a_soft_threshold_asks_first_and_kills_after_the_grace(node: LabNode) -> None:
    pod = node.add_pod("stubborn")
    options = (*soft(80, "50ms"), "--eviction-max-pod-grace-period", "1")
    with live.daemon(node, "--enforce", *options) as daemon:
        container = pod.containers["c0"]
        with live.Puppet(container) as deaf, live.Puppet(container) as obedient:
            deaf.do("signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'told\\n'))")
            deaf.tell("anon(56)")
            decision = live.message(daemon, "evicting")
            # On a slow CPU the signal comes before it is through with its memory.
            assert sorted((deaf.answer(), deaf.answer())) == ["done", "told"]
            assert obedient.wait() == -signal.SIGTERM
            assert deaf.wait() == -signal.SIGKILL
            assert deaf.answer() == "", "told once"
            end = live.message(daemon, "evicted")
    assert (decision["kind"], decision["grace_s"]) == ("soft", 1)
    assert end["gone_ns"] - decision["signalled_ns"] >= 1_000_000_000, "killed before the grace was over"


def test_a_pod_that_recovers_in_the_grace_is_left_alone(node: LabNode) -> None:
    pod = node.add_pod("breather")
    options = (*soft(80, "1s"), "--eviction-pressure-transition-period", "1500ms")
    with live.daemon(node, "--enforce", *options) as daemon:
        hog = live.filled(node, pod, 64)
        live.message(daemon, "node conditions changed", conditions=["MemoryPressure"])
        since = len(daemon.log)
        hog.free()
        # The condition ends 1.5 s after the threshold was last met, so after the grace would have been over.
        live.message(daemon, "node conditions changed", since, conditions=[])
        assert decided(daemon) == []
        assert hog.process.poll() is None
        # The grace begins anew with the next crossing, and this time nobody recovers.
        hog.go()
        evicted(daemon, pod)
        assert hog.wait() == -signal.SIGTERM, "at most 0 s unless it is told otherwise: it is asked, and has a second"


def test_nobody_is_evicted_because_page_cache_is_freed(node: LabNode) -> None:
    pod = node.add_pod("cache")
    with tempfile.TemporaryDirectory(prefix="outrace-test-", dir="/var/tmp") as directory:
        daemon = live.daemon(node, *hard(100))
        with daemon, live.Puppet(pod.containers["c0"]) as puppet:
            # 20 MiB of working set, 28 may be used; and page cache, which may all be given back.
            puppet.do(f"anon(20); write('{directory}/a', 60)")
            puppet.do(f"os.unlink('{directory}/a')")
            live.ended(daemon)
            assert [r["available"] >> 20 for r in live.messages(daemon, "would evict")] == []


# -- pods that come, change and go -------------------------------------------------------------------------------------


@pytest.mark.once
def test_manifests_that_appear_change_and_vanish(node: LabNode) -> None:
    big = node.add_pod("big")
    with live.daemon(node, *IN_KERNEL, *hard(72)) as daemon:
        live.filled(node, big, 30)
        armed_for(big)
        late = node.add_pod("late")
        live.message(daemon, "pod found", uid=late.uid)
        live.filled(node, late, 10)

        # Changed: a lower priority goes first, although it uses less.
        manifest = json.loads(late.manifest.read_text())
        manifest["spec"]["priority"] = -5
        rewrite(late.manifest, manifest)
        armed_for(late)
        database = node.add_pod("database", "Guaranteed", request=64 * MIB)
        live.message(daemon, "pod found", uid=database.uid)
        crosser = live.filled(node, database, 20)
        evicted(daemon, late)
        assert decided(daemon) == ["late"]

        # Vanished: nobody's any more, whatever it uses.
        big.manifest.unlink()
        live.message(daemon, "pod gone", uid=big.uid)
        armed_for(database)
        other = node.add_pod("other")
        live.message(daemon, "pod found", uid=other.uid)
        newcomer = node.start_hog(other, mib=8)
        newcomer.go()
        evicted(daemon, other)
        assert newcomer.wait() == -signal.SIGKILL
        assert decided(daemon) == ["late", "other"]
        assert len(cgroupfs.processes(big.cgroup)) == 1
        assert crosser.process.poll() is None
        assert live.metric(daemon, "pods") == 3


def rewrite(path: Path, manifest: object) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(json.dumps(manifest))
    fresh.rename(path)


def armed() -> int:
    """Id of the pod cgroup whose processes the kernel may signal inside their own charge; 0: nobody's."""
    with Pins.open(live.pin_dir()).mmap("victims", 32) as memory:
        generation, pod, _, _ = VICTIM.unpack_from(memory)
        return int(pod) if generation else 0


def armed_for(pod: LabPod) -> None:
    """Wait until the hot process knows that ``pod`` is the first: the trigger shows it at once."""
    number = cgroupfs.cgroup_id(pod.cgroup)
    live.until(lambda: armed() == number, f"the trigger to be armed for {pod.name}")


# -- the trigger in the kernel -----------------------------------------------------------------------------------------

IN_KERNEL = ("--enforce", "--trigger", "kernel")


@pytest.mark.parametrize("pages", ["4k", "thp"])
def test_the_victim_is_signalled_in_its_own_charge(node: LabNode, pages: str) -> None:
    pod = node.add_pod("hog")
    bystander = live.filled(node, node.add_pod("calm", "Guaranteed", request=16 * MIB), 8)
    with live.daemon(node, *IN_KERNEL, *hard(8)) as daemon:
        second = live.filled(node, pod, 2)
        armed_for(pod)
        hog = node.start_hog(pod, mib=256, pages=pages)
        hog.go()
        assert hog.wait() == -signal.SIGKILL
        decision, _ = evicted(daemon, pod)
        assert second.wait() == -signal.SIGKILL, "user space finishes the pod"
        assert decision["trigger"] == "kernel"
        assert bystander.process.poll() is None
        counted = daemon.metrics()
        assert counted['outrace_records_total{kind="signal",side="reader"}'] >= 1
        live.ended(daemon)
        assert decided(daemon) == ["hog"]


def test_the_kernel_signals_nobody_outside_the_armed_pod(node: LabNode) -> None:
    """Another pod crosses the line: its process lives, and user space evicts who is armed."""
    victim, database = node.add_pod("victim"), node.add_pod("database", "Guaranteed", request=100 * MIB)
    with live.daemon(node, *IN_KERNEL, *hard(48)) as daemon:
        prey = live.filled(node, victim, 16)
        armed_for(victim)
        signals = live.metric(daemon, 'records_total{kind="signal",side="kernel"}')
        crosser = live.filled(node, database, 72)
        decision, _ = evicted(daemon, victim)
        assert prey.wait() == -signal.SIGKILL
        assert decision["trigger"] == "user"
        assert crosser.process.poll() is None
        # Nobody outside a pod either.
        armed_for(database)
        with live.Puppet(cgroupfs.make(node.cgroup / "no-pod")) as stranger:
            stranger.do("anon(2)")
        assert live.metric(daemon, 'records_total{kind="signal",side="kernel"}') == signals


@pytest.mark.once
def test_a_victim_that_is_no_pod_any_more_is_never_signalled(node: LabNode) -> None:
    pod, other = node.add_pod("gone"), node.add_pod("other")
    with live.daemon(node, *IN_KERNEL, *hard(48)) as daemon:
        live.filled(node, other, 4)
        hog = node.start_hog(pod, mib=96)
        grown = live.filled(node, pod, 8)
        armed_for(pod)
        # Its manifest goes, its cgroup and processes stay, and one of them is the next to cross.
        pod.manifest.unlink()
        armed_for(other)
        signals = live.metric(daemon, 'records_total{kind="signal",side="kernel"}')
        hog.go()
        decision, _ = evicted(daemon, other)
        assert decision["trigger"] == "user"
        hog.expect("grown")
        assert grown.process.poll() is None
        assert live.metric(daemon, 'records_total{kind="signal",side="kernel"}') == signals
        # A pod made again in the same place is another pod, and fair game.
        since = len(daemon.log)
        hog.free()
        remade = node.add_pod("remade")
        live.message(daemon, "pod found", since, uid=remade.uid)
        again = node.start_hog(remade, mib=256)
        armed_for(remade)
        again.go()
        assert again.wait() == -signal.SIGKILL
        decision, _ = evicted(daemon, remade, since)
        assert decision["trigger"] == "kernel"
    assert armed() == 0, "a daemon that has ended left its trigger armed"


# -- processes that die ------------------------------------------------------------------------------------------------


def side_of(daemon: LabDaemon) -> int:
    (pid,) = live.children(daemon.pid)
    return pid


@pytest.mark.once
def test_a_stopped_side_delays_nothing(node: LabNode) -> None:
    pod = node.add_pod("hog")
    with live.daemon(node, "--enforce", *hard(16)) as daemon:
        hog = node.start_hog(pod, mib=256)
        os.kill(side_of(daemon), signal.SIGSTOP)
        try:
            hog.go()
            assert hog.wait() == -signal.SIGKILL
            assert node.oom_kills() == 0
        finally:
            os.kill(side_of(daemon), signal.SIGCONT)
        evicted(daemon, pod)
        live.ended(daemon)


@pytest.mark.once
def test_a_killed_side_is_started_again_and_hot_goes_on(node: LabNode) -> None:
    pod, other = node.add_pod("hog"), node.add_pod("other")
    with live.daemon(node, "--enforce", *hard(16)) as daemon:
        hog = node.start_hog(pod, mib=256)
        side = side_of(daemon)
        since = len(daemon.log)
        # Gone while the daemon has no side: forgotten when the next one tells what there is.
        os.kill(side, signal.SIGKILL)
        other.manifest.unlink()
        hog.go()
        assert hog.wait() == -signal.SIGKILL
        assert node.oom_kills() == 0
        live.message(daemon, "pod found", since, uid=pod.uid)
        live.until(lambda: daemon.get("/readyz")[0] == 200, "the new side to be ready")
        assert side_of(daemon) != side
        assert live.metric(daemon, "pods") == 1
        assert live.metric(daemon, "side_starts_total") == 2
        again = node.start_hog(pod, mib=256)
        again.go()
        evicted(daemon, pod, since)
        assert again.wait() == -signal.SIGKILL
        live.ended(daemon)


@pytest.mark.once
def test_sigterm_ends_it_cleanly(node: LabNode) -> None:
    with live.daemon(node, "--enforce", *hard(16)) as daemon:
        side = side_of(daemon)
        assert live.metric(daemon, "armed") == 1
        live.ended(daemon)
        assert not live.alive(side)
        assert [r for r in daemon.log if r.get("raw")] == [], "something that is no log record was printed"
        assert [r["msg"] for r in daemon.log if r.get("level") == "error"] == []
    # Detached, and the OOM chain still attached.
    with live.Watching(attach=False) as watch:
        live.filled(node, node.add_pod("p"), 8)
        assert watch.counted()["evaluated"] == 0
    assert (live.pin_dir() / "link_on_mark_victim").exists()


@pytest.mark.once
def test_hot_killed_leaves_no_side_and_the_next_one_starts(node: LabNode) -> None:
    pod = node.add_pod("hog")
    with live.daemon(node, *IN_KERNEL, *hard(16)) as daemon:
        side = os.pidfd_open(side_of(daemon))
        live.filled(node, pod, 8)
        armed_for(pod)
        os.kill(daemon.pid, signal.SIGKILL)
        assert daemon.process is not None
        assert daemon.process.wait(live.TIMEOUT_S) == -signal.SIGKILL
        live.ends(side, fd=True)
        os.close(side)
    # Its trigger is still armed, but the program that would pull it went with the descriptors.
    crosser = live.filled(node, pod, 108)
    assert crosser.process.poll() is None
    with live.daemon(node, "--enforce", *hard(16)) as daemon:
        evicted(daemon, pod)
        assert crosser.wait() == -signal.SIGKILL
        live.ended(daemon)


@pytest.mark.once
def test_a_second_daemon_on_the_state_dir_is_refused(node: LabNode) -> None:
    with live.daemon(node) as daemon:
        result = live.outrace("run", "--state-dir", str(live.state_dir()), "--listen", "127.0.0.1:0")
        live.one_line(result, 1, f"(pid {daemon.pid})", str(live.state_dir()), "--state-dir")
        assert daemon.get("/readyz")[0] == 200
        live.ended(daemon)


def test_what_is_lost_is_shown(node: LabNode) -> None:
    """A hot process that cannot run for a while: the ring fills up, and afterwards both sides say the same numbers."""
    pod = node.add_pod("noisy", containers=2)
    with live.daemon(node, "--step", "4096", *hard(4)) as daemon:
        hogs = [node.start_hog(pod, c, mib=32, cycles=60) for c in pod.containers]
        before = records(daemon, "step")
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            for hog in hogs:
                hog.go()
            for hog in hogs:
                hog.expect("grown")
        finally:
            os.kill(daemon.pid, signal.SIGCONT)

        # The programs count as long as they are pinned, the daemon as long as it runs.
        live.until(lambda: settled(daemon, "step", before), "as many records read as were written")
        assert daemon.metrics()['outrace_events_lost_total{where="ring_step"}'] > 0
        live.ended(daemon)


def records(daemon: LabDaemon, kind: str) -> list[float]:
    """How many the kernel wrote and how many the hot process read."""
    counted = daemon.metrics()
    return [counted[f'outrace_records_total{{kind="{kind}",side="{side}"}}'] for side in ("kernel", "reader")]


def settled(daemon: LabDaemon, kind: str, before: list[float]) -> bool:
    """Whether both counted the same records since ``before``."""
    written, read = (now - then for now, then in zip(records(daemon, kind), before, strict=True))
    return written == read > 0
