"""Processes of a pod raised for the OOM killer, or by QoS class: every value comes back exactly."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from monitor.actions import oom_values
from monitor.actions.oom_values import MarkJournal, Restored, ScoreNotes, Seen, without
from monitor.actions.oomadj import OomScores
from monitor.kernel import cgroup_procs, cgroupfs
from tests import live
from tests.actions.test_oomadj import CAPABLE, found, read, write
from tests.puppet import Puppet

pytestmark = [pytest.mark.kernel, pytest.mark.oldest]


@pytest.fixture
def pod() -> Iterator[Path]:
    with live.cgroup("marks") as path:
        yield cgroupfs.make(path / "pod")


@pytest.fixture
def journal(tmp_path: Path) -> MarkJournal:
    return MarkJournal(tmp_path)


@pytest.fixture
def processes(pod: Path) -> Iterator[list[Puppet]]:
    """Two processes with values of their own, each in a container."""
    with ExitStack() as stack:
        found = []
        for number, value in enumerate((100, 200)):
            found.append(stack.enter_context(Puppet(cgroupfs.make(pod / f"c{number}"))))
            write(found[-1].pid, value)
        yield found


def values(processes: list[Puppet]) -> list[int]:
    return [read(one.pid) for one in processes]


def forked(parent: Puppet, path: Path) -> int:
    """A process that `parent` forks, which inherits its value and outlives it."""
    parent.do(f"child = os.fork(); open({str(path)!r}, 'w').write(str(child)) if child else time.sleep(600)")
    return int(path.read_text())


def left(pod: Path) -> list[str]:
    """What is noted at the pod."""
    return [name for name in os.listxattr(pod) if name.startswith("trusted.outrace.")]


def test_forked_processes_get_what_their_parent_had(
    journal: MarkJournal, pod: Path, processes: list[Puppet], tmp_path: Path
) -> None:
    """Also one whose parent is gone: its container's others say what it would have."""
    mark = journal.mark(pod, "uid")
    assert (mark.raised, values(processes), len(left(pod))) == (2, [1000, 1000], 1)
    children = [forked(one, tmp_path / str(one.pid)) for one in processes]
    assert [read(pid) for pid in children] == [1000, 1000]
    assert journal.look_again(mark) == 0  # they are raised, and no values of their own are known
    processes[0].process.kill()
    processes[0].wait()
    assert journal.restore(mark) == Restored(restored=3)
    assert [read(pid) for pid in (*children, processes[1].pid)] == [100, 200, 200]
    assert left(pod) == []


def test_a_process_that_appears_is_raised_too(journal: MarkJournal, pod: Path, processes: list[Puppet]) -> None:
    mark = journal.mark(pod, "uid")
    with Puppet(pod / "c0") as late:
        write(late.pid, 300)
        assert journal.look_again(mark) == 1
        assert read(late.pid) == 1000
        assert journal.restore(mark).restored == 3
        assert read(late.pid) == 300


def test_a_process_that_left_the_pod_is_set_back(journal: MarkJournal, pod: Path, processes: list[Puppet]) -> None:
    mark = journal.mark(pod, "uid")
    other = cgroupfs.make(pod.parent / "other")  # v2 has no processes beside cgroups that controllers are on for
    (other / "cgroup.procs").write_text(str(processes[0].pid))
    assert journal.restore(mark).restored == 2
    assert values(processes) == [100, 200]


def test_no_more_are_raised_than_the_budget(pod: Path, processes: list[Puppet], tmp_path: Path) -> None:
    journal = MarkJournal(tmp_path, most=1)
    mark = journal.mark(pod, "uid")
    [first] = [one for one in processes if read(one.pid) == 1000]
    [other] = [one for one in processes if one is not first]
    own = read(other.pid)
    first.process.kill()
    first.wait()
    assert journal.look_again(mark) == 1  # the room of one that ended is for another
    assert read(other.pid) == 1000
    assert journal.restore(mark).restored == 1
    assert read(other.pid) == own


def test_marked_again_before_it_was_set_back(
    journal: MarkJournal, pod: Path, processes: list[Puppet], tmp_path: Path
) -> None:
    """What the processes had first is what comes back: 1000 is no value of theirs."""
    journal.mark(pod, "uid")
    child = forked(processes[0], tmp_path / "child")
    again = MarkJournal(tmp_path).mark(pod, "uid")
    assert journal.restore(again).restored == 3
    assert [*values(processes), read(child)] == [100, 200, 100]


def test_a_side_that_ends_late_leaves_the_note_of_the_next_one(
    journal: MarkJournal, pod: Path, processes: list[Puppet], tmp_path: Path
) -> None:
    """Both have the same state dir, and so the same attribute."""
    mark = journal.mark(pod, "uid")
    [name] = left(pod)
    body = json.loads(os.getxattr(pod, name))
    os.setxattr(pod, name, json.dumps({**body, "owner": "the next one"}).encode())
    assert journal.restore(mark).restored == 2
    assert left(pod) == [name]


def test_a_cgroup_made_anew_is_not_noted_at(journal: MarkJournal, pod: Path) -> None:
    mark = journal.mark(pod, "uid")
    pod.rmdir()
    cgroupfs.make(pod)
    with Puppet(pod) as late:
        write(late.pid, 100)
        with pytest.raises(FileNotFoundError):
            journal.look_again(mark)
        assert read(late.pid) == 100
        assert left(pod) == []


