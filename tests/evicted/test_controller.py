"""The controller's own decisions, without a server."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from monitor.errors import MonitorError
from monitor.evicted.controller import STUCK_S, Controller
from monitor.evicted.pods import EvictedPod
from monitor.evicted.selection import Criteria
from monitor.evicted.sweep import Found, Progress
from monitor.kube.errors import Cancelled
from tests.evicted.test_selection import pod


class Elector:
    """Has the lease for as long as the test wants: ``terms`` is how each renewal ends."""

    def __init__(self, stop: threading.Event, *terms: Callable[[], None]) -> None:
        self.stop = stop
        self.terms = list(terms)
        self.leading = False
        self.calls: list[str] = []
        self.overdue = 0.0

    def acquire(self) -> bool:
        self.leading = True
        self.calls.append("acquire")
        return True

    def renew(self) -> None:
        self.terms.pop(0)()
        self.leading = False
        self.calls.append("lost")

    def may_act(self) -> bool:
        return self.leading

    def release(self) -> bool:
        self.calls.append("release")
        return True

    def forget(self) -> None:
        self.calls.append("forget")

    def overdue_s(self) -> float:
        return self.overdue


class Sweeps:
    """A sweep that finds one pod; ``does`` is called to delete it."""

    def __init__(self, does: Callable[[], None] = lambda: None) -> None:
        self.does = does
        self.done = threading.Event()
        self.closed = 0

    def find(self) -> Found:
        return Found((pod("x", 60.0),), Counter({"Shutdown": 2}))

    def delete(self, pods: list[EvictedPod], on_progress: Callable[[Progress], None]) -> Progress:
        progress = Progress(len(pods))
        progress.outcomes["deleted"] += 1
        on_progress(progress)
        try:
            self.does()
        finally:
            self.done.set()
        return progress

    def close(self) -> None:
        self.closed += 1


def controller(sweeps: Sweeps, *terms: Callable[[], None]) -> tuple[Controller, Elector, list[str]]:
    stop, logged = threading.Event(), []
    elector = Elector(stop, *terms)
    made = Controller(
        elector,  # type: ignore[arg-type]  # as far as it is used
        lambda over, may_go_on: sweeps,  # type: ignore[arg-type, return-value]
        Criteria(),
        300.0,
        stop,
        log_line=logged.append,
        failed=logged.append,
        now=lambda: 1e6,
        clock=lambda: 0.0,
    )
    return made, elector, logged


def test_a_term_that_ends_ends_the_sweep_before_the_lease_is_released() -> None:
    sweeps = Sweeps()

    def over() -> None:
        assert sweeps.done.wait(30)
        elector.stop.set()

    made, elector, logged = controller(sweeps, over)
    made.run()
    assert elector.calls == ["acquire", "lost", "release", "forget"]
    assert logged == ["1 of 1: 1 deleted (1 evicted pods found)"]
    counters = made.counters
    assert (counters.found, counters.chosen, counters.others, counters.swept_at) == (1, 1, 2, 1e6)
    assert (counters.outcomes["deleted"], counters.sweeps["ok"], sweeps.closed) == (1, 1, 1)
    assert not [one for one in threading.enumerate() if one.name == "sweep"]


def test_a_lease_that_was_lost_is_sought_again_and_not_released() -> None:
    sweeps = Sweeps()

    def lost() -> None:
        assert sweeps.done.wait(30)
        sweeps.done.clear()

    def over() -> None:
        assert sweeps.done.wait(30)
        elector.stop.set()

    made, elector, _ = controller(sweeps, lost, over)
    made.run()
    assert elector.calls == ["acquire", "lost", "forget", "acquire", "lost", "release", "forget"]
    assert made.counters.sweeps["ok"] == 2


@pytest.mark.parametrize(
    ("error", "result", "line"),
    [
        (MonitorError("no quorum"), "failed", "the sweep failed after 1 pods: no quorum"),
        (Cancelled("stopped"), "ended", "ended after 1 pods: the lease is not held any more, or the process ends"),
    ],
)
def test_a_sweep_that_fails_is_counted_and_logged(error: MonitorError, result: str, line: str) -> None:
    def fail() -> None:
        raise error

    sweeps = Sweeps(fail)

    def over() -> None:
        assert sweeps.done.wait(30)
        elector.stop.set()

    made, elector, logged = controller(sweeps, over)
    made.run()
    assert logged == [line]
    assert (made.counters.sweeps[result], made.counters.outcomes["deleted"], made.counters.swept_at) == (1, 1, 0.0)


def test_a_defect_ends_the_process_rather_than_leave_a_leader_that_does_nothing() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    sweeps = Sweeps(fail)
    made, elector, _ = controller(sweeps, lambda: elector.stop.wait(30) and None)
    with pytest.raises(ZeroDivisionError):
        made.run()
    assert elector.calls == ["acquire", "lost", "release", "forget"]


def test_health() -> None:
    now, problems = [0.0], []

    def look() -> None:
        problems.append(made.problem())
        now[0] = STUCK_S + 1
        problems.append(made.problem())

    sweeps = Sweeps(look)

    def over() -> None:
        assert sweeps.done.wait(30)
        elector.stop.set()

    made, elector, _ = controller(sweeps, over)
    made._clock = lambda: now[0]
    made.run()
    assert problems == ["", "the sweep did nothing for 600 s"]
    assert made.problem() == ""
    elector.overdue = 21.0
    assert made.problem() == "the leader election does not turn"
