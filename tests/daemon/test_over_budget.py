"""Pods that cause more than the programs tell of one by one."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from monitor.pods.model import FoundPod
from monitor.policy.pods import pod_from_object
from monitor.side.export.log_budget import LogBudget
from monitor.side.over_budget import LOG_INTERVAL_NS, LOOK_NS, OverBudget


def found(name: str, *ids: int) -> FoundPod:
    pod = pod_from_object({"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": {"containers": []}})
    return FoundPod(pod, Path(f"/{name}"), {}, ids)


class Side:
    """A table that counts what the test says, and a clock set by hand. (The real one: tests/kernel/test_budgets.py.)"""

    def __init__(self) -> None:
        self.counts: dict[int, dict[str, int]] = {}
        self.now = 1
        self.lines: list[dict[str, Any]] = []
        self.looked: list[str] = []
        pods = {"a": found("a", 1, 2), "b": found("b", 3)}
        table = SimpleNamespace(over=lambda at: self.counts.get(at, {}))
        self.view = SimpleNamespace(pods=pods, table=table, log=self.log, log_budget=LogBudget(self.log))
        self.over = OverBudget(cast(Any, self.view), self.looked.append, clock=lambda: self.now)

    def log(self, level: str, message: str, /, **fields: Any) -> None:
        self.lines.append({"level": level, "msg": message, **fields})

    def turn(self) -> None:
        due = self.over.due_ns()
        assert due is not None
        self.now = due
        self.over.turn()


def test_nothing_is_looked_at_while_nothing_comes() -> None:
    side = Side()
    assert side.over.due_ns() is None
    side.over.records_came()
    assert side.over.due_ns() == 1 + LOOK_NS
    side.turn()
    assert side.over.due_ns() is None
    assert side.lines == side.looked == []


def test_new_processes_are_looked_for_and_it_is_said_once_in_a_while() -> None:
    side = Side()
    side.over.records_came()
    for n in range(1, 10):
        side.counts = {1: {"kills": 0, "processes": 100 * n}, 2: {"kills": 5 * n, "processes": 0}}
        side.turn()
    assert side.looked == ["a"] * 9
    (line,) = side.lines
    assert (line["pod"], line["uid"], line["kills"], line["processes"]) == ("ns/a", "a", 5, 100)
    assert line["level"] == "warning"
    while side.over.due_ns() is not None:  # the storm is over: the rest is said when it is time
        side.turn()
    assert [line["kills"] for line in side.lines] == [5, 40]
    assert side.now >= LOG_INTERVAL_NS
    assert side.looked == ["a"] * 9


def test_a_pod_that_was_made_anew_begins_anew() -> None:
    side = Side()
    side.counts = {3: {"kills": 50}}
    side.over.records_came()
    side.turn()
    side.counts = {3: {"kills": 2}}
    side.over.records_came()
    for _ in range(20):
        if side.over.due_ns() is None:
            break
        side.turn()
    assert [line["kills"] for line in side.lines] == [50]
    side.view.pods.pop("b")
    side.over.records_came()
    side.turn()
    assert not side.over._reported