@pytest.mark.skipif(not CAPABLE, reason="no CAP_SYS_RESOURCE: no process can set a floor here (a guest's root can)")
def test_the_floor_is_where_it_was(journal: MarkJournal, pod: Path, processes: list[Puppet]) -> None:
    """A process may go down to the least that a process with CAP_SYS_RESOURCE ever gave it. Raised with that, and set
    back with it, the floor would be the value before.
    """
    write(processes[0].pid, -500)  # its floor
    processes[0].do(_DROP)
    processes[0].do("open('/proc/self/oom_score_adj', 'w').write('100')")
    journal.restore(journal.mark(pod, "uid"))
    assert read(processes[0].pid) == 100
    processes[0].do("open('/proc/self/oom_score_adj', 'w').write('-500')")
    assert read(processes[0].pid) == -500


#: The process does without capabilities from then on: capset(2) of three words of zeros.
_DROP = (
    "head = (ctypes.c_uint32 * 2)(0x20080522, 0); zeros = (ctypes.c_uint32 * 6)(); "
    "assert ctypes.CDLL(None).capset(head, zeros) == 0"
)


def test_this_thread_alone_does_without_a_capability() -> None:
    def effective() -> int:
        lines = Path("/proc/thread-self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("CapEff:")).split()[1], 16)

    kill = 5  # CAP_KILL: root has it everywhere
    assert effective() >> kill & 1, "this test is run as root"
    before = effective()
    with without(kill):
        assert effective() == before & ~(1 << kill)
        with without(kill):
            pass
        assert effective() == before & ~(1 << kill)
    assert effective() == before


def test_a_container_that_ranks_its_processes_keeps_its_order(
    journal: MarkJournal, pod: Path, processes: list[Puppet]
) -> None:
    """At its own limit the kernel goes by these values: raised alike its protected server might die for a worker."""
    below = pod / "c0" / "worker"
    below.mkdir()  # v2: no controllers below a cgroup that has processes
    with Puppet(below) as worker:
        write(worker.pid, 300)
        mark = journal.mark(pod, "uid")
        assert [*values(processes), read(worker.pid)] == [100, 1000, 300]
        assert journal.look_again(mark) == 0
        with Puppet(pod / "c1") as protected:
            write(protected.pid, 0)
            assert journal.look_again(mark) == 0, "it would die for those that it is protected from"
        assert journal.restore(mark) == Restored(restored=1)
        assert [*values(processes), read(worker.pid)] == [100, 200, 300]


def test_who_has_1000_and_is_gone_is_forgotten(journal: MarkJournal, pod: Path, processes: list[Puppet]) -> None:
    """A BestEffort pod is the usual victim: one that starts many short processes would fill the helper's memory."""
    for one in processes:
        write(one.pid, 1000)
    mark = journal.mark(pod, "uid")
    assert (len(mark.processes), mark.raised, left(pod)) == (2, 0, [])
    processes[0].process.kill()
    processes[0].wait()
    journal.look_again(mark)
    assert list(mark.processes) == [processes[1].pid]
    assert journal.restore(mark) == Restored()
    assert read(processes[1].pid) == 1000


def test_each_process_gets_its_own_value_back(pod: Path, tmp_path: Path) -> None:
    """Also one that was forked since. What a process set itself stays, and what has the right value of its own."""
    notes = ScoreNotes(tmp_path)
    scores = OomScores(cgroupfs.detect(), 16 << 30, notes, lambda *_, **__: None)
    with Puppet(pod) as first, Puppet(pod) as second, Puppet(pod) as right:
        for one, value in ((first, 100), (second, 200), (right, 1000)):
            write(one.pid, value)
        right.do("child = os.fork() or time.sleep(600)")
        before = cgroup_procs.pids_below(pod)
        scores.set_pod(found(pod, {"main": pod}))
        assert {read(pid) for pid in before} == {1000}
        first.do("child = os.fork() or time.sleep(600)")
        [child] = cgroup_procs.pids_below(pod) - before
        second.do("open('/proc/self/oom_score_adj', 'w').write('700')")
        notes.close()
        assert [read(pid) for pid in (first.pid, child, second.pid)] == [100, 100, 700]
        assert {read(pid) for pid in before - {first.pid, second.pid}} == {1000}
        assert os.listxattr(pod) == []


def test_of_two_values_by_class_the_own_one_comes_back(pod: Path, tmp_path: Path) -> None:
    """The pod's request changed, or another helper goes on."""
    with Puppet(pod) as one:
        write(one.pid, 100)
        for request, value in (("8Gi", 500), ("4Gi", 750)):
            notes = ScoreNotes(tmp_path)
            scores = OomScores(cgroupfs.detect(), 16 << 30, notes, lambda *_, **__: None)
            scores.set_pod(found(pod, {"main": pod}, {"main": request}))
            assert read(one.pid) == value
        notes.close()
        assert read(one.pid) == 100


def test_processes_that_ended_do_not_fill_the_note(pod: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends and appears again all the time: 64 KiB would be full after an hour."""
    monkeypatch.setattr(oom_values, "_ROOM", 4)
    notes = ScoreNotes(tmp_path)
    with Puppet(pod) as one:
        write(one.pid, 100)
        scores = OomScores(cgroupfs.detect(), 16 << 30, notes, lambda *_, **__: None)
        scores.set_pod(found(pod, {"main": pod}))
        for pid in range(1 << 22, (1 << 22) + 40):  # none has these
            notes.note(pod, "u", {pid: Seen(1, 100, 0, 1000)})
        noted = oom_values.noted_in(pod, lambda _: True)
        assert one.pid in noted
        assert len(noted) < 20
        notes.close()
        assert read(one.pid) == 100
