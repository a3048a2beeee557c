"""oom_score_adj: the values themselves, and real processes in real cgroups."""

import dataclasses
import os
import subprocess
import time
from collections.abc import Iterator
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


class Bench:
    """A cgroup, processes in it, and the log of what looks at them."""

    def __init__(self, cgroup: Path, stack: ExitStack) -> None:
        self.cgroup, self._stack, self.log = cgroup, stack, LogLines()

    def sleeper(self, path: Path | None = None) -> int:
        """The pid of a process in the cgroup, or in this one."""
        return self._stack.enter_context(live.Puppet(path or self.cgroup)).pid

    def scores(self, enforce: bool) -> OomScores:
        notes = ScoreNotes(Path("/state")) if enforce else None  # only its name is used
        return OomScores(cgroupfs.detect(), 16 * GIB, notes, self.log)

    def pod(self, requests: dict[str, str] | None = None) -> FoundPod:
        """Of one container, whose cgroup is the pod's."""
        return found(self.cgroup, {"main": self.cgroup}, requests)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with live.cgroup("adj") as cgroup, ExitStack() as stack:
        yield Bench(cgroup, stack)


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


def test_values_follow_the_capacity(bench: Bench) -> None:
    scores = bench.scores(False)
    scores.set_pod(bench.pod({"main": "8Gi"}))
    assert scores._pods["u"].scores == {"main": 500}
    scores.set_capacity(32 * GIB)
    assert scores._pods["u"].scores == {"main": 750}


def test_audit_reports_each_difference_once_and_writes_nothing(bench: Bench) -> None:
    pid = bench.sleeper()
    before = read(pid)
    scores = bench.scores(False)
    pod = bench.pod()
    scores.set_pod(pod)
    scores.set_pod(pod)
    settle(scores)
    assert [(message, fields["pid"]) for _, message, fields in bench.log.lines] == [
        ("oom_score_adj differs from the pod's QoS", pid)
    ]
    assert (bench.log.lines[0][2]["is_now"], bench.log.lines[0][2]["should_be"]) == (before, 1000)
    assert read(pid) == before
    assert (scores.mismatches, scores.written) == (1, 0)


