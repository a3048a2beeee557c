"""The pod the OOM killer is guided to, by the messages of the hot process: real processes, journal and cgroups."""

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monitor.kernel import cgroupfs
from monitor.link.messages import Gone, Suspended
from monitor.pods.model import FoundPod
from monitor.settings.config import RunConfig
from monitor.side.process_watch import LOOK_S, ProcessWatch, VictimMarks
from tests import live
from tests.daemon.harness import DECISION, STATE
from tests.log_lines import LogLines
from tests.policy.builders import container, pod
from tests.puppet import Puppet
from tests.side.parts import Parts

pytestmark = [pytest.mark.kernel, pytest.mark.oldest]
NAMES = ("a", "b", "critical")
SUSPENDED = Suspended(1, "outgrown", 1, "memory.available", "node", "hard", 1, 1, 1, 1, 1, 1, 1, "a", "ns/a", ())


class Bench:
    """Three pods with a process each; the thread's turns are made by the test, on a clock of its own."""

    def __init__(self, root: Path, state_dir: Path, stack: ExitStack) -> None:
        self.now, self.pass_s = 1000.0, 0.0  # a look at the clock takes so long
        self.log = LogLines()
        self.pods: dict[str, FoundPod] = {}
        self.processes: dict[str, Puppet] = {}
        for number, name in enumerate(NAMES):
            cgroup = cgroupfs.make(root / name)
            self.pods[name] = found(name, cgroup)
            self.processes[name] = stack.enter_context(Puppet(cgroup))
            self.write(name, 100 * (number + 1))
        config = RunConfig(state_dir=str(state_dir), enforce=True)
        known = Parts(config, cgroupfs.detect(), 1 << 30, pods=self.pods, log=self.log)
        self.set_back: list[str] = []
        self.known, self.marks = known, VictimMarks(known.node, self.log, self.set_back.append, self.clock)

    def watch(self) -> ProcessWatch:
        """Of one pod, whose class has another value than its process."""
        cgroup = self.pods["a"].cgroup
        made = replace(pod("a", container(memory="512Mi")), uid="a")
        self.pods.clear()
        self.pods["a"] = FoundPod(made, cgroup, {"c": cgroup}, (cgroupfs.cgroup_id(cgroup),))
        return self.known.processes()

    def clock(self) -> float:
        self.now += self.pass_s
        return self.now

    def write(self, name: str, adj: int) -> None:
        Path(f"/proc/{self.processes[name].pid}/oom_score_adj").write_text(str(adj))

    @property
    def values(self) -> list[int]:
        return [int(Path(f"/proc/{one.pid}/oom_score_adj").read_text()) for one in self.processes.values()]

    def state(self, victim: str | None, armed: bool = True) -> bool:
        """Whether another pod is to be marked."""
        is_new = self.marks.take(STATE._replace(victim=victim, armed=armed, ready=True))
        self.marks.turn()
        return is_new


def found(name: str, cgroup: Path) -> FoundPod:
    made = replace(pod(name, priority=2_000_001_000 if name == "critical" else 0), uid=name)
    return FoundPod(made, cgroup, {}, (cgroupfs.cgroup_id(cgroup),))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with live.cgroup("victims") as root, ExitStack() as stack:
        yield Bench(root, tmp_path, stack)


def test_the_next_victim_is_marked_and_the_one_passed_over_is_not_any_more(bench: Bench) -> None:
    assert bench.state("a")
    assert bench.values == [1000, 200, 300]
    assert {uid: mark.raised for uid, mark in bench.marks.marks.items()} == {"a": 1}
    assert bench.state("b")
    assert bench.values == [100, 1000, 300]
    assert (bench.set_back, list(bench.marks.marks)) == (["a"], ["b"])
    assert not bench.state("b")


@pytest.mark.parametrize("end", [{"armed": False}, {"victim": None}])
def test_nobody_is_marked_far_from_a_threshold(bench: Bench, end: dict[str, Any]) -> None:
    bench.state("a")
    bench.state(**{"victim": "a", "armed": True} | end)
    assert bench.values == [100, 200, 300]
    assert bench.set_back == ["a"]


def test_nobody_is_marked_while_evictions_would_not_help(bench: Bench) -> None:
    """Else the kernel would kill small pods, one after the other, for what something else takes."""
    bench.state("a")
    bench.marks.take(SUSPENDED)
    bench.marks.turn()
    assert bench.values == [100, 200, 300]
    bench.marks.take(STATE._replace(victim="a", armed=True, ready=True, braked={"reason": "outgrown"}))
    bench.marks.turn()
    assert bench.values == [100, 200, 300]
    bench.state("a")
    assert bench.values == [1000, 200, 300]


