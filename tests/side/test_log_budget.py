"""Log lines that a pod can cause any number of."""

from typing import Any

from monitor.side.export.log_budget import _MOST, BURST, INTERVAL_NS, LogBudget


class Said:
    """A log, and a clock that is set by hand."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []
        self.now = 1_000_000_000
        self.budget = LogBudget(self, lambda: self.now)

    def __call__(self, level: str, message: str, /, **fields: Any) -> None:
        self.lines.append((level, message, fields))


def test_the_first_are_written_and_the_rest_is_one_line() -> None:
    said = Said()
    for n in range(1000):
        said.budget("warning", "killed", pod="ns/a", pid=n)
    assert said.lines == [("warning", "killed", {"pod": "ns/a", "pid": n}) for n in range(BURST)]
    assert said.budget.left_out == {"ns/a": 1000 - BURST}
    due = said.budget.due_ns()
    assert due == said.now + INTERVAL_NS
    said.budget.flush()  # not yet
    assert len(said.lines) == BURST
    said.now = due
    said.budget.flush()
    summary = {"pod": "ns/a", "of": "killed", "lines": 1000 - BURST, "seconds": 10.0}
    assert said.lines[BURST:] == [("warning", "more of the same", summary)]
    assert said.budget.due_ns() is None
    said.budget("warning", "killed", pod="ns/a", pid=0)  # and it begins anew
    assert said.lines[-1][1] == "killed"


def test_a_new_interval_tells_of_the_last_one_first() -> None:
    said = Said()
    for _ in range(BURST + 1):
        said.budget("info", "gone", pod="ns/a")
    said.now += INTERVAL_NS
    said.budget("info", "gone", pod="ns/a")
    assert [line[1] for line in said.lines[BURST:]] == ["more of the same", "gone"]


def test_each_pod_and_each_kind_has_its_own() -> None:
    said = Said()
    for _ in range(2 * BURST):
        said.budget("info", "gone", pod="ns/noisy")
        said.budget("info", "gone", pod=None, about="cgroup 7")
    said.budget("info", "gone", pod="ns/b")
    said.budget("info", "killed", pod="ns/noisy")
    said.budget("info", "gone", pod=None, about="cgroup 8")
    assert len(said.lines) == 2 * BURST + 3
    assert "about" not in said.lines[1][2]
    said.budget.flush(at_once=True)
    assert [line[2]["pod"] for line in said.lines[-2:]] == ["ns/noisy", "cgroup 7"]
    said.budget.forget("ns/noisy")
    assert not said.budget.left_out


def test_what_is_kept_has_an_end() -> None:
    said = Said()
    for n in range(3 * _MOST):
        said.budget("info", "gone", pod=None, about=f"cgroup {n}")
    assert len(said.budget._kinds) <= _MOST + 1
    assert len(said.lines) <= _MOST + BURST