@pytest.mark.parametrize("lost", [False, True])
def test_many_new_processes_and_lost_events_cost_one_look_and_rarer_ones_of_a_large_pod(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """The process connector loses some in every read of a storm, and each time 110 pods were searched."""
    scores = bench.scores(False)
    scores.set_pod(bench.pod())
    settle(scores)
    pid = bench.sleeper()
    for _ in range(1000):
        if lost:
            scores.look_at_all_soon()
        else:
            scores.on_process(os.getpid(), cgroupfs.cgroup_id(bench.cgroup))
    assert bench.log.lines == []
    assert settle(scores) == 1
    assert [fields["pid"] for _, _, fields in bench.log.lines] == [pid]
    monkeypatch.setattr(oomadj, "_PACE_NS", 50 * oomadj._SETTLE_NS)  # for each of its processes
    scores.look_soon("u")
    assert 40 * oomadj._SETTLE_NS < 1e9 * scores.due_s() < inf
    scores.look_soon("uid-nobody")


def test_all_processes_of_a_pod_are_looked_at_some_in_each_turn(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of a pod with 14,000 had the helper killed as one that hangs."""
    monkeypatch.setattr(oomadj, "_TURN", 2)
    pids = sorted(bench.sleeper() for _ in range(5))
    scores = bench.scores(True)
    scores.set_pod(bench.pod())
    done = [[pid for pid in pids if read(pid) == 1000]]
    for _ in range(2):
        assert scores.due_s() == 0
        scores.settle()
        done.append([pid for pid in pids if read(pid) == 1000])
    assert done == [pids[:2], pids[:4], pids]


def test_a_pod_without_values_is_not_walked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's unit, in which that user made 60,000 cgroups."""
    service = bench.pod()
    service = dataclasses.replace(service, pod=dataclasses.replace(service.pod, spec_known=False))
    walked: list[Path] = []
    monkeypatch.setattr(oomadj.cgroup_procs, "processes", lambda path, most: walked.append(path) or [])
    scores = bench.scores(True)
    scores.set_pod(service)
    settle(scores)
    assert walked == []
    scores.set_pod(bench.pod())
    assert walked == [bench.cgroup]


def test_enforce_writes_every_container_its_own_value(bench: Bench) -> None:
    paths = {name: cgroupfs.make(bench.cgroup / name) for name in ("big", "small")}
    pids = {name: bench.sleeper(path) for name, path in paths.items()}
    scores = bench.scores(True)
    scores.set_pod(found(bench.cgroup, paths, {"big": "8Gi", "small": "1Gi", "homeless": "2Gi"}))
    assert {name: read(pid) for name, pid in pids.items()} == {"big": 500, "small": 938}

    # a container without a cgroup of its own: its processes are somewhere in the pod
    outsider = bench.sleeper(cgroupfs.make(bench.cgroup / "other"))
    scores.on_process(outsider, cgroupfs.cgroup_id(bench.cgroup))
    assert read(outsider) == 875
    # and a process that appears later, reported with the pod's cgroup or found by its own
    late = bench.sleeper(paths["small"])
    scores.on_process(late, cgroupfs.cgroup_id(bench.cgroup))
    assert read(late) == 938
    later = bench.sleeper(paths["big"])
    scores.on_foreign_process(later)
    assert read(later) == 500
    scores.on_foreign_process(os.getpid())  # in no pod
    scores.on_process(2**22 + 1, cgroupfs.cgroup_id(bench.cgroup))  # gone already
    scores.remove_pod("u")
    write(late, 999)
    scores.on_process(late, cgroupfs.cgroup_id(bench.cgroup))
    assert read(late) == 999


def test_refused_lowering_is_reported_once(bench: Bench) -> None:
    """Guaranteed pods want -997. With CAP_SYS_RESOURCE it is written."""
    pids = [bench.sleeper(), bench.sleeper()]
    for pid in pids:
        write(pid, 700)
    resources = {"cpu": "1", "memory": "1Gi"}
    guaranteed = pod("p", container("main", limits=resources, **resources))
    scores = bench.scores(True)
    scores.set_pod(dataclasses.replace(bench.pod(), pod=guaranteed))
    remedies = [str(fields["remedy"]) for _, message, fields in bench.log.lines if "EACCES" in message]
    if CAPABLE:
        assert ([read(pid) for pid in pids], remedies, scores.denied) == ([-997, -997], [], 0)
    else:
        assert ([read(pid) for pid in pids], scores.denied) == ([700, 700], 2)
        [remedy] = remedies
        assert "CAP_SYS_RESOURCE" in remedy


@pytest.mark.parametrize("enforce", [True, False])
def test_a_process_that_left_the_pod_is_left_alone(bench: Bench, enforce: bool) -> None:
    pod, other = cgroupfs.make(bench.cgroup / "pod"), cgroupfs.make(bench.cgroup / "other")
    gone, stays = bench.sleeper(other), bench.sleeper(pod)
    before = read(gone)
    scores = bench.scores(enforce)
    scores.set_pod(found(pod, {"main": pod}))
    for pid in (gone, stays):  # as the kernel reported it when the first one still was in the pod
        scores.on_process(pid, cgroupfs.cgroup_id(pod))
    settle(scores)
    assert read(gone) == before
    assert {fields["pid"] for _, _, fields in bench.log.lines} == {stays}
    assert read(stays) == (1000 if enforce else before)


def test_a_process_that_leaves_while_it_is_written_gets_its_value_back(bench: Bench) -> None:
    pod, other = cgroupfs.make(bench.cgroup / "pod"), cgroupfs.make(bench.cgroup / "other")
    pid = bench.sleeper(other)
    before = read(pid)
    scores = bench.scores(True)
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
    bench: Bench, monkeypatch: pytest.MonkeyPatch, value: int, differ: int
) -> None:
    """It is in no container, and has a value of the runtime's that takes a capability (the one fake): by the name pause
    no process is spared from the OOM killer.
    """
    sandbox, main = cgroupfs.make(bench.cgroup / "sandbox"), cgroupfs.make(bench.cgroup / "main")
    with subprocess.Popen(["sleep", "600"]) as process:
        (sandbox / "cgroup.procs").write_text(str(process.pid))
        monkeypatch.setattr(Process, "oom_score_adj", lambda _: value)
        bench.scores(False).set_pod(found(bench.cgroup, {"main": main}))
        process.kill()
    reported = [fields["should_be"] for _, _, fields in bench.log.lines if fields.get("pid") == process.pid]
    assert reported == [1000] * differ
