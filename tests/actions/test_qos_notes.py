"""oom_score_adj that was written by QoS class: each process gets its own value back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.actions import oom_values, qos_notes
from monitor.actions.oomadj import OomScores
from monitor.actions.qos_notes import ScoreNotes, Wanted
from monitor.kernel import cgroup_procs, cgroupfs
from tests import live
from tests.actions.test_oomadj import found, read
from tests.puppet import Puppet

pytestmark = [pytest.mark.kernel, pytest.mark.oldest]


@pytest.fixture
def pod() -> Iterator[Path]:
    with live.cgroup("qos") as path:
        yield cgroupfs.make(path / "pod")


def test_each_process_gets_its_own_value_back(pod: Path, tmp_path: Path) -> None:
    """Also one that was forked since. What a process set itself stays, and what has the right value of its own."""
    notes = ScoreNotes(tmp_path)
    scores = OomScores(cgroupfs.detect(), 16 << 30, notes, lambda *_, **__: None)
    with Puppet(pod) as first, Puppet(pod) as second, Puppet(pod) as right:
        for one, value in ((first, 100), (second, 200), (right, 1000)):
            Path(f"/proc/{one.pid}/oom_score_adj").write_text(str(value))
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
    """The pod's request changed, or another side goes on."""
    with Puppet(pod) as one:
        Path(f"/proc/{one.pid}/oom_score_adj").write_text("100")
        for request, value in (("8Gi", 500), ("4Gi", 750)):
            notes = ScoreNotes(tmp_path)
            scores = OomScores(cgroupfs.detect(), 16 << 30, notes, lambda *_, **__: None)
            scores.set_pod(found(pod, {"main": pod}, {"main": request}))
            assert read(one.pid) == value
        notes.close()
        assert read(one.pid) == 100


def test_processes_that_ended_do_not_fill_the_note(pod: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends and appears again all the time: 64 KiB would be full after an hour."""
    monkeypatch.setattr(qos_notes, "_ROOM", 4)
    notes = ScoreNotes(tmp_path)
    with Puppet(pod) as one:
        Path(f"/proc/{one.pid}/oom_score_adj").write_text("100")
        scores = OomScores(cgroupfs.detect(), 16 << 30, notes, lambda *_, **__: None)
        scores.set_pod(found(pod, {"main": pod}))
        for pid in range(1 << 22, (1 << 22) + 40):  # none has these
            notes.note(found(pod, {}), [Wanted(pid, 1, 100, 1000, str(pod))])
        noted = oom_values.noted_in(pod, lambda _: True)
        assert one.pid in noted
        assert len(noted) < 20
        notes.close()
        assert read(one.pid) == 100
