"""The side sets memory.high of a held pod late, behind another pod's reclaim: released meanwhile it keeps its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from monitor.actions.brake_file import BrakeFile
from monitor.actions.hold_journal import HoldJournal
from monitor.actions.slow_down import SlowDowns, slow_down, speed_up
from tests.actions.plain import MIB, PlainPod


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlainPod:
    return PlainPod(tmp_path, monkeypatch)


def at_the_write(
    monkeypatch: pytest.MonkeyPatch,
    value: str,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
) -> None:
    """What happens right before and after ``value`` is written for the first time."""
    real, done = BrakeFile.write, list[str]()

    def write(file: BrakeFile, text: str) -> None:
        is_it = text == value and not done
        if is_it:
            done.append(text)
            before()
        real(file, text)
        if is_it:
            after()

    monkeypatch.setattr(BrakeFile, "write", write)


def test_a_held_pod_is_slowed_down_and_gets_its_own_value_back(pod: PlainPod) -> None:
    brake = pod.held()
    low, own = brake.low, brake.leave_high()
    assert slow_down(pod.path, low, pod.journal) == low == int(pod.high)
    assert speed_up(pod.path, low, own)
    assert pod.high == "max"
    assert not speed_up(pod.path, low, own)
    brake.close()


def test_a_pod_that_was_released_before_it_is_left_alone(pod: PlainPod) -> None:
    """The side is killed before it hears of the end, or never does: nobody would take it back."""
    brake = pod.held()
    low = brake.low
    brake.release()
    assert slow_down(pod.path, low, pod.journal) is None
    assert pod.high == "max"
    brake.close()


@pytest.mark.parametrize("own", ["max", str(112 * MIB)])
@pytest.mark.parametrize("how", ["released", "undone"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_pod_that_is_released_as_it_is_written_gets_its_own_value_back(
    pod: PlainPod, monkeypatch: pytest.MonkeyPatch, own: str, how: str, when: str
) -> None:
    """By the hot process, or by another start; also while the writer reclaims, which takes up to 2.2 s."""
    pod.high = own
    brake = pod.held()
    low = brake.low
    at_the_write(monkeypatch, str(low), **{when: brake.release if how == "released" else pod.undo})
    assert slow_down(pod.path, low, pod.journal) is None
    assert pod.high == own
    brake.close()


def test_what_somebody_else_writes_after_the_release_stays(pod: PlainPod, monkeypatch: pytest.MonkeyPatch) -> None:
    brake = pod.held()

    def meanwhile() -> None:
        brake.release()
        pod.high = str(100 * MIB)

    at_the_write(monkeypatch, str(brake.low), after=meanwhile)
    assert slow_down(pod.path, brake.low, pod.journal) is None
    assert pod.high == str(100 * MIB)
    brake.close()


def test_a_lower_value_of_the_pods_own_stays(pod: PlainPod) -> None:
    brake = pod.held()
    pod.high = str(MIB)
    assert slow_down(pod.path, brake.low, pod.journal) == MIB == int(pod.high)
    brake.close()
    assert pod.high == str(MIB)


def test_only_what_this_hold_has_written_down_is_written(pod: PlainPod, tmp_path: Path) -> None:
    """Another daemon's hold is not ours, nor is another value of this one's, nor what cannot be read."""
    brake = pod.held()
    low, before = brake.low, pod.high
    assert slow_down(pod.path, low, HoldJournal(tmp_path / "another")) is None
    assert slow_down(pod.path, low - 4096, pod.journal) is None
    (tmp_path / "cgroup/other").mkdir()
    (tmp_path / "cgroup/other/memory.high").write_text("max")
    assert slow_down(tmp_path / "cgroup/other", low, pod.journal) is None
    assert pod.high == before
    brake.close()


def test_what_was_not_slowed_down_is_not_taken_back(pod: PlainPod) -> None:
    slow_downs, brake = SlowDowns(pod.state), pod.held()
    low, own = brake.low, brake.leave_high()
    assert slow_downs.begin("uid", pod.path, low, own) == low
    assert slow_downs.uids == {"uid"}
    slow_downs.end("uid")
    assert pod.high == "max"
    brake.release()
    assert slow_downs.begin("uid", pod.path, low, own) is None
    pod.high = str(low)
    slow_downs.end("uid")
    assert pod.high == str(low)
    assert slow_downs.uids == set()
    brake.close()
