"""What a process of the daemon that is killed leaves to the one that takes its place: the eviction under way, and what
the helper had not stored yet.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from monitor.hot import succession
from monitor.hot.evictor import ASKED, GONE, KILLED, EvictionNote, Noted
from monitor.kernel import cgroup_procs, cgroupfs, procfs
from monitor.kernel.pins import Pins
from monitor.kernel.wire import EVICTION
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode, LabPod
from monitor.link.counters import SharedStats
from monitor.link.messages import Clear, HotMessage, Signalled
from monitor.link.outbox import MOST, MOST_OF_HOLDS, Outbox
from monitor.side.incidents import FOLDER, IncidentReader
from tests import live
from tests.daemon.hot_node import hard, hot_node, losing_node
from tests.daemon.stand_ins import outbox
from tests.side.test_holds import ENDED, HELD

SOFT = (
    *("--enforce", "--eviction-hard", "nodefs.available<1%", "--eviction-soft", "memory.available<64Mi"),
    *("--eviction-soft-grace-period", "memory.available=200ms", "--eviction-max-pod-grace-period", "6"),
)


def crash(daemon: LabDaemon) -> None:
    """The hot process ends by SIGKILL, and the helper after it."""
    (side,) = live.children(daemon.pid)
    daemon.process.kill()
    daemon.process.wait()
    live.ends(side)


def noted_killed(pod: LabPod) -> None:
    """As a daemon leaves it that is killed right after its SIGKILL went out, or before."""
    with Pins(live.pin_dir()).mmap("evictions", EVICTION.size) as memory:
        note = EvictionNote(memoryview(memory).cast("Q"))
        note.begin(cgroupfs.cgroup_id(pod.cgroup), 40 * MIB, time.monotonic_ns())
        del note


node = live.fixture(hot_node)


@pytest.mark.kernel
@pytest.mark.once
def test_a_grace_that_a_daemon_began_is_ended_by_the_next_and_nobody_else_is_evicted(node: LabNode) -> None:
    """Its pod frees some memory meanwhile, so that another would be the first in order."""
    large, other = node.add_pod("large"), node.add_pod("other")
    calm = node.add_pod("calm", "Guaranteed", request=64 * MIB)
    node.fill(calm, 32)
    second, first = node.fill(other, 24), node.fill(large, 40, ignore_term=1)
    with live.daemon(node, *SOFT) as daemon:
        decision = live.message(daemon, "evicting", pod="lab/large")
        crash(daemon)
        first.free()
        since = len(daemon.log)
        daemon.start()
        live.message(daemon, "going on with the eviction that the daemon before had begun", since, pod="lab/large")
        assert first.wait() == -signal.SIGKILL
        assert time.monotonic_ns() >= decision["signalled_ns"] + 6 * 10**9  # its whole grace, and no other one
        assert second.process.poll() is None
        live.message(daemon, "evicted", since, pod="lab/large")
        first_to_go = [r["pod"] for r in daemon.log[since:] if r.get("msg") in ("evicting", "evicted")]
        assert first_to_go[0] == "lab/large"


@pytest.mark.kernel
@pytest.mark.newest
def test_a_pod_signalled_by_a_daemon_that_died_is_finished_and_reported(node: LabNode) -> None:
    pod, other = node.add_pod("half"), node.add_pod("other")
    hogs = [node.start_hog(pod, mib=46), node.start_hog(other, mib=64)]  # the policy would take the larger one now
    with live.daemon(node, "--enforce", *hard(24)) as daemon:
        crash(daemon)
        for hog in hogs:
            hog.go()
            hog.expect("grown")
        noted_killed(pod)
        time.sleep(2.1)  # longer than a pod that gives nothing back is waited for (STARVED_NS)
        since = len(daemon.log)
        daemon.start()
        assert hogs[0].wait() == -signal.SIGKILL
        live.message(daemon, "the daemon before ended while it was signalling a pod", since, pod="lab/half")
        live.message(daemon, "evicted", since, pod="lab/half")
        assert hogs[1].process.poll() is None
        live.ended(daemon)


@pytest.mark.kernel
@pytest.mark.newest
def test_a_side_that_is_killed_takes_no_record_of_an_oom_kill_with_it() -> None:
    """Neither what waited in its socket, nor the episode that was going on, nor what comes before the next one."""
    with losing_node() as node:
        pod = node.add_pod("hog")
        with live.daemon(node, *hard(16)) as daemon:
            (side,) = live.children(daemon.pid)
            os.kill(side, signal.SIGSTOP)
            waiting = live.killed_hog(node, pod, 256)
            os.kill(side, signal.SIGKILL)
            while_none = live.killed_hog(node, pod, 256)
            pids = sorted((waiting.pid, while_none.pid))
            reader = IncidentReader(daemon.state_dir / FOLDER)
            live.until(lambda: killed(reader, pids) == pids, "both kills to be in an incident, once")
            live.ended(daemon)
        assert killed(reader, pids) == pids


def killed(reader: IncidentReader, pids: list[int]) -> list[int]:
    """Of these pids, those in incidents."""
    if not reader.path.exists():
        return []
    return sorted(v["pid"] for incident in reader.all() for v in incident["oom_victims"] if v["pid"] in pids)


# Without a kernel.
def test_a_note_has_what_became_of_one_pod() -> None:
    note = EvictionNote(memoryview(bytearray(EVICTION.size)).cast("Q"))
    assert note.read() is None
    note.begin(7, 100, 1000, 6000)
    asked = note.read()
    assert asked == (ASKED, 7, 1000, 6000, 0, 100, 0)
    note.reported()
    assert note.read() == (ASKED, 7, 1000, 6000, 0, 100, 1)
    note.mark(KILLED, 2000)
    assert note.read() == (KILLED, 7, 1000, 6000, 2000, 100, 1)
    note.mark(GONE)
    assert note.read() == (GONE, 7, 1000, 6000, 2000, 100, 1)
    note.begin(8, 50, 3000)
    assert note.read() == (KILLED, 8, 3000, 0, 3000, 50, 0)
    note.mark(0)
    assert note.read() is None


class Heard(Outbox):
    """An outbox whose helper takes all but what it ``refuses``."""

    def __init__(self) -> None:
        super().__init__(MagicMock(), SharedStats.create())
        self.heard = list[HotMessage]()
        self.refuses: type = type(None)

    def offer(self, message: HotMessage) -> bool:
        self.heard.append(message)
        return not isinstance(message, self.refuses)

    def lost(self) -> int:
        """What a new helper does not get; it has the rest in `heard`."""
        self.heard, before = [], self.stats.get("channel_dropped")
        self.side_lost()
        return self.stats.get("channel_dropped") - before


def test_a_new_side_gets_what_the_old_one_had_not_stored() -> None:
    outbox = Heard()
    for number in range(5):
        outbox.send(Signalled(number, "", "", 9))
        outbox.log("info", "")
    outbox.stored(2)
    assert outbox.lost() == 0
    assert outbox.heard == [Signalled(number, "", "", 9, resent=True) for number in (2, 3, 4)]
    outbox.stored(2)  # the new helper counts anew
    outbox.send(Clear(9, "", "", True, 0))
    outbox.refuses = Signalled
    assert outbox.lost() == 1
    assert outbox.heard[1:] == [Clear(9, "", "", True, 0, resent=True)]
    outbox.refuses = type(None)
    for number in range(2 * MOST):
        outbox.send(Signalled(number, "", "", 9))
    assert outbox.lost() == MOST + 1, "what found no room is counted as lost"
    assert len(outbox.heard) == MOST
    assert outbox.heard[-1].ts_ns == 2 * MOST - 1


def test_holds_of_one_pod_push_no_kill_out() -> None:
    """A hold may begin and end twice a second for as long as the pod likes; nothing is stored while it goes on."""
    outbox = Heard()
    outbox.send(Signalled(7, "", "", 9))
    for number in range(MOST):
        outbox.send(HELD._replace(hold=number))
        outbox.send(ENDED._replace(hold=number))
    outbox.send(Signalled(8, "", "", 9))
    assert outbox.lost() == 2 * MOST - MOST_OF_HOLDS
    heard = outbox.heard
    assert [message.ts_ns for message in heard if isinstance(message, Signalled)] == [7, 8]
    assert heard[0] == Signalled(7, "", "", 9, resent=True), "in order"
    assert heard[-1] == Signalled(8, "", "", 9, resent=True)
    assert len(heard) == MOST_OF_HOLDS + 2
    for number in range(2 * MOST_OF_HOLDS):
        outbox.send(HELD._replace(hold=number))
    outbox.stored(len(heard) + 2 * MOST_OF_HOLDS)
    assert outbox.lost() == 0, "what is stored is not lost"


def test_when_a_process_was_born() -> None:
    before = time.monotonic_ns()
    with subprocess.Popen(["sleep", "60"]) as child:
        born = procfs.born_ns(child.pid)
        assert before - 20_000_000 <= born <= time.monotonic_ns()
        child.kill()
    assert procfs.born_ns(1 << 22) is None  # above every pid: the child's may be another's


BORN_NS = procfs.born_ns(os.getpid()) or 0
LATER, EARLIER = BORN_NS + 10**9, BORN_NS - 10**9


@pytest.mark.parametrize(
    ("noted", "is_there", "pressed", "expected"),
    [
        (Noted(KILLED, 7, LATER, 0, LATER, 40, 0), True, True, ["reported", "resume with 40"]),
        (Noted(ASKED, 7, LATER, LATER, 0, 40, 0), True, False, ["reported", "resume with 40"]),
        # Its signal may not have gone out: the note is written first.
        (Noted(KILLED, 7, LATER, 0, LATER, 40, 0), True, False, ["reported", "drop"]),
        # A process that was started in the pod since is not touched, and the pod is a candidate as any other.
        (Noted(KILLED, 7, EARLIER, 0, EARLIER, 40, 0), True, True, ["reported", "gone"]),
        (Noted(GONE, 7, EARLIER, 0, EARLIER, 40, 1), True, True, ["gone"]),
        # What an evicted pod left is no reason to evict it again.
        (Noted(GONE, 7, LATER, 0, LATER, 40, 1), False, True, ["coming back", "evicted", "gone"]),
        (Noted(KILLED, 7, LATER, 0, LATER, 40, 0), False, True, ["reported", "coming back", "evicted", "gone"]),
        (Noted(KILLED, 8, LATER, 0, LATER, 40, 0), True, True, []),  # of no pod that is there
        (None, True, True, []),
    ],
)
def test_what_becomes_of_the_eviction_of_the_daemon_before(
    noted: Noted | None,
    is_there: bool,
    pressed: bool,
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This process stands for the pod's: it was born before or after the signal."""
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n" if is_there else "")
    monkeypatch.setattr(succession, "time", SimpleNamespace(monotonic_ns=lambda: LATER + 10**6))
    done: list[str] = []

    def does(name: str) -> Callable[..., None]:
        return lambda *_: done.append(name)

    note = SimpleNamespace(read=lambda: noted, reported=does("reported"))
    note.mark = lambda state: done.append("gone" if state == GONE else "drop")
    entry = SimpleNamespace(cgroup=tmp_path, cgroup_id=7, index=0, title="ns/pod")
    pending = SimpleNamespace(dropped=does("coming back"))
    resume: Any = lambda found, _: done.append(f"resume with {found.held}")  # noqa: E731
    registry, gauge = MagicMock(), MagicMock()
    parts = {"registry": registry, "gauge": gauge, "trigger": MagicMock(), "outbox": outbox()}
    evictor: Any = SimpleNamespace(note=note, resume=resume, pending=pending, **parts)
    registry.__iter__.return_value = [entry]
    registry.set_evicted = does("evicted")
    gauge.table.working_set.return_value = 30
    succession.succeed(evictor, 0, pressed=pressed)
    assert done == expected


@pytest.mark.parametrize("cgroups", [10, 3000])
def test_whether_an_eviction_is_over_is_looked_for_in_so_many_cgroups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroups: int
) -> None:
    """The first decision of the daemon after it waits, and on cgroup v1 a pod may have thousands: 15 us each."""
    for name in (".", *(f"c{number}" for number in range(cgroups))):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "cgroup.procs").touch()
    read, real = list[str](), cgroup_procs._pids_in
    monkeypatch.setattr(cgroup_procs, "_pids_in", lambda directory: read.append(directory) or real(directory))
    entry: Any = SimpleNamespace(cgroup=tmp_path)
    killed = Noted(KILLED, 7, 1, 0, time.monotonic_ns(), 0, 0)
    assert succession._is_over(entry, killed) == (cgroups == 10)
    assert not succession._is_dying(entry)
    assert len(read) <= 3 * (succession._MOST + 1)
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n")
    assert not succession._is_over(entry, killed), "a process that was there before"
    born = procfs.born_ns(os.getpid())
    assert succession._is_over(entry, killed._replace(killed_ns=born - 10**9)) == (cgroups == 10)
