"""The bounded queue: order, drops, retries, and an end in finite time."""

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from monitor.errors import MonitorError
from monitor.side.worker import Worker

TIMEOUT_S = 60.0


@contextmanager
def busy(capacity: int) -> Iterator[Worker]:
    """One whose thread is in a job, "a", until the end; then all that waits is done."""
    started, go = threading.Event(), threading.Event()
    worker = Worker("test", capacity=capacity)
    worker.submit(lambda: (started.set(), go.wait(TIMEOUT_S)), "a")
    assert started.wait(TIMEOUT_S)
    yield worker
    go.set()
    assert worker.close(TIMEOUT_S)


def test_full_queue_drops_and_counts_without_waiting() -> None:
    ran: list[int] = []
    with busy(capacity=2) as worker:
        assert [worker.submit(lambda n=n: ran.append(n)) for n in range(5)] == [True, True, False, False, False]
        assert (worker.dropped, worker.waiting) == (3, 2)
    assert ran == [0, 1]


def test_a_newer_job_takes_the_place_of_the_one_with_its_key_and_what_is_not_final_goes_first() -> None:
    ran: list[str] = []
    with busy(capacity=3) as worker:
        a, b, c = ("a1", False), ("b1", False), ("c1", True)
        for name, final in (a, b, ("a2", True), ("a3", False), c, ("d1", True), ("e1", False)):
            assert worker.submit(lambda name=name: ran.append(name), name[0], final)
        assert not worker.submit(lambda: ran.append("f1"), "f")
        assert (worker.dropped, worker.undone) == (3, ["a", "a", "c", "d"])
    assert (ran, worker.undone) == (["a2", "c1", "d1"], [])


def test_a_failed_job_is_tried_again_before_the_next_and_reported_once_per_errno() -> None:
    errors = [errno.ENOSPC, errno.ENOSPC, errno.EROFS]
    reported: list[int | None] = []
    order: list[str] = []
    recovered = threading.Event()

    def write() -> None:
        if errors:
            raise OSError(errors.pop(0), "cannot")
        order.append("first")

    worker = Worker(
        "test", retry_s=0.001, on_error=lambda error: reported.append(error.errno), on_recovered=recovered.set
    )
    worker.submit(write)
    worker.submit(lambda: order.append("second"))
    assert recovered.wait(TIMEOUT_S)
    assert worker.close(TIMEOUT_S)
    assert order == ["first", "second"]
    assert reported == [errno.ENOSPC, errno.EROFS]
    assert (worker.failing, worker.dropped) == (None, 0)


@pytest.mark.parametrize(
    ("error", "retry_s"), [(BrokenPipeError(errno.EPIPE, "gone"), None), (MonitorError("not possible", ""), 3600.0)]
)
def test_without_retry_a_failed_job_is_dropped_and_the_next_runs(error: Exception, retry_s: float | None) -> None:
    ran: list[int] = []

    def fail() -> None:
        raise error

    worker = Worker("test", retry_s=retry_s)
    worker.submit(fail)
    worker.submit(lambda: ran.append(1))
    assert worker.close(TIMEOUT_S)
    assert (ran, worker.dropped) == ([1], 1)


def test_closing_gives_up_on_what_cannot_be_done() -> None:
    failed, tries = threading.Event(), 0

    def fail() -> None:
        nonlocal tries
        tries += 1
        failed.set()
        raise OSError(errno.ENOSPC, "full")

    worker = Worker("test", retry_s=3600.0)
    worker.submit(fail, "one")
    worker.submit(fail, "other")
    assert failed.wait(TIMEOUT_S)
    assert worker.close(TIMEOUT_S)  # not after an hour
    assert (worker.dropped, tries, worker.undone) == (2, 4, ["one", "other"])
