"""oom_score_adj: the values themselves, and real processes in real cgroups."""

import dataclasses
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from math import inf
from pathlib import Path

import pytest

from monitor.actions import oomadj
from monitor.actions.oom_values import ScoreNotes, seen_now
from monitor.actions.oomadj import OomScores, pod_scores
from monitor.errors import MonitorError
from monitor.kernel import cgroupfs
from monitor.kernel.procfs import Process
from monitor.kernel.sched import has
from monitor.pods.model import FoundPod
from tests import live
from tests.log_lines import LogLines
from tests.policy.builders import container, pod

pytestmark = pytest.mark.kernel
GIB = 1 << 30


def found(cgroup: Path, containers: dict[str, Path], requests: dict[str, str] | None = None) -> FoundPod:
    names = requests if requests is not None else dict.fromkeys(containers, "")
    made = pod("p", *(container(n, **{"memory": r} if r else {}) for n, r in names.items()))
    return FoundPod(dataclasses.replace(made, uid="u"), cgroup, containers)


#: Whether a value may be lowered here (CAP_SYS_RESOURCE).
CAPABLE = has(24)


def read(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def write(pid: int, value: int) -> None:
    Path(f"/proc/{pid}/oom_score_adj").write_text(str(value))


cgroup = live.fixture(live.cgroup, "adj")


Sleeper = Callable[[Path], int]


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    with ExitStack() as stack:
        yield lambda path: stack.enter_context(live.Puppet(path)).pid


@pytest.fixture
def log() -> LogLines:
    return LogLines()


def make_scores(enforce: bool, log: LogLines) -> OomScores:
    notes = ScoreNotes(Path("/state")) if enforce else None  # only its name is used
    return OomScores(cgroupfs.detect(), 16 * GIB, notes, log)


def settle(scores: OomScores) -> int:
    """Look at all that is waiting; in how many turns."""
    turns = 0
    while (due_s := scores.due_s()) < inf:
        time.sleep(due_s)
        scores.settle()
        turns += 1
    return turns


def test_values_by_container() -> None:
    """One known by its cgroup alone is left alone."""
    both = found(Path("/x"), {}, {"big": "8Gi", "small": "1Gi"})
    assert pod_scores(both, 16 * GIB) == {"big": 500, "small": 938}
    assert pod_scores(found(Path("/x"), {}, {"a": ""}), GIB) == {"a": 1000}
    unit = pod("u", container("a"), container("b", memory="1Gi"))
    unit = dataclasses.replace(unit, namespace="", spec_known=False, qos_class_status="Burstable")
    assert pod_scores(FoundPod(unit, Path("/x"), {}), 16 * GIB) == {}


def test_values_follow_the_capacity(cgroup: Path, log: LogLines) -> None:
    scores = make_scores(False, log)
    scores.set_pod(found(cgroup, {"main": cgroup}, {"main": "8Gi"}))
    assert scores._pods["u"].scores == {"main": 500}
    scores.set_capacity(32 * GIB)
    assert scores._pods["u"].scores == {"main": 750}


def test_audit_reports_each_difference_once_and_writes_nothing(cgroup: Path, sleeper: Sleeper, log: LogLines) -> None:
    pid = sleeper(cgroup)
    before = read(pid)
    scores = make_scores(False, log)
    pod = found(cgroup, {"main": cgroup})
    scores.set_pod(pod)
    scores.set_pod(pod)
    settle(scores)
    assert [(message, fields["pid"]) for _, message, fields in log.lines] == [
        ("oom_score_adj differs from the pod's QoS", pid)
    ]
    assert (log.lines[0][2]["is_now"], log.lines[0][2]["should_be"]) == (before, 1000)
    assert read(pid) == before
    assert (scores.mismatches, scores.written) == (1, 0)


@pytest.mark.parametrize("lost", [False, True])
def test_many_new_processes_and_lost_events_cost_one_look_and_rarer_ones_of_a_large_pod(
    cgroup: Path, sleeper: Sleeper, log: LogLines, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """The process connector loses some in every read of a storm, and each time 110 pods were searched."""
    scores = make_scores(False, log)
    scores.set_pod(found(cgroup, {"main": cgroup}))
    settle(scores)
    pid = sleeper(cgroup)
    for _ in range(1000):
        if lost:
            scores.look_at_all_soon()
        else:
            scores.on_process(os.getpid(), cgroupfs.cgroup_id(cgroup))
    assert log.lines == []
    assert settle(scores) == 1
    assert [fields["pid"] for _, _, fields in log.lines] == [pid]
    monkeypatch.setattr(oomadj, "_PACE_NS", 50 * oomadj._SETTLE_NS)  # for each of its processes
    scores.look_soon("u")
    assert 40 * oomadj._SETTLE_NS < 1e9 * scores.due_s() < inf
    scores.look_soon("uid-nobody")


def test_all_processes_of_a_pod_are_looked_at_some_in_each_turn(
    cgroup: Path, sleeper: Sleeper, log: LogLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of a pod with 14,000 had the helper killed as one that hangs."""
    monkeypatch.setattr(oomadj, "_TURN", 2)
    pids = sorted(sleeper(cgroup) for _ in range(5))
    scores = make_scores(True, log)
    scores.set_pod(found(cgroup, {"main": cgroup}))
    done = [[pid for pid in pids if read(pid) == 1000]]
    for _ in range(2):
        assert scores.due_s() == 0
        scores.settle()
        done.append([pid for pid in pids if read(pid) == 1000])
    assert done == [pids[:2], pids[:4], pids]


def test_a_pod_without_values_is_not_walked(cgroup: Path, log: LogLines, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's unit, in which that user made 60,000 cgroups."""
    service = found(cgroup, {"main": cgroup})
    service = dataclasses.replace(service, pod=dataclasses.replace(service.pod, spec_known=False))
    walked: list[Path] = []
    monkeypatch.setattr(oomadj.cgroup_procs, "processes", lambda path, most: walked.append(path) or [])
    scores = make_scores(True, log)
    scores.set_pod(service)
    settle(scores)
    assert walked == []
    scores.set_pod(found(cgroup, {"main": cgroup}))
    assert walked == [cgroup]


def test_enforce_writes_every_container_its_own_value(cgroup: Path, sleeper: Sleeper, log: LogLines) -> None:
    paths = {name: cgroupfs.make(cgroup / name) for name in ("big", "small")}
    pids = {name: sleeper(path) for name, path in paths.items()}
    scores = make_scores(True, log)
    scores.set_pod(found(cgroup, paths, {"big": "8Gi", "small": "1Gi", "homeless": "2Gi"}))
    assert {name: read(pid) for name, pid in pids.items()} == {"big": 500, "small": 938}

    # a container without a cgroup of its own: its processes are somewhere in the pod
    outsider = sleeper(cgroupfs.make(cgroup / "other"))
    scores.on_process(outsider, cgroupfs.cgroup_id(cgroup))
    assert read(outsider) == 875
    # and a process that appears later, reported with the pod's cgroup or found by its own
    late = sleeper(paths["small"])
    scores.on_process(late, cgroupfs.cgroup_id(cgroup))
    assert read(late) == 938
    later = sleeper(paths["big"])
    scores.on_foreign_process(later)
    assert read(later) == 500
    scores.on_foreign_process(os.getpid())  # in no pod
    scores.on_process(2**22 + 1, cgroupfs.cgroup_id(cgroup))  # gone already
    scores.remove_pod("u")
    write(late, 999)
    scores.on_process(late, cgroupfs.cgroup_id(cgroup))
    assert read(late) == 999


def test_refused_lowering_is_reported_once(cgroup: Path, sleeper: Sleeper, log: LogLines) -> None:
    """Guaranteed pods want -997. With CAP_SYS_RESOURCE it is written."""
    pids = [sleeper(cgroup), sleeper(cgroup)]
    for pid in pids:
        write(pid, 700)
    resources = {"cpu": "1", "memory": "1Gi"}
    scores = make_scores(True, log)
    scores.set_pod(FoundPod(pod("p", container("main", limits=resources, **resources)), cgroup, {"main": cgroup}))
    remedies = [str(fields["remedy"]) for _, message, fields in log.lines if "EACCES" in message]
    if CAPABLE:
        assert ([read(pid) for pid in pids], remedies, scores.denied) == ([-997, -997], [], 0)
    else:
        assert ([read(pid) for pid in pids], scores.denied) == ([700, 700], 2)
        [remedy] = remedies
        assert "CAP_SYS_RESOURCE" in remedy


@pytest.mark.parametrize("enforce", [True, False])
def test_a_process_that_left_the_pod_is_left_alone(
    cgroup: Path, sleeper: Sleeper, log: LogLines, enforce: bool
) -> None:
    pod, other = cgroupfs.make(cgroup / "pod"), cgroupfs.make(cgroup / "other")
    gone, stays = sleeper(other), sleeper(pod)
    before = read(gone)
    scores = make_scores(enforce, log)
    scores.set_pod(found(pod, {"main": pod}))
    for pid in (gone, stays):  # as the kernel reported it when the first one still was in the pod
        scores.on_process(pid, cgroupfs.cgroup_id(pod))
    settle(scores)
    assert read(gone) == before
    assert {fields["pid"] for _, _, fields in log.lines} == {stays}
    assert read(stays) == (1000 if enforce else before)


def test_a_process_that_leaves_while_it_is_written_gets_its_value_back(
    cgroup: Path, sleeper: Sleeper, log: LogLines
) -> None:
    pod, other = cgroupfs.make(cgroup / "pod"), cgroupfs.make(cgroup / "other")
    pid = sleeper(other)
    before = read(pid)
    scores = make_scores(True, log)
    scores.set_pod(found(pod, {"main": pod}))
    with Process(pid) as process:
        seen = seen_now(process.started() or 0, before, 1000, pod, str(pod))
        scores._write(scores._pods["u"], process, seen)
    assert (read(pid), scores.written) == (before, 0)


def test_a_process_that_ended_answers_nothing() -> None:
    child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
    with Process(child.pid) as process:
        hierarchy = cgroupfs.detect()
        assert process.comm() is not None
        assert process.memory_cgroup(hierarchy) is not None
        value = process.oom_score_adj()
        assert value == read(child.pid)
        with pytest.raises(MonitorError, match=rf"cannot write 1001 to /proc/{child.pid}/oom_score_adj"):
            process.set_oom_score_adj(1001)
        child.communicate()
        assert (process.comm(), process.memory_cgroup(hierarchy), process.oom_score_adj()) == (None, None, None)
        assert not process.set_oom_score_adj(value)
    with Process(child.pid) as process:
        assert (process.comm(), process.oom_score_adj(), process.set_oom_score_adj(1)) == (None, None, False)


@pytest.mark.parametrize(("value", "differ"), [(-998, 0), (-997, 1), (0, 1)])
def test_the_sandbox_alone_keeps_its_value(
    cgroup: Path, log: LogLines, monkeypatch: pytest.MonkeyPatch, value: int, differ: int
) -> None:
    """It is in no container, and has a value of the runtime's that takes a capability (the one fake): by the name pause
    no process is spared from the OOM killer.
    """
    sandbox, main = cgroupfs.make(cgroup / "sandbox"), cgroupfs.make(cgroup / "main")
    with subprocess.Popen(["sleep", "600"]) as process:
        (sandbox / "cgroup.procs").write_text(str(process.pid))
        monkeypatch.setattr(Process, "oom_score_adj", lambda _: value)
        make_scores(False, log).set_pod(found(cgroup, {"main": main}))
        process.kill()
    reported = [fields["should_be"] for _, _, fields in log.lines if fields.get("pid") == process.pid]
    assert reported == [1000] * differ
