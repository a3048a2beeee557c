"""Killing real pods: every process in them, no other, however they fork, and none twice."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monitor.actions.evict import LOOK_NS, PATIENT_NS, REAP_AFTER_NS, STARVED_NS, STUCK_NS, Eviction
from monitor.actions.victim import Victim
from monitor.kernel import cgroupfs
from monitor.kernel.cgroup_procs import pids_below
from monitor.kernel.procfs import wants_cpu
from tests import live
from tests.actions.killing import descriptors, finish, prepared
from tests.actions.killing import pod as pod

pytestmark = pytest.mark.kernel
VERSION = cgroupfs.detect().version
FAR_NS = 1 << 62
BREED = """
def breed():
    while True:
        pid = os.fork()
        if not pid:
            time.sleep(0.02); os._exit(0)
        time.sleep(0.001)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]: pass
        except ChildProcessError: pass
for _ in range(3):
    if not os.fork(): breed()
"""


@pytest.fixture
def killable(pod: Path) -> Path:
    """A pod whose processes can be killed with one write."""
    if not (pod / "cgroup.kill").exists():
        pytest.skip("cgroup.kill is of cgroup v2, and came with Linux 5.14")
    return pod


def without_pause(check: Callable[[], bool]) -> None:
    """Look until it is true, for what would be over before `live.until` looks again."""
    deadline = time.monotonic() + live.TIMEOUT_S
    while not check():
        assert time.monotonic() < deadline


def test_everybody_in_the_pod_dies_and_nobody_else(pod: Path) -> None:
    with live.cgroup("neighbour") as neighbour, live.Puppet(neighbour) as other, live.Puppet(pod / "c1") as parent:
        with live.Puppet(pod / "c2/deep") as deep:
            parent.do(f"exec({BREED!r})")
            live.until(lambda: len(pids_below(pod)) >= 6, "a few generations")
            eviction = Eviction.begun(prepared(pod, VERSION), 0, 1 << 20)
            assert eviction.killed_ns is not None
            finish(eviction)
            assert pids_below(pod) == set()
            assert parent.wait() == deep.wait() == -signal.SIGKILL
            assert {parent.pid, deep.pid} <= eviction.pids
        other.do("pass")


def test_cgroup_kill_reaches_who_came_after_preparing(killable: Path) -> None:
    """Without a pidfd and without a further look, whatever depth they are at: by that one write."""
    victim = prepared(killable, VERSION)
    with live.Puppet(killable / "c0") as late, live.Puppet(killable / "c2/deep") as deep:
        assert victim.pidfds == {}
        victim.kill()
        assert late.wait() == deep.wait() == -signal.SIGKILL
    victim.close()


def test_it_is_not_over_while_memory_is_still_being_freed(killable: Path) -> None:
    """Though outrace holds no pidfd of the process, and cgroup.procs may leave it out already (Linux 7.0). Those that
    are killed by pidfd report when they have ended.
    """
    victim = prepared(killable, VERSION)
    with live.Puppet(killable / "c0") as late:
        late.do("anon(200)")
        eviction = Eviction.begun(victim, 0, 0)
        without_pause(lambda: not pids_below(killable))
        assert not eviction.pids
        without_pause(lambda: eviction.step(0))
        held = int((killable / "memory.current").read_text())
        assert held < 20 * live.MIB, "it was over too early"
    victim.close()


def test_who_is_dying_and_cannot_be_named_is_waited_for(pod: Path) -> None:
    """It may be waiting for a CPU; and the helper gets no request to free the memory of no process."""
    eviction = Eviction.begun(prepared(pod, VERSION), 0, 64 * live.MIB)
    killed = eviction.killed_ns
    assert eviction.to_reap(killed + REAP_AFTER_NS) == []
    assert not eviction.reap_sent
    assert eviction.stuck(64 * live.MIB, killed) == ""
    assert eviction.stuck(64 * live.MIB, killed + STUCK_NS + 1) == ""
    assert "no CPU" in eviction.stuck(64 * live.MIB, killed + STARVED_NS + STUCK_NS)
    eviction.victim.close()


def test_who_left_is_let_go_and_descriptors_do_not_pile_up(pod: Path) -> None:
    before = descriptors(pod)
    victim = prepared(pod, VERSION)
    for _ in range(3):
        with live.Puppet(pod / "c0") as puppet:
            victim.refresh()
            assert set(victim.pidfds) == {puppet.pid}
        victim.refresh()
        assert victim.pidfds == {}
    with live.Puppet(pod / "c0") as puppet:
        victim.refresh()
        # Moved elsewhere: no longer this pod's.
        with live.cgroup("elsewhere") as outside:
            (outside / "cgroup.procs").write_text(str(puppet.pid))
            victim.refresh()
            assert victim.pidfds == {}
            victim.kill()
            puppet.do("pass")
            (pod / "c0/cgroup.procs").write_text(str(puppet.pid))
    victim.close()
    assert descriptors(pod) == before


def test_no_process_is_signalled_twice(pod: Path) -> None:
    with live.Puppet(pod / "c0") as puppet:
        puppet.do("signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'asked\\n'))")
        victim = prepared(pod, VERSION)
        victim.send(signal.SIGTERM)
        assert puppet.answer() == "asked"
        victim.refresh()
        victim.send(signal.SIGTERM)
        puppet.do("pass")  # were it asked again, that would be the answer
        victim.send(signal.SIGKILL)
        assert puppet.wait() == -signal.SIGKILL
        victim.send(signal.SIGKILL)  # to no process: no error
        victim.close()


def test_the_grace_is_kept_to_its_end(pod: Path) -> None:
    with live.Puppet(pod / "c0") as deaf, live.Puppet(pod / "c1") as obedient:
        victim = prepared(pod, VERSION)
        deaf.do("signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'asked\\n'))")
        with live.Puppet(pod / "c1") as late:  # since the pod was prepared
            eviction = Eviction.begun(victim, 30, 0)
            assert deaf.answer() == "asked"
            assert obedient.wait() == late.wait() == -signal.SIGTERM
        due = eviction.kill_at_ns
        assert due == eviction.started_ns + 30_000_000_000
        for now in (eviction.started_ns, due - 1):
            assert not eviction.step(now)
            assert eviction.killed_ns is None
            assert eviction.to_reap(FAR_NS) == []
            eviction.looked(now, 0)
            assert now < eviction.deadline_ns() <= due
        deaf.do("pass")
        assert deaf.process.poll() is None
        eviction.step(due)
        assert deaf.wait() == -signal.SIGKILL
        assert eviction.kill_at_ns is None
        finish(eviction)
        assert eviction.pids == {deaf.pid, obedient.pid, late.pid}


def test_a_grace_may_be_cut_short(pod: Path) -> None:
    with live.Puppet(pod / "c0") as deaf:
        deaf.do("signal.signal(signal.SIGTERM, signal.SIG_IGN)")
        eviction = Eviction.begun(prepared(pod, VERSION), 30, 0)
        assert eviction.deadline_ns() == eviction.signalled_ns + PATIENT_NS
        eviction.hurry()
        eviction.hurry()
        assert eviction.deadline_ns() == eviction.killed_ns + LOOK_NS
        # The hot process requests help in freeing once.
        assert eviction.to_reap(eviction.killed_ns + REAP_AFTER_NS - 1) == []
        assert eviction.to_reap(eviction.killed_ns + REAP_AFTER_NS) == [deaf.pid]
        assert eviction.to_reap(FAR_NS) == []
        assert deaf.wait() == -signal.SIGKILL
        finish(eviction)


FROZEN = "gives nothing back (frozen, or in an endless system call)"
GAVE = "gave its memory back, but does not end"


@pytest.fixture
def frozen(pod: Path) -> Iterator[Eviction]:
    """A pod that was killed, and cannot run."""
    with live.Puppet(pod / "c0") as puppet, live.freezer() as freezer:
        live.freeze(freezer, puppet.pid)
        eviction = Eviction.begun(prepared(pod, VERSION), 0, 64 * live.MIB)
        yield eviction
        (freezer / "freezer.state").write_text("THAWED")
        finish(eviction)


@pytest.mark.parametrize(
    "looks",
    [
        [(64, 1, ""), (63, 1, ""), (63, 2, ""), (63, 2.01, FROZEN)],  # the next one waits only for a moment
        # 640 MiB at the kill, ten times what it had at SIGTERM; it gives back what it can.
        [*((640 - 50 * i, i, "") for i in range(10)), (22, 10, ""), (22, 11.01, FROZEN), (20, 12, ""), (20, 14, GAVE)],
        [(None, 1, ""), (None, 1.01, FROZEN)],  # not known any more: it has not given its memory back
    ],
    ids=["it cannot run", "it took more in its grace", "its usage is not known"],
)
def test_a_pod_that_gives_nothing_back_is_stuck(frozen: Eviction, looks: list[tuple[int | None, float, str]]) -> None:
    """Looks at it: MiB in use, when (in STUCK_NS since the kill), and what it reports."""
    for mib, at, why in looks:
        usage, now = None if mib is None else mib * live.MIB, frozen.killed_ns + int(at * STUCK_NS)
        assert frozen.stuck(usage, now) == why, (mib, at)


def test_a_pod_that_waits_for_a_cpu_is_waited_for(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process at full speed that was not killed stands for one that was, which cannot be kept from a CPU for sure."""
    with live.Puppet(pod / "c0") as victim:
        ready = prepared(pod, VERSION)
        victim.tell("while True: pass")
        live.until(lambda: wants_cpu([victim.pid]), "the victim to be at work")
        monkeypatch.setattr(Victim, "kill", lambda _: None)
        eviction = Eviction.begun(ready, 0, 64 * live.MIB)
        killed = eviction.killed_ns
        for ns in (STUCK_NS + 1, STUCK_NS + 2, 2 * STUCK_NS + 3, STARVED_NS):
            assert eviction.stuck(64 * live.MIB, killed + ns) == ""
        after_ns = STARVED_NS + STUCK_NS + 1
        assert eviction.stuck(64 * live.MIB, killed + after_ns) == "gives nothing back (it gets no CPU)"
        monkeypatch.undo()
        finish(eviction)


def test_a_pod_whose_cgroup_vanished(pod: Path) -> None:
    inner = cgroupfs.make(pod / "pod")
    victim = prepared(inner, VERSION)
    inner.rmdir()
    eviction = Eviction.begun(victim, 0, 0)
    assert eviction.step(0)
    victim.close()
