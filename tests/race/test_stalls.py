"""Stalls as episodes of their own: the incident, its sentence, and what it is not mixed with."""

from typing import Any

import pytest

from monitor.cli.incident_text import describe
from monitor.race.episode import State, feed, ongoing
from monitor.race.incident import OWN_LIMIT, STALLED, Incident
from monitor.race.verdict import verdict
from tests.race.builders import MI, OWN_POD, T0, clear, crossing, episodes, judged, mark, sample, stalled

PLACE = "/kubepods/web"


THROTTLED = {"why": "throttled", "cause": "uid-web"}
SWAP = {"pod_name": "swap.used", "swap": True}


@pytest.mark.parametrize(
    ("over", "more", "sentence"),
    [
        ("freed", {}, "Stalled: shop/web waited for memory for 30 s, up to 97% of the time; it lacks 33.0 MiB, and "
         "shop/hog grew by 90.0 MiB; it ended when shop/hog had freed memory."),
        ("calm", {"cause_name": "shop/web"}, "it lacks 33.0 MiB, and grew by 90.0 MiB itself;"),
        ("calm", {"why": "own_limit", "cause": "uid-web"}, "it is at its own limit; it ended by itself."),
        ("gone", THROTTLED, "it is at its memory.high; it ended with the pod."),
        ("relaxed", THROTTLED, "it is at its memory.high; it ended when outrace had raised that."),
        ("calm", {"why": "outside", "cause": None}, "memory outside every pod grew by 90.0 MiB;"),
        ("calm", {"why": "unknown", "cause": None}, "no growth explains a third of that;"),
        ("calm", {"why": "files", "cause": None}, "and files that are read or written once took its place;"),
        ("calm", {"full": 0.034}, "it ended by itself; systemd-oomd would do nothing (memory pressure full 3%)."),
        ("calm", {"full": 0.72, "oomd": True}, "it ended by itself; systemd-oomd would have killed."),
        ("evicted", {**SWAP, "why": "swapped"}, "Stalled: up to 97% of swap was in use for 30 s; shop/hog had 90.0 MiB "
         "of it; it ended when outrace had evicted shop/hog."),
        ("calm", {**SWAP, "why": "unknown", "cause_name": None}, "in use for 30 s; no pod had much of it; it ended by "
         "itself."),
    ],
)  # fmt: skip
def test_the_incident_names_pod_and_cause(over: str, more: Any, sentence: str) -> None:
    """Its flags: tests/race/scenarios.py."""
    found = judged(sample(-5000, 600), stalled(0, **more), stalled(20_000, share=0.97, over=over, **more))
    assert (found.verdict, found.domain) == (STALLED, PLACE)
    assert sentence in found.summary
    assert [(step["what"], step["over"]) for step in found.steps] == [("stalled", None), ("stalled", over)]
    assert (found.margin_bytes, found.margin_ms, found.evicted) == (None, None, ())


def test_each_step_of_memory_high_is_a_step_of_the_incident() -> None:
    raised = stalled(12_000, high_before=64 * MI, high=72 * MI, **THROTTLED)
    found = judged(stalled(0, **THROTTLED), raised, stalled(30_000, over="relaxed", **THROTTLED))
    assert [(step["high_before"], step["high"]) for step in found.steps] == [
        (None, None),
        (64 * MI, 72 * MI),
        (None, None),
    ]
    assert describe(dict(found.steps[1])) == "outrace raises memory.high of shop/web from 64.0Mi to 72.0Mi"


def test_the_advice_is_about_the_cause_or_the_pods_own_limit() -> None:
    def advice(**more: Any) -> str:
        return judged(stalled(0, **more), stalled(9000, over="calm", **more)).advice

    assert advice().startswith("Limit the memory of shop/hog, or protect 33Mi more of shop/web")
    assert advice(why="own_limit").startswith("Raise the memory limit of shop/web")
    assert advice(why="throttled").startswith("Raise memory.high of shop/web")
    assert advice(why="files", cause=None).startswith("Protect 33Mi more of shop/web (memory.low")
    assert advice(why="swapped", pod_name="swap.used").startswith("Limit the swap of shop/hog")
    assert advice(why="unknown", cause=None) == ""


def test_it_is_known_while_it_lasts_and_stays_one_incident() -> None:
    state, done = feed(State(), stalled(0))
    assert done == ()
    (now,) = ongoing(state, T0 - 1)
    first = verdict(now)
    assert first.summary.endswith("nothing has ended it yet.")
    for t in (60_000, 3_600_000):  # quiet does not end it
        state, done = feed(state, sample(t, 600))
        assert done == ()
    state, done = feed(state, stalled(3_601_000, over="calm"))
    for t in (3_602_000, 3_610_000):
        state, more = feed(state, sample(t, 600))
        done += more
    (last,) = map(verdict, done)
    assert (first.id, first.verdict, first.start) == (last.id, last.verdict, last.start)


def test_pressure_and_a_kill_in_the_same_pod_are_other_episodes() -> None:
    events = [stalled(0), crossing(100), mark(150, "web", **{**OWN_POD, "oom_path": PLACE, "memcg": PLACE})]
    events += [clear(200), stalled(9000, over="calm")]
    found: dict[str, Incident] = {made.verdict: made for made in map(verdict, episodes(*events))}
    assert set(found) == {STALLED, OWN_LIMIT, "relieved"}
    assert found[STALLED].oom_victims == ()


def test_an_end_without_a_begin_is_no_episode() -> None:
    assert episodes(stalled(0, over="calm")) == []
