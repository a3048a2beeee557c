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
from monitor.actions.pod_brake import ROOM, PodBrake
from tests.actions.plain import MIB, PlainPod, stop

OWN, FIRST, LOW = "max", str(64 * MIB + ROOM), str(32 * MIB)
#: The same of a pod that has 80 MiB by then.
FIRST_80, LOW_80 = str(80 * MIB + ROOM), str(40 * MIB)


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlainPod:
    return PlainPod(tmp_path, monkeypatch)


class Story:
    """A hold of the pod: after each step its memory.high is asked for, and for how many holds the thread is asked."""

    def __init__(self, pod: PlainPod) -> None:
        self.pod, self.brakes = pod, [pod.brake()]

    @property
    def brake(self) -> PodBrake:
        return self.brakes[-1]

    def hold(self) -> None:
        assert stop(self.brake, 96 * MIB) is not None
        assert self.brake.in_force()

    def hold_above_the_kubelets_line(self) -> None:
        assert stop(self.brake, 96 * MIB, reclaims=False) is not None

    def let_cross_the_line(self) -> None:
        assert self.brake.loosen(96 * MIB) is not None

    def release(self) -> None:
        self.brake.release()

    def the_thread_comes(self) -> None:
        assert self.pod.asked.come()

    def the_thread_comes_too_late(self) -> None:
        assert not self.pod.asked.come()

    def the_pod_grows(self) -> None:
        (self.pod.path / "memory.current").write_text(str(80 * MIB))

    def another_program_writes_1_mib(self) -> None:
        self.pod.high = str(MIB)

    def another_program_writes_100_mib(self) -> None:
        self.pod.high = str(100 * MIB)

    def the_cgroup_is_made_anew(self) -> None:
        os.removexattr(self.pod.path, self.pod.journal.attribute)

    def the_next_start_undoes(self) -> None:
        self.pod.undo()

    def another_hot_process_goes_on(self) -> None:
        self.pod.asked.queue.clear()
        self.brakes.append(self.pod.brake_of_the_next())

    def close(self) -> None:
        for brake in reversed(self.brakes):
            brake.close()


S = Story
STORIES = {
    "slowed down": [(S.hold, FIRST, 1), (S.the_thread_comes, LOW, 0), (S.release, OWN, 0)],
    "asked for once in a hold": [
        *[(S.hold, FIRST, 1)] * 3, (S.the_thread_comes, LOW, 0), (S.hold, LOW, 0), (S.release, OWN, 0),
        (S.hold, FIRST, 1),
    ],
    "a pod above a kubelet's line keeps its page cache": [
        (S.hold_above_the_kubelets_line, FIRST, 0), (S.hold, FIRST, 1), (S.the_thread_comes, LOW, 0),
    ],
    # Below memory.high a thread takes 0.13 MiB a second, and the kubelet would see nothing.
    "a pod that is to cross the line has its own value": [
        (S.hold, FIRST, 1), (S.the_thread_comes, LOW, 0), (S.let_cross_the_line, OWN, 0), (S.hold, FIRST, 1),
        (S.let_cross_the_line, OWN, 1), (S.the_thread_comes_too_late, OWN, 0), (S.hold, FIRST, 1),
        (S.the_thread_comes, LOW, 0), (S.release, OWN, 0),
    ],
    "released before": [(S.hold, FIRST, 1), (S.release, OWN, 1), (S.the_thread_comes_too_late, OWN, 0)],
    "a lower value of another program stays": [
        (S.hold, FIRST, 1), (S.another_program_writes_1_mib, str(MIB), 1), (S.the_thread_comes_too_late, str(MIB), 0),
        (S.release, str(MIB), 0),
    ],
    "a higher value of another program stays": [
        (S.hold, FIRST, 1), (S.another_program_writes_100_mib, str(100 * MIB), 1),
        (S.the_thread_comes_too_late, str(100 * MIB), 0), (S.release, str(100 * MIB), 0),
    ],
    "a cgroup that is made anew is left alone": [
        (S.hold, FIRST, 1), (S.the_cgroup_is_made_anew, FIRST, 1), (S.the_thread_comes_too_late, OWN, 0),
    ],
    # Both values are noted before the thread is asked.
    "undone before the thread came": [(S.hold, FIRST, 1), (S.the_next_start_undoes, OWN, 1)],
    "undone after the thread came": [
        (S.hold, FIRST, 1), (S.the_thread_comes, LOW, 0), (S.the_next_start_undoes, OWN, 0),
    ],
    "gone on with before the thread came": [
        (S.hold, FIRST, 1), (S.the_pod_grows, FIRST, 1), (S.another_hot_process_goes_on, FIRST, 0),
        (S.hold, FIRST, 1), (S.the_thread_comes, LOW_80, 0), (S.release, OWN, 0),
    ],
    "gone on with after the thread came": [
        (S.hold, FIRST, 1), (S.the_thread_comes, LOW, 0), (S.the_pod_grows, LOW, 0),
        (S.another_hot_process_goes_on, LOW, 0), (S.hold, LOW, 0), (S.release, OWN, 0),
    ],
    "held again before the thread came": [
        (S.hold, FIRST, 1), (S.release, OWN, 1), (S.the_pod_grows, OWN, 1), (S.hold, FIRST_80, 2),
        (S.the_thread_comes_too_late, FIRST_80, 1), (S.the_thread_comes, LOW_80, 0), (S.release, OWN, 0),
    ],
}  # fmt: skip


