"""Pods that were held, and pods that the API server does not evict: what an incident has of them."""

import json
from typing import Any

import click
import pytest

from monitor.cli.incident_text import describe, show_lines
from monitor.race.events import End, Refused
from tests.race.builders import (
    MS,
    NODE,
    SIGNAL,
    START,
    clear,
    crossing,
    decided,
    died,
    episodes,
    gone,
    hold,
    hold_end,
    judged,
    kill,
    mark,
    ms,
    signalled,
)
from tests.race.scenarios import GROWTH

HELD = (*START, *GROWTH, crossing(), hold(0.5))


def test_the_episode_lasts_as_long_as_the_hold() -> None:
    """The threshold is clear a long time before there is the room that releases the pod."""
    found = judged(*HELD, clear(100), hold_end(8000, "clear"), End(ms(20_000)))
    assert found.holds[0].ms == 7999.5
    assert [step["what"] for step in found.steps if step["what"].startswith("pod_")] == ["pod_held", "pod_released"]


def test_one_that_is_held_again_and_another_with_it() -> None:
    again = (hold(1000, hold=2), hold(1000, "db", hold=3))
    ends = (hold_end(900, "clear"), hold_end(2000, "gone", hold=2, held_ns=MS), hold_end(2001, "clear", "db", hold=3))
    found = judged(*HELD, clear(890), *again, *ends, End(ms(9000)))
    assert (
        "shop/hog was held 2 times, for 900 ms in all, until nobody was left of it, and grew 6.0 MiB" in found.summary
    )
    assert ", and 1 more pod with it" in found.summary


def test_what_was_held_before_the_threshold_was_met() -> None:
    """Above a kubelet's line."""
    found = judged(*START, *GROWTH, hold(0.5, step="above"), hold_end(900, "clear"), End(ms(9000)))
    assert found.summary.startswith("Relieved: growth was held before the threshold was met; shop/hog was held for")


END = End(ms(60_000))
ANSWER = "Cannot evict pod as it would violate the pod's disruption budget."
KEPT = "a PodDisruptionBudget keeps shop/hog"


def refused(t: float, *names: str, budget: bool = True, instead: str | None = None) -> Refused:
    pods = tuple([f"shop/{name}" for name in names or ("hog",)])
    return Refused(ms(t), NODE, SIGNAL, True, pods, budget, ANSWER, instead)


def test_the_next_candidate_was_evicted() -> None:
    events = (refused(20, instead="shop/cart"), decided(21, "cart", rank=2), signalled(22, "cart", 15))
    found = judged(*START, crossing(), decided(0.1, observed=True), *events, gone(900, "cart"), clear(901), END)
    assert (found.verdict, found.refused) == ("eviction_won", ("shop/hog",))
    assert KEPT in found.summary
    [step] = [step for step in found.steps if step["what"] == "refused"]
    assert describe(step) == f"{KEPT}: {ANSWER}; shop/cart is evicted instead"
    assert json.loads(json.dumps(found.to_json()))["refused"] == ["shop/hog"]


def test_nobody_was_and_the_oom_killer_came() -> None:
    oom = (kill(500, pid=9), mark(500.01, pid=9), died(501, 9))
    found = judged(*START, crossing(), decided(0.1, observed=True), refused(20, "hog", "cart"), *oom, clear(540), END)
    assert (found.verdict, found.observed, found.refused) == ("eviction_won", True, ("shop/hog", "shop/cart"))
    assert found.advice.startswith("Evict without asking (--evict-by kill)")
    assert "a PodDisruptionBudget keeps shop/hog and shop/cart" in found.summary
    shown = " ".join(show_lines(found.to_json(), 400))
    assert "nobody is evicted" in click.unstyle(" ".join(shown.split()))


def test_errors_are_not_reported_as_a_budget() -> None:
    found = judged(*START, crossing(), decided(0.1, observed=True), refused(20, budget=False), clear(30), END)
    assert "the API server does not evict shop/hog" in found.summary
    assert "Budget" not in found.summary


def test_it_is_reported_once_however_often_it_was_asked() -> None:
    again = [refused(10_000 * n) for n in range(1, 4)]
    found = judged(*START, crossing(), decided(0.1, observed=True), *again, clear(40_000), END)
    assert found.refused == ("shop/hog",)
    assert found.summary.count("shop/hog") <= 2
    assert len([step for step in found.steps if step["what"] == "refused"]) == 3


@pytest.mark.parametrize("events", [(refused(3),), (crossing(), clear(10), refused(8_000))], ids=["before", "after"])
def test_alone_it_makes_no_incident_and_keeps_none_open(events: tuple[Any, ...]) -> None:
    found = episodes(*START, *events, END)
    assert all(e.end_ns <= ms(10) for e in found)
    assert not any(isinstance(event, Refused) for e in found for event in e.events)
