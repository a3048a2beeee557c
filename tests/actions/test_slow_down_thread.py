"""The thread that sets memory.high of held pods: when it runs, who waits for it, and what it costs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from monitor.actions import slow_down as slow_down_module
from monitor.actions.brake_file import BrakeFile
from monitor.actions.changes import Change
from monitor.actions.ledger import HELD
from monitor.actions.pod_brake import PodBrake
from monitor.actions.slow_down import MOST, SlowDowns
from monitor.kernel.troubles import TROUBLES
from tests.actions.killing import descriptors
from tests.actions.plain import MIB, PlainPod, stop

LOW = 32 * MIB
FIFO = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK


class Stop(Exception):
    pass


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlainPod:
    return PlainPod(tmp_path, monkeypatch)


@pytest.fixture
def realtime() -> Iterator[None]:
    """This thread is scheduled as the hot one."""
    try:
        os.sched_setscheduler(0, FIFO, os.sched_param(1))
    except OSError as error:
        pytest.skip(f"SCHED_FIFO is refused: {error.strerror}")
    yield
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def test_the_thread_sets_it_and_goes_on_after_an_error(pod: PlainPod) -> None:
    TROUBLES.take()
    slow_downs = SlowDowns(pod.journal)
    brake = PodBrake("uid", pod.path, pod.hierarchy, pod.journal, slow_downs=slow_downs)
    assert stop(brake, 96 * MIB) is not None
    until(lambda: pod.high == str(LOW))
    brake.release()
    file = BrakeFile(pod.path, "memory.max")
    with (pod.path / "memory.max").open() as unwritable, (pod.path / "memory.current").open() as directory:
        change = Change(str(pod.path), "memory.max", "", "max", ("max",), "other", HELD)
        assert slow_downs.begin("other", file, unwritable.fileno(), directory.fileno(), change, LOW)
    until(lambda: TROUBLES.any)
    assert [(one.call, one.whose) for one in TROUBLES.take()] == [("cgroup", "other")]
    assert stop(brake, 96 * MIB) is not None
    until(lambda: pod.high == str(LOW))
    brake.close()
    assert pod.high == "max"


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("error", [MemoryError, Stop])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_a_thread_that_cannot_go_on(
    pod: PlainPod, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """It lasts where memory is short, and whatever else ends it keeps no note and no descriptor."""
    TROUBLES.take()
    slow_downs, file = SlowDowns(pod.journal), BrakeFile(pod.path, "memory.high")
    change = Change(str(pod.path), "memory.high", "", "max", ("max",), "a", HELD)

    def fails(*_: object) -> bool:
        raise error

    with (pod.path / "memory.high").open() as late, (pod.path / "memory.current").open() as directory:
        with monkeypatch.context() as patch:
            patch.setattr(slow_down_module, "slow_down", fails)
            first = slow_downs.begin("a", file, late.fileno(), directory.fileno(), change, LOW)
            until(lambda: slow_downs.is_done(first))
        if error is MemoryError:
            assert [one.call for one in TROUBLES.take()] == ["cgroup"]
            assert slow_downs.begin("b", file, late.fileno(), directory.fileno(), change, LOW) == 2
        else:
            slow_downs._thread.join()
            held = descriptors(pod.path)
            assert slow_downs.begin("b", file, late.fileno(), directory.fileno(), change, LOW) == 0
            assert descriptors(pod.path) == held
        until(lambda: slow_downs.is_done(2))
    slow_downs.finish(time.monotonic_ns() + 60 * 10**9)


def test_what_is_not_needed_any_more_is_not_waited_for(pod: PlainPod, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else has set another value: the wait is over when the thread is, which is far before its end."""
    monkeypatch.setattr(slow_down_module, "_WAIT_S", 3600.0)
    slow_downs, brake = SlowDowns(pod.journal), pod.brake()
    brake._slow_downs = slow_downs
    assert brake.apply(96 * MIB) is not None
    pod.high = str(MIB)
    brake.slow_down()
    assert pod.high == str(MIB)
    brake.close()


def test_a_thread_that_is_at_work_is_not_waited_for_and_has_a_budget(
    pod: PlainPod, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, began = threading.Event(), threading.Event()

    def waits(*_: object) -> bool:
        began.set()
        return go.wait(30)

    monkeypatch.setattr(slow_down_module, "slow_down", waits)
    slow_downs, file = SlowDowns(pod.journal), BrakeFile(pod.path, "memory.high")
    before = descriptors(pod.path)
    change = Change(str(pod.path), "memory.high", "", "max", ("max",), "u", HELD)
    asked = [slow_downs.begin("u", file, file._write, file._write, change, LOW) for _ in range(MOST + 1)]
    assert asked == [*range(1, MOST + 1), 0]
    assert began.wait(30)
    slow_downs.finish(time.monotonic_ns())
    go.set()
    finished(slow_downs)
    assert descriptors(pod.path) == before
    file.close()


@pytest.mark.usefixtures("realtime")
def test_scheduling_is_as_before_whatever_happens() -> None:
    """The hot thread is ahead of the other meanwhile, and that one ahead of all others."""
    thread = threading.Thread(target=(end := threading.Event()).wait, daemon=True)
    thread.start()
    assert thread.native_id is not None
    cpus = os.sched_getaffinity(0)
    try:
        with suppress(Stop), slow_down_module._one_step_behind(thread):
            assert (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority) == (FIFO, 2)
            assert os.sched_getparam(thread.native_id).sched_priority == 1
            assert len(os.sched_getaffinity(thread.native_id)) == 1
            raise Stop
        assert (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority) == (FIFO, 1)
        assert os.sched_getscheduler(thread.native_id) == os.SCHED_OTHER | os.SCHED_RESET_ON_FORK
        assert os.sched_getaffinity(thread.native_id) == cpus
    finally:
        end.set()


@pytest.mark.usefixtures("realtime")
@pytest.mark.parametrize("cpus", ["all", "one"])
def test_it_is_in_force_when_the_hot_thread_goes_on(pod: PlainPod, monkeypatch: pytest.MonkeyPatch, cpus: str) -> None:
    """On one CPU the hot thread would go on before the other is in the kernel, which came to it much later then."""
    monkeypatch.setattr(slow_down_module, "_WAIT_S", 30.0)  # however slow the machine
    before = os.sched_getaffinity(0)
    try:
        if cpus == "one":
            os.sched_setaffinity(0, {min(before)})
        slow_downs = SlowDowns(pod.journal)
        brake = PodBrake("uid", pod.path, pod.hierarchy, pod.journal, slow_downs=slow_downs)
        for _ in range(20):
            assert stop(brake, 96 * MIB) is not None
            assert pod.high == str(LOW)
            finished(slow_downs)
            brake.release()
            assert pod.high == "max"
        brake.close()
    finally:
        os.sched_setaffinity(0, before)


def finished(slow_downs: SlowDowns) -> None:
    until(lambda: slow_downs._asked == slow_downs._done)