@pytest.mark.parametrize("steps", STORIES.values(), ids=STORIES)
def test_memory_high_of_a_held_pod(pod: PlainPod, steps: list[tuple[Callable[[Story], None], str, int]]) -> None:
    story = Story(pod)
    for number, (step, high, asked) in enumerate(steps):
        step(story)
        assert (pod.high, len(pod.asked.queue)) == (high, asked), (number, step.__name__)
    while pod.asked.queue:
        pod.asked.come()
    story.brake.go_on()
    story.close()
    assert pod.high == (steps[-1][1] if steps[-1][1] in (str(MIB), str(100 * MIB)) else OWN)
    assert not pod.is_noted


@pytest.mark.parametrize("taken_over", [False, True])
def test_the_first_value_is_written_once(pod: PlainPod, monkeypatch: pytest.MonkeyPatch, taken_over: bool) -> None:
    """The pod may have more by then, and before Linux 6.16 the hot thread would reclaim."""
    story = Story(pod)
    story.hold_above_the_kubelets_line()
    if taken_over:
        story.another_hot_process_goes_on()
    written: list[str] = []
    real = BrakeFile.write
    monkeypatch.setattr(BrakeFile, "write", lambda f, v: (written.append(f.file), real(f, v))[1])
    story.the_pod_grows()
    story.hold()
    assert "memory.high" not in written
    assert [c.written for c in pod.noted() if c.file == "memory.high"] == [(LOW_80, FIRST)]
    story.close()


def test_what_was_written_stays_noted_until_the_thread_has_come_to_it(pod: PlainPod) -> None:
    """Also what it may still write when the pod is held again."""
    brake = pod.held()
    brake.release()
    for _ in range(2):
        assert not brake.go_on(), "not at once: it may take seconds"
        assert [c.file for c in pod.noted()] == ["memory.high"]
    (pod.path / "memory.current").write_text(str(80 * MIB))
    assert stop(brake, 100 * MIB) is not None
    [change] = [c for c in pod.noted() if c.file == "memory.high"]
    assert (change.old, set(change.written)) == ("max", {LOW, FIRST, LOW_80, FIRST_80})
    pod.asked.come()
    pod.asked.come()
    brake.release()
    brake.go_on()
    assert brake.is_clear
    assert not pod.is_noted
    brake.close()


def at_the_write(
    monkeypatch: pytest.MonkeyPatch,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
) -> None:
    """What happens right before and after the low value is written for the first time."""
    real, done = slow_down_module._write, list[str]()

    def write(file: int, value: str) -> None:
        is_it = value == LOW and not done
        if is_it:
            done.append(value)
            before()
        real(file, value)
        if is_it:
            after()

    monkeypatch.setattr(slow_down_module, "_write", write)


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


def test_what_another_program_writes_after_the_release_stays(pod: PlainPod, monkeypatch: pytest.MonkeyPatch) -> None:
    brake = pod.held()

    def meanwhile() -> None:
        brake.release()
        pod.high = str(100 * MIB)

    at_the_write(monkeypatch, after=meanwhile)
    assert not pod.asked.come()
    assert pod.high == str(100 * MIB)
    brake.close()


class Waits(Exception):
    pass


@pytest.mark.parametrize(("error", "by"), [(Waits(), "the next start"), (OSError(errno.EIO, "no"), "the brake")])
def test_what_the_thread_does_not_take_back_after_the_release_is_taken_back(
    pod: PlainPod, monkeypatch: pytest.MonkeyPatch, error: Exception, by: str
) -> None:
    """The write itself takes up to 2.2 s: a SIGKILL may end it, or the kernel refuse."""
    brake = pod.held()

    def fails() -> None:
        raise error

    at_the_write(monkeypatch, before=brake.release, after=fails)
    with pytest.raises(type(error)):
        pod.asked.come()
    assert pod.high == LOW
    if by == "the next start":
        pod.undo()
    else:
        brake.go_on()
    assert pod.high == "max"
    assert not pod.is_noted
    brake.close()


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


def test_nothing_else_uses_the_file_that_the_thread_writes(pod: PlainPod) -> None:
    """The kernel has a lock for each open file of a cgroup: a look of the hot thread would wait for the reclaim."""
    brake = pod.held()
    [wanted] = pod.asked.queue
    os.lseek(wanted.file, 1, os.SEEK_SET)
    ours = [fd for file in brake._ledger.files.values() for fd in (file._read, file._write) if fd >= 0]
    assert ours
    assert not any(os.path.sameopenfile(fd, wanted.file) and os.lseek(fd, 0, os.SEEK_CUR) == 1 for fd in ours)
    os.lseek(wanted.file, 0, os.SEEK_SET)
    assert pod.asked.come()
    brake.close()


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
    assert pod.high == LOW
    brake.close()
    assert pod.high == "max"