def test_a_mark_that_would_cost_a_pod_for_nothing_does_not_wait_for_the_rest_after_a_turn(bench: Bench) -> None:
    """A turn of 10 s, as on a machine without a CPU to spare: it would rest for 200 s."""
    bench.pass_s = 10.0
    bench.state("a")
    bench.state("b")
    assert bench.values == [1000, 200, 300], "it rests"
    assert bench.marks.take(SUSPENDED)
    bench.marks.turn()
    assert bench.values == [100, 200, 300]
    bench.marks.turn()
    assert bench.marks.take(SUSPENDED), "no pause, whatever came before"


def test_a_critical_pod_and_one_of_unknown_spec_are_never_marked(bench: Bench) -> None:
    assert not bench.marks.take(STATE._replace(victim="a", armed=True, ready=False))  # not all are known
    assert not bench.state("critical")
    bench.pods["a"] = replace(bench.pods["a"], pod=replace(bench.pods["a"].pod, spec_known=False))
    assert not bench.state("a")
    assert not bench.state("nobody knows it")
    assert bench.values == [100, 200, 300]


def test_the_monitors_own_pod_is_not_marked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.side.process_watch.os.getpid", lambda: bench.processes["a"].pid)
    bench.state("a")
    assert bench.marks.marks == {}
    assert bench.values == [100, 200, 300]


def test_a_pod_that_is_evicted_keeps_its_mark_until_it_is_gone(bench: Bench) -> None:
    bench.state("a")
    bench.marks.take(DECISION._replace(pod="a", observed=True))
    bench.state("b")
    assert bench.values == [100, 1000, 300], "a decision that is only observed ends nothing"
    bench.state("a")
    bench.marks.take(DECISION._replace(pod="a", observed=False))
    bench.state("b")
    assert bench.values == [1000, 1000, 300]
    bench.marks.take(Gone(1, "a", "a", id=1))
    bench.state("b")
    assert bench.values == [100, 1000, 300]


def test_new_processes_are_raised_soon(bench: Bench) -> None:
    bench.state("a")
    with Puppet(bench.pods["a"].cgroup) as late:
        path = Path(f"/proc/{late.pid}/oom_score_adj")
        path.write_text("150")
        assert bench.marks.turn() == pytest.approx(LOOK_S)  # not at once: a fork bomb would have it look all the time
        assert path.read_text() == "150\n"
        bench.now += LOOK_S
        assert bench.marks.turn() == pytest.approx(LOOK_S)
        assert path.read_text() == "1000\n"
        bench.state("b")
        assert path.read_text() == "150\n"


def test_the_value_by_class_is_written_again_when_the_mark_is_gone(bench: Bench) -> None:
    """While a pod is marked its values are not compared; afterwards those of its QoS class win."""
    processes, cgroup = bench.watch(), bench.pods["a"].cgroup
    processes.turn()
    assert bench.values[0] == 500
    processes.handle(STATE._replace(victim="a", armed=True, ready=True))
    processes.turn()
    processes.scores.on_process(bench.processes["a"].pid, cgroupfs.cgroup_id(cgroup))
    assert (bench.values[0], len(bench.log.lines)) == (1000, 2)
    bench.write("a", 700)  # by another process, meanwhile
    processes.handle(SUSPENDED)
    processes.turn()
    assert bench.values[0] == 500


def test_its_thread_writes_values_marks_and_puts_both_back_at_the_end(bench: Bench) -> None:
    processes = bench.watch()
    processes.start()
    live.until(lambda: bench.values[0] == 500, "the value by class")
    processes.handle(STATE._replace(victim="a", armed=True, ready=True))
    live.until(lambda: bench.values[0] == 1000, "the mark")
    processes.close(live.TIMEOUT_S)
    assert not processes.is_alive()
    assert bench.values == [100, 200, 300]


def test_what_cannot_be_kept_is_not_raised_and_tried_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    with monkeypatch.context() as patch:
        patch.setattr(os, "setxattr", refused)
        bench.state("a")
        assert bench.values == [100, 200, 300]
        bench.marks.turn()
    [line] = bench.log.lines
    assert line[:2] == ("error", "oom_score_adj of a pod's processes cannot be set")
    bench.marks.turn()
    assert bench.values == [1000, 200, 300]
