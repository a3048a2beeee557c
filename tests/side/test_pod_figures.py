"""What the side keeps of every pod's last half minute: bounded, thinned, and from files where counters stand still."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, call

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.pods.model import FoundPod
from monitor.policy.pods import pod_from_object
from monitor.race.events import WorkingSets
from monitor.race.figure_age import PodPoints
from monitor.side import pod_figures as module
from monitor.side.pod_figures import STEP, FileReader, PodFigures, PodFiguresThread
from monitor.side.races import Races
from tests import live

S = 1_000_000_000
MIB = 1 << 20


def reported(figures: PodFigures, now_s: float) -> WorkingSets:
    found = figures.report(round(now_s * S))
    assert found is not None
    return found


def test_pods_that_moved_are_reported_with_their_moves() -> None:
    figures = PodFigures()
    for second, hog in enumerate([10, 10, 50, 50, 90], start=1):
        figures.note(second * S, {"hog": hog * MIB, "cart": 100 * MIB})
    found = reported(figures, 5)
    assert (found.ts_ns, found.since_ns) == (5 * S, 1 * S)
    assert found.pods == (PodPoints("hog", False, ((1 * S, 10 * MIB), (3 * S, 50 * MIB), (5 * S, 90 * MIB))),)


def test_a_pod_that_came_is_new_also_where_it_stands_still() -> None:
    figures = PodFigures()
    figures.note(1 * S, {"old": MIB})
    figures.note(2 * S, {"old": MIB, "new": 5 * MIB})
    assert reported(figures, 2).pods == (PodPoints("new", True, ((2 * S, 5 * MIB),)),)
    for second in range(3, 60):
        figures.note(second * S, {"old": MIB, "new": 5 * MIB})
    assert reported(figures, 60).pods == ()


def test_one_that_could_not_be_read_keeps_its_figure_and_one_that_went_is_forgotten() -> None:
    figures = PodFigures()
    figures.note(1 * S, {"a": MIB, "b": MIB})
    figures.note(2 * S, {"a": None, "b": None})
    figures.note(3 * S, {"a": 9 * MIB})
    assert reported(figures, 3).pods == (PodPoints("a", False, ((1 * S, MIB), (3 * S, 9 * MIB))),)


def test_old_figures_are_not_reported() -> None:
    figures = PodFigures()
    assert figures.report(5 * S) is None
    for second in range(1, 50):
        figures.note(second * S, {"hog": second * MIB})
    found = reported(figures, 49)
    assert found.since_ns == 24 * S
    assert [ts for ts, _ in found.pods[0].points] == [second * S for second in range(24, 50)]
    assert figures.report(900 * S) is None


def test_what_is_kept_and_reported_has_a_budget_and_begins_with_those_that_moved_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_POINTS", 5)
    figures = PodFigures()
    for second in (1, 2):
        figures.note(second * S, {f"p{i}": MIB + second * i * MIB for i in range(10)})
    assert [one.pod for one in reported(figures, 2).pods] == ["p9", "p8"]
    figures.note(1 * S, {"p9": 9 * MIB})  # by a thread that began before, and came later
    assert reported(figures, 2).since_ns == 1 * S
    monkeypatch.setattr(module, "_PODS", 3)
    figures.note(3 * S, {f"q{i}": MIB for i in range(10)})
    assert len(figures._rows) == 3


@given(st.lists(st.lists(st.none() | st.integers(0, 1 << 40), min_size=3, max_size=3), max_size=50))
def test_a_reported_figure_was_seen_and_none_is_farther_off_than_a_batch(looks: list[list[int | None]]) -> None:
    figures = PodFigures()
    last: list[int | None] = [None] * 3
    seen: list[dict[str, int | None]] = []
    for second, sizes in enumerate(looks, start=1):
        figures.note(second * S, {f"p{i}": size for i, size in enumerate(sizes)})
        last = [old if size is None else size for old, size in zip(last, sizes, strict=True)]
        seen.append({f"p{i}": size for i, size in enumerate(last)})
    found = figures.report(len(looks) * S)
    for one in found.pods if found is not None else ():
        for ts, size in one.points:
            assert seen[ts // S - 1][one.pod] == size
        held = one.points[0][1]
        for second in range(one.points[0][0] // S, len(looks) + 1):
            held = dict(one.points).get(second * S, held)
            now = seen[second - 1][one.pod]
            assert now is not None
            assert abs(now - held) < STEP


# from files


def write(cgroup: Path, usage: int, inactive: int = 0) -> None:
    cgroup.mkdir(exist_ok=True)
    (cgroup / "memory.usage_in_bytes").write_text(f"{usage}\n")
    (cgroup / "memory.stat").write_text(f"total_inactive_file {inactive}\ntotal_active_file 0\n")
    (cgroup / "memory.limit_in_bytes").write_text(f"{(1 << 63) - 4096}\n")


def found_in(cgroup: Path) -> FoundPod:
    pod = pod_from_object({"metadata": {"uid": "u", "name": "a", "namespace": "n"}, "spec": {"containers": []}})
    return FoundPod(pod, cgroup, {})


def test_files_of_a_pod_that_did_not_move_are_read_whole_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a", 100 * MIB, 10 * MIB)
    reader, pods = FileReader(Hierarchy(1, tmp_path)), {"u": found_in(tmp_path / "a")}
    whole: list[Path] = []
    read = cgroupfs.read_cgroup
    monkeypatch.setattr(cgroupfs, "read_cgroup", lambda h, path: whole.append(path) or read(h, path))
    assert reader.read(pods, 1 * S) == {"u": 90 * MIB}
    write(tmp_path / "a", 100 * MIB, 50 * MIB)  # page cache that turned inactive
    assert reader.read(pods, 2 * S) == {"u": 90 * MIB}
    assert reader.read(pods, 11 * S) == {"u": 50 * MIB}
    write(tmp_path / "a", 200 * MIB, 50 * MIB)
    assert reader.read(pods, 12 * S) == {"u": 150 * MIB}
    assert len(whole) == 3
    assert reader.read({"gone": found_in(tmp_path / "b")}, 13 * S) == {"gone": None}
    assert set(reader._known) == set()


@pytest.mark.kernel
def test_the_real_files_hold_what_the_kernel_counts() -> None:
    with live.cgroup("figures") as cgroup, live.Puppet(cgroup) as puppet:
        puppet.do("anon(8)")
        hierarchy = cgroupfs.detect()
        reader = FileReader(hierarchy)
        (size,) = reader.read({"u": found_in(cgroup)}, S).values()
        assert size is not None
        assert size >= 8 * MIB
        assert abs(cgroupfs.usage(hierarchy, cgroup) - cgroupfs.read_cgroup(hierarchy, cgroup).usage) < MIB


def test_the_thread_looks_while_the_counters_stand_still_alone_until_it_is_closed(tmp_path: Path) -> None:
    write(tmp_path / "a", 100 * MIB)
    armed = {"armed": 1}
    view: Any = SimpleNamespace(
        hierarchy=Hierarchy(1, tmp_path), stats=SimpleNamespace(get=armed.get), pods={"u": found_in(tmp_path / "a")}
    )
    figures = PodFigures()
    thread = PodFiguresThread(view, figures)
    assert thread.look() == module._LEAST_S
    assert not figures._rows
    armed["armed"] = 0
    assert module._LEAST_S <= thread.look() <= module._MOST_S
    assert set(figures._rows) == {"u"}
    figures._rows.clear()
    thread.start()
    live.until(lambda: bool(figures._rows), "a look")
    thread.close()
    live.until(lambda: not thread._thread.is_alive(), "its end")


def test_the_thread_ends_with_the_incidents() -> None:
    """It went on while the side process closed."""
    races = Races.__new__(Races)
    for name in ("_pod_figures", "event_builder", "judge"):
        setattr(races, name, MagicMock())
    races.recorder = races.alerts = None
    races.close(1.0, 1.0)
    assert races._pod_figures.mock_calls == [call.close()]  # type: ignore[attr-defined]
