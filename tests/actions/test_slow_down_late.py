"""A hold that ends before the thread has set memory.high: what it may still write comes back all the same."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from monitor.actions.pod_brake import ROOM
from tests.actions.plain import MIB, PlainPod, stop
from tests.actions.test_slow_down import FIRST, LOW, Waits, at_the_write


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlainPod:
    return PlainPod(tmp_path, monkeypatch)


def test_what_was_written_stays_written_down_until_the_thread_has_come_to_it(pod: PlainPod) -> None:
    brake = pod.held()
    brake.release()
    assert pod.high == "max"
    for _ in range(2):
        assert not brake.go_on(), "not at once: it may take seconds"
        assert [c.file for c in pod.noted()] == ["memory.high"]
    assert not pod.asked.come()
    brake.go_on()
    assert brake.is_clear
    assert not pod.is_noted
    brake.close()


def test_a_sigkill_after_the_release_as_it_is_written_leaves_nothing(
    pod: PlainPod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the thread can take it back: the write itself takes up to 2.2 s."""
    brake = pod.held()

    def sigkill() -> None:
        raise Waits

    at_the_write(monkeypatch, before=brake.release, after=sigkill)
    with pytest.raises(Waits):
        pod.asked.come()
    assert pod.high == str(LOW)
    pod.undo()
    assert pod.high == "max"
    assert not pod.is_noted
    brake.close()


def test_what_the_thread_could_not_take_back_is_taken_back_after_it(
    pod: PlainPod, monkeypatch: pytest.MonkeyPatch
) -> None:
    brake = pod.held()

    def refused() -> None:
        raise OSError(errno.EIO, "no")

    at_the_write(monkeypatch, before=brake.release, after=refused)
    with pytest.raises(OSError, match="no"):
        pod.asked.come()
    assert pod.high == str(LOW)
    brake.go_on()
    assert pod.high == "max"
    assert not pod.is_noted
    brake.close()


def test_a_pod_that_is_held_again_before_the_thread_has_come_to_it(pod: PlainPod) -> None:
    """What that may still write is written down with the new values."""
    brake = pod.held()
    brake.release()
    (pod.path / "memory.current").write_text(str(80 * MIB))
    assert stop(brake, 100 * MIB) is not None
    [change] = [c for c in pod.noted() if c.file == "memory.high"]
    assert set(change.written) == {str(LOW), FIRST, str(40 * MIB), str(80 * MIB + ROOM)}
    assert change.old == "max"
    assert not pod.asked.come(), "another value is there"
    assert pod.asked.come()
    assert pod.high == str(40 * MIB)
    brake.release()
    brake.go_on()
    assert pod.high == "max"
    assert not pod.is_noted
    brake.close()
