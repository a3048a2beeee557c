"""What was dropped on the way to the helper, and pods that cause more than the programs report one by one."""

import os
import select
from collections.abc import Iterator
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.wire import OomEvent
from monitor.link.counters import MESSAGES, SharedStats
from monitor.link.messages import TYPES
from monitor.pods.model import FoundPod
from monitor.policy.pods import pod_from_object
from monitor.settings.config import RunConfig
from monitor.side import process_watch
from monitor.side.event_builder import lost
from monitor.side.process_watch import BUDGET_S
from monitor.sources.rings import SAVED_NS, SHARE, Ration, Rings
from tests.log_lines import LogLines
from tests.side.parts import Parts


@pytest.fixture
def stats() -> Iterator[SharedStats]:
    made = SharedStats.create()
    yield made
    os.close(made.fd)


def message(name: str) -> Any:
    if name.startswith("oom_"):
        return OomEvent(name.removeprefix("oom_"), 1)
    cls = TYPES[name]
    return cls._make([None] * len(cls._fields))


VERDICT_GOES_BY = {
    "cross": "cross",
    "decision": "decision",
    "killed": "decision",
    "evicted": "decision",
    "flight": "sample",
    "oom_mark": "oom",
    "oom_kill": "kill",
    "oom_exit": "exit",
    "oom_reclaim": "reclaim",
}


@pytest.mark.parametrize("name", MESSAGES)
def test_each_kind_is_counted_by_itself_and_only_what_a_verdict_goes_by_is_lost_to_it(
    stats: SharedStats, name: str
) -> None:
    figures: Any = SimpleNamespace(stats=stats, counted=dict)
    before = lost(figures)
    stats.dropped(message(name))
    stats.dropped(message(name))
    assert [n for n in MESSAGES if stats.get(f"dropped_{n}")] == [name]
    assert stats.get("channel_dropped") == 2
    what = VERDICT_GOES_BY.get(name)
    assert lost(figures) - before == ({what: 2} if what else {})


def found(name: str, *ids: int) -> FoundPod:
    pod = pod_from_object({"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": {"containers": []}})
    return FoundPod(pod, Path(f"/{name}"), {}, ids)


class Side:
    """A table that counts what the test sets, and a clock set by hand. (The real one: tests/kernel/test_budgets.py.)"""

    def __init__(self, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: dict[int, dict[str, int]] = {}
        self.now = 1.0
        self.looked: list[str] = []
        table = SimpleNamespace(over=lambda at: self.counts.get(at, {}))
        pods = {"a": found("a", 1, 2), "b": found("b", 3)}
        place = RunConfig(state_dir=str(state_dir)), Hierarchy(2, state_dir), 1 << 30
        parts = Parts(*place, table=table, log=LogLines(), pods=pods)
        self.log, self.processes = parts.log, parts.processes()
        monkeypatch.setattr(self.processes.scores, "look_soon", self.looked.append)
        monkeypatch.setattr(process_watch, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.rest_s = self.turn()
        self.log.lines.clear()
        self.looked.clear()

    def turn(self) -> float:
        self.rest_s = self.processes.turn()
        return self.rest_s

    def storm(self) -> None:
        """A record came, and the next look is due."""
        self.processes.handle(OomEvent("kill", 1))
        self.look()

    def look(self) -> None:
        assert self.turn() == BUDGET_S
        self.now += BUDGET_S
        self.turn()


@pytest.fixture
def side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Side:
    return Side(tmp_path, monkeypatch)


def test_new_processes_are_looked_for_and_that_is_logged(side: Side) -> None:
    assert side.rest_s == inf
    side.storm()
    assert side.rest_s == inf, "nothing comes"
    side.processes.handle(OomEvent("kill", 1))
    for n in range(1, 10):
        side.counts = {1: {"kills": 0, "processes": 100 * n}, 2: {"kills": 5 * n, "processes": 0}}
        side.look()
    assert side.looked == ["a"] * 9
    level, _, line = side.log.lines[0]
    assert (line["pod"], line["uid"], line["kills"], line["processes"]) == ("ns/a", "a", 5, 100)
    assert level == "warning"
    side.look()
    assert side.rest_s == inf, "the storm is over"
    assert [line["kills"] for *_, line in side.log.lines] == [5] * 9
    assert side.looked == ["a"] * 9


def test_a_pod_that_was_made_anew_begins_anew(side: Side) -> None:
    for kills in (50, 2, 3):
        side.counts = {3: {"kills": kills}}
        side.storm()
    assert [line["kills"] for *_, line in side.log.lines] == [50, 1]


MS = 1_000_000


def test_a_time_without_a_cpu_is_not_paid_back() -> None:
    """2 s of it, during a read, were 10 s in which no step and no OOM kill was read."""
    now = [0]
    ration = Ration(lambda: now[0])
    now[0] += 2000 * MS
    assert not ration.spend(0)
    assert ration.until_ns - now[0] == SHARE * SAVED_NS


class StandInRing:
    """Holds so many records at each read."""

    more = False

    def __init__(self, fd: int, *found: int) -> None:
        self._fd, self._found = fd, list(found)

    def fileno(self) -> int:
        return self._fd

    def consume(self, most: int) -> int:
        self.more = False
        return self._found.pop(0) if self._found else 0


def test_a_ring_whose_record_is_half_written_is_left_alone_for_a_moment(stats: SharedStats) -> None:
    """Reported for ever, it kept the hot process from sleeping, ahead of its writer (Linux 7.0 and later)."""
    records = Rings(None, SimpleNamespace(stats=stats, log=None), counts=True)
    heard: list[tuple[int, int]] = []
    records._epoll = SimpleNamespace(modify=lambda fd, events: heard.append((fd, events)))
    events, kills = StandInRing(4), StandInRing(5, 3, 0, 2)
    records._events, records._budgets = events, {kills: 8}
    records._by_fd = {4: events, 5: kills}
    records.consume(5)
    assert (heard, records.due_ns()) == ([], None)  # three records
    records.consume(5)  # ready, and nothing to read
    rest = records.due_ns()
    assert heard == [(5, 0)]
    records.go_on(rest - 1)
    assert heard == [(5, 0)]
    records.go_on(rest)
    assert heard == [(5, 0), (5, select.EPOLLIN)]
    assert kills.consume(8) == 0  # the two were read
    records.consume(4)  # crossings never rest
    assert records.due_ns() is None


def test_over_a_long_time_it_is_the_share_and_less_never_rests() -> None:
    now, spent = [0], 0
    ration = Ration(lambda: now[0])
    for _ in range(1000):
        now[0] += 5 * MS
        assert ration.spend(now[0] - MS + 1)
    now[0] = 0
    ration = Ration(lambda: now[0])
    now[0] = SAVED_NS
    assert ration.spend(0), "so much is saved at the start"
    now[0] = 0
    ration = Ration(lambda: now[0])
    while now[0] < 10_000 * MS:
        if ration.until_ns:
            now[0] = ration.until_ns
            assert ration.is_over(now[0])
            assert not ration.is_over(now[0]), "it is over once"
        began, now[0] = now[0], now[0] + 300_000
        spent += 300_000
        ration.spend(began)
    assert now[0] / (2 * SHARE) <= spent <= now[0] / SHARE + SAVED_NS + 300_000
