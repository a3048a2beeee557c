"""What was dropped on the way to the side: counted by what it tells, and a mark of an incident only if that matters."""

from types import SimpleNamespace
from typing import Any

import pytest

from monitor.kernel.wire import OomEvent
from monitor.link.counters import MESSAGES, SharedStats
from monitor.link.messages import HOT_TO_SIDE, Oom
from monitor.link.record_messages import Snapshot
from monitor.race.events import End, Lost
from monitor.race.verdict import verdict
from monitor.side.sampler import Losses
from tests.race.builders import crossing, died, mark, ms, one, ranked, watched


def message(name: str) -> Any:
    kind, _, step = name.partition("_")
    if step:
        return Oom(OomEvent(step, 1), None, None, while_away=False)
    cls = HOT_TO_SIDE.get(kind, Snapshot)
    return cls._make([None] * len(cls._fields))


@pytest.mark.parametrize("name", MESSAGES)
def test_each_kind_is_counted_by_itself(name: str) -> None:
    stats = SharedStats.create()
    stats.dropped(message(name))
    assert [n for n in MESSAGES if stats.get(f"dropped_{n}")] == [name]
    assert stats.get("channel_dropped") == 1


def test_what_is_not_known_is_counted_too() -> None:
    stats = SharedStats.create()
    stats.dropped(message("snapshot"))
    assert stats.get("dropped_other") == 1


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("cross", "cross"),
        ("decision", "decision"),
        ("killed", "decision"),
        ("evicted", "decision"),
        ("oom_mark", "oom"),
        ("oom_kill", "kill"),
        ("oom_exit", "exit"),
        ("oom_reclaim", "reclaim"),
        ("flight", "sample"),
        ("clear", None),
        ("state", None),
        ("log", None),
        ("reap", None),
        ("reclaim", None),
    ],
)
def test_only_what_a_verdict_goes_by_is_lost_to_it(name: str, what: str | None) -> None:
    stats = SharedStats.create()
    stats.dropped(message(name))  # before the first look
    view: Any = SimpleNamespace(stats=stats, counted=dict)
    losses = Losses(view, 5)
    assert losses.look(10) == []
    stats.dropped(message(name))
    stats.dropped(message(name))
    assert losses.look(20) == ([Lost(20, 10, what, 2)] if what else [])
    assert losses.look(30) == []


@pytest.mark.parametrize(
    ("what", "flagged"), [("oom", True), ("decision", True), ("sample", False), ("reclaim", False)]
)
def test_the_flag_is_for_what_matters(what: str, flagged: bool) -> None:
    lost = Lost(ms(2), ms(-5), what, 3)
    found = verdict(one(watched(), ranked(), crossing(), lost, mark(3), died(9), End(ms(5000))))
    assert ("lost_events" in found.flags) is flagged
