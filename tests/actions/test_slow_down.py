"""memory.high of a held pod is set late, behind another pod's reclaim: released meanwhile it keeps its own."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from monitor.actions import slow_down as slow_down_module
from monitor.actions.brake_file import BrakeFile
from monitor.actions.changes import Change
from monitor.actions.pod_brake import ROOM
from tests.actions.plain import MIB, PlainPod, stop

FIRST = str(64 * MIB + ROOM)
LOW = 32 * MIB


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlainPod:
    return PlainPod(tmp_path, monkeypatch)


def at_the_write(
    monkeypatch: pytest.MonkeyPatch,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
) -> None:
    """What happens right before and after the low value is written for the first time."""
    real, done = slow_down_module._write, list[str]()

    def write(file: int, value: str) -> None:
        is_it = value == str(LOW) and not done
        if is_it:
            done.append(value)
            before()
        real(file, value)
        if is_it:
            after()

    monkeypatch.setattr(slow_down_module, "_write", write)


def test_a_held_pod_is_slowed_down_and_gets_its_own_value_back(pod: PlainPod) -> None:
    brake = pod.held()
    assert pod.high == FIRST, "it sleeps a little until then"
    assert pod.asked.come()
    assert pod.high == str(LOW)
    assert brake.in_force()
    brake.close()
    assert pod.high == "max"
    assert not pod.is_noted


def test_it_is_asked_for_once_in_a_hold(pod: PlainPod) -> None:
    brake = pod.held()
    for _ in range(2):
        stop(brake, 100 * MIB)
        assert len(pod.asked.queue) == 1
    assert pod.asked.come()
    stop(brake, 104 * MIB)
    assert pod.asked.queue == []
    assert pod.high == str(LOW)
    brake.release()
    stop(brake, 96 * MIB)
    assert len(pod.asked.queue) == 1
    brake.close()


def test_a_pod_above_a_kubelets_line_keeps_its_page_cache(pod: PlainPod) -> None:
    """Until it is stopped below that."""
    brake = pod.brake()
    assert stop(brake, 96 * MIB, reclaims=False) is not None
    assert pod.asked.queue == []
    assert pod.high == FIRST
    assert stop(brake, 96 * MIB) is not None
    assert pod.asked.low == LOW
    brake.close()


@pytest.mark.parametrize("how", ["below the line", "taken over"])
def test_the_first_value_is_written_once(pod: PlainPod, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """The pod may have more by then, and before Linux 6.16 the hot thread would reclaim."""
    brake = pod.brake()
    stop(brake, 96 * MIB, reclaims=False)
    if how == "taken over":
        brake = pod.brake_of_the_next()
    written: list[str] = []
    real = BrakeFile.write
    monkeypatch.setattr(BrakeFile, "write", lambda f, v: (written.append(f.file), real(f, v))[1])
    (pod.path / "memory.current").write_text(str(80 * MIB))
    stop(brake, 100 * MIB)
    assert "memory.high" not in written
    assert [c.written for c in pod.noted() if c.file == "memory.high"] == [(str(40 * MIB), FIRST)]
    assert pod.asked.come()
    brake.close()
    assert pod.high == "max"


def test_a_pod_that_is_to_cross_the_line_gets_its_own_value_back_before(pod: PlainPod) -> None:
    """Below it a thread takes 0.13 MiB a second, and the kubelet would see nothing. It is asked for again when the pod
    is stopped, whether the thread has come to it meanwhile or not.
    """
    brake = pod.held()
    assert pod.asked.come()
    assert brake.loosen(96 * MIB) is not None
    assert pod.high == "max"
    assert stop(brake, 96 * MIB) is not None
    assert brake.loosen(96 * MIB) is not None
    assert not pod.asked.come(), "that is over"
    assert pod.high == "max"
    assert stop(brake, 96 * MIB) is not None
    assert pod.asked.come()
    assert pod.high == str(LOW)
    brake.close()
    assert pod.high == "max"


def test_a_pod_that_was_released_before_it_is_left_alone(pod: PlainPod) -> None:
    brake = pod.held()
    brake.release()
    assert not pod.asked.come()
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
    at_the_write(monkeypatch, **{when: brake.release if how == "released" else pod.undo})
    assert not pod.asked.come()
    assert pod.high == own
    brake.close()


def test_what_somebody_else_writes_after_the_release_stays(pod: PlainPod, monkeypatch: pytest.MonkeyPatch) -> None:
    brake = pod.held()

    def meanwhile() -> None:
        brake.release()
        pod.high = str(100 * MIB)

    at_the_write(monkeypatch, after=meanwhile)
    assert not pod.asked.come()
    assert pod.high == str(100 * MIB)
    brake.close()


@pytest.mark.parametrize("mib", [1, 100])
def test_what_somebody_else_wrote_meanwhile_stays(pod: PlainPod, mib: int) -> None:
    """A higher one is noticed at the next look, as what takes the brake away."""
    brake = pod.held()
    pod.high = str(mib * MIB)
    assert not pod.asked.come()
    assert pod.high == str(mib * MIB)
    assert not brake.in_force()
    brake.close()
    assert pod.high == str(mib * MIB)


def test_a_cgroup_that_is_made_anew_is_left_alone(pod: PlainPod) -> None:
    brake = pod.held()
    os.removexattr(pod.path, pod.journal.attribute)  # as of the new one
    assert not pod.asked.come()
    assert pod.high == "max"
    brake.close()


@pytest.mark.parametrize("came", [False, True])
def test_a_start_after_a_sigkill_undoes_it(pod: PlainPod, came: bool) -> None:
    """Both values are written down before the thread is asked."""
    brake = pod.held()
    if came:
        assert pod.asked.come()
    pod.undo()
    assert pod.high == "max"
    assert not pod.is_noted
    brake.close()


@pytest.mark.parametrize("came", [False, True])
def test_a_hold_that_is_gone_on_with_is_slowed_down_if_it_was_not(pod: PlainPod, came: bool) -> None:
    """By the next hot process; what the last one set is taken back all the same."""
    last = pod.held()
    if came:
        assert pod.asked.come()
    pod.asked.queue.clear()
    brake = pod.brake_of_the_next()
    (pod.path / "memory.current").write_text(str(80 * MIB))
    assert stop(brake, 100 * MIB) is not None
    assert brake.in_force()
    if came:
        assert pod.asked.queue == []
    else:
        assert pod.asked.low == 40 * MIB
        assert pod.asked.come()
    assert pod.high == str(LOW if came else 40 * MIB)
    brake.close()
    assert pod.high == "max"
    last.close()


def test_a_pod_whose_thaw_waits_as_it_is_written_gets_its_own_value_back(
    pod: PlainPod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """memory.high is put back before the thaw, which may wait for the lock of all cgroups: the thread finds the hold's
    note there still.
    """
    brake = pod.held()
    real = BrakeFile.put_back

    def put_back(file: BrakeFile, change: Change) -> str:
        if file.file == "cgroup.freeze":
            raise Waits
        return real(file, change)

    def begins() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(BrakeFile, "put_back", put_back)
            with pytest.raises(Waits):
                brake.release()

    at_the_write(monkeypatch, before=begins)
    assert not pod.asked.come()
    assert pod.high == "max"
    brake.release()
    assert not pod.is_noted
    brake.close()


class Waits(Exception):
    pass


def test_nobody_else_uses_the_file_that_the_thread_writes(pod: PlainPod) -> None:
    """The kernel has a lock for each open file of a cgroup: a look of the hot thread would wait for the reclaim, 9 ms
    of 9 in a measurement.
    """
    brake = pod.held()
    [wanted] = pod.asked.queue
    os.lseek(wanted.file, 1, os.SEEK_SET)
    whose = [fd for fd in map(int, os.listdir("/proc/self/fd")) if is_at(fd, wanted.file, 1)]
    for file in brake._ledger.files.values():
        assert not {file._read, file._write} & set(whose)
    os.lseek(wanted.file, 0, os.SEEK_SET)
    assert pod.asked.come()
    brake.close()


def is_at(fd: int, like: int, offset: int) -> bool:
    """Whether it is of the same file, and there."""
    try:
        return os.path.samestat(os.fstat(fd), os.fstat(like)) and os.lseek(fd, 0, os.SEEK_CUR) == offset
    except OSError:
        return False


def test_what_was_not_taken_is_asked_for_again(pod: PlainPod, monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor was left, or too much is waiting."""
    brake, refusals = pod.brake(), [OSError(errno.EMFILE, "too many open files"), False]

    def refuse(*_: object) -> bool:
        answer = refusals.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(pod.asked, "begin", refuse)
        for _ in range(2):
            braked = stop(brake, 96 * MIB)
            assert braked is not None
            assert braked.brake == "limit+high+freeze"
    assert stop(brake, 96 * MIB) is not None
    assert pod.asked.come()
    assert pod.high == str(LOW)
    brake.close()
    assert pod.high == "max"
