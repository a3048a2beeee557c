"""A look without BPF: what is read again before it is believed, and the time that a crossing is given."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from monitor.kernel.domains import Reading
from monitor.kernel.wire import CROSS, EVENT, PAGE
from monitor.sources.polled_table import Files
from monitor.sources.poller import BACK_NS, EARLY_NS, GIVEN_BACK_NS, IDLE_NS, LISTS_NS, RANK_NS
from tests.daemon.stand_ins import polled

MIB = 1 << 20
RATE = 12 << 30
NOW = 10_000_000_000


class Table:
    """One cgroup with a ceiling of 10 GiB. All of its page cache has become active since the lists were read."""

    def __init__(self, usage: int) -> None:
        self.usage, self.inactive, self.reads = usage, 1024 * MIB, 0

    def ceilings(self, _: int) -> list[int]:
        return [10240 * MIB // PAGE]

    def read_usage(self, _: Files) -> int:
        return self.usage

    def read_stat(self, _: Files) -> None:
        self.inactive, self.reads = 0, self.reads + 1

    def reading(self, _: int) -> Reading:
        return Reading(self.usage, self.inactive, 0)

    def crossed(self, _: int) -> int:
        return 0

    def refresh_a_leaf(self) -> None: ...


@pytest.mark.parametrize(
    ("mib", "armed", "age_ns", "reads", "room"),
    [
        (10190, True, LISTS_NS - 1, 1, 50),  # most of the headroom is in old lists
        (11000, True, 0, 1, None),  # above it by usage alone: it may be crossed
        (5000, True, LISTS_NS - 1, 0, 10240 - 5000 + 1024),
        (5000, True, LISTS_NS, 1, 10240 - 5000),
        (10190, False, LISTS_NS - 1, 0, 1074),  # no wait is planned by it while detached
    ],
)
def test_the_lists_are_read_before_a_wait_is_planned_with_them(
    mib: int, armed: bool, age_ns: int, reads: int, room: int | None
) -> None:
    table, files = Table(mib * MIB), Files(0, Path("/"), -1, -1, stat_ns=NOW - age_ns)
    poller = polled(table=table, arming=SimpleNamespace(rate=RATE, armed=armed))
    assert (poller._compare(files, NOW)[1], table.reads) == (room and room * MIB, reads)


@pytest.mark.parametrize(
    ("looked_ns", "at"), [(NOW - 50_000_000, NOW - 50_000_000), (NOW - 2 * BACK_NS, NOW - BACK_NS)]
)
def test_a_crossing_happened_after_the_last_look(monkeypatch: pytest.MonkeyPatch, looked_ns: int, at: int) -> None:
    """It is a record like those of the programs, and comes after the steps."""
    watch: Any = SimpleNamespace(cgroup_id=7, index=3, thresholds=(1, 2), machine=False)
    table = MagicMock()
    table.cgroup_id.return_value = 7
    table.reading.return_value = Reading(8 * PAGE, 2 * PAGE, PAGE)
    table.files.return_value = SimpleNamespace(noted=0)
    soft = polled(table=table, arming=SimpleNamespace(armed=False))
    soft.watch({3: watch})
    soft._looked_ns = looked_ns
    soft._compare = lambda *_: (0b101, None)
    soft._steps = lambda _: ["steps"]
    monkeypatch.setattr(time, "monotonic_ns", lambda: NOW)
    found = soft.look()
    assert found == ["steps", *((at, 7, 8, 2, 1, 0, 0, CROSS, 3, which, 0, 0, 0) for which in (0, 2))]
    assert EVENT.unpack(EVENT.pack(*found[1])) == found[1]
    table.cross.assert_called_once_with(3, 0b101)


def test_a_pod_that_went_is_read_soon_and_what_is_due_sooner_is_not_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    soft = polled(arming=SimpleNamespace(armed=False))
    read: list[int] = []
    now = NOW
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    soft._pods_due_ns = NOW + RANK_NS
    soft._steps = lambda now_ns: read.append(now_ns) or []
    soft._due_ns = NOW + 1_600_000
    soft.pod_went()
    assert soft.due_ns() == NOW + 1_600_000, "a ceiling is near"
    now += 1_600_000
    soft.look()
    assert (soft.due_ns(), read) == (NOW + GIVEN_BACK_NS, []), "not forgotten by a look in between"
    now = NOW + GIVEN_BACK_NS
    soft.look()
    assert (soft.due_ns(), read) == (now + IDLE_NS, [now])
    soft.pod_went()
    assert soft.due_ns() == now + GIVEN_BACK_NS


def test_it_looks_at_once_when_it_was_armed() -> None:
    arming = SimpleNamespace(armed=False)
    soft = polled(arming=arming)
    began, _ = time.monotonic_ns(), soft.look()
    assert soft.due_ns() > began
    arming.armed = True
    assert soft.due_ns() == 0


@pytest.mark.parametrize(("headroom", "early"), [(100 * MIB, 0), (400 * MIB, EARLY_NS)])
def test_a_sleep_that_the_loop_rounds_up_is_planned_shorter(
    monkeypatch: pytest.MonkeyPatch, headroom: int, early: int
) -> None:
    """12 MiB are taken in a millisecond at this rate."""
    monkeypatch.setattr(time, "monotonic_ns", lambda: NOW)
    soft = polled(arming=SimpleNamespace(rate=RATE, armed=True))
    watch: Any = SimpleNamespace(index=0, thresholds=(1,), cgroup_id=soft._table.cgroup_id(0), machine=False)
    soft.watch({0: watch})
    soft._cost_ns = 1.0
    soft._table.files.return_value = SimpleNamespace(noted=0)
    soft._table.reading.return_value = Reading(0, 0, 0)
    soft._compare = lambda *_: (0, headroom)
    soft.look()
    assert soft.due_ns() == NOW + headroom * 10**9 // RATE - early
