"""What a kill is judged by: which evictions still stand, whether they held enough, which marks are kills at all."""

import pytest

from monitor.race.episode import Episode, State, feed, ongoing
from monitor.race.events import End, Event, Lost
from monitor.race.verdict import verdict
from tests.race.builders import (
    KUBEPODS,
    MI,
    OWN_POD,
    START,
    clear,
    crossing,
    decided,
    died,
    gone,
    growing,
    judged,
    kill,
    mark,
    ms,
    sample,
    signalled,
)

#: 100 MiB/s; crossed and decided at 900.25 MiB, killed at 1000 MiB about a second later.
GROWTH = tuple(growing(-1000, 1000, 800, 100))
GLOBAL = {"scope": "global", "oom_path": None, "oom_limit": None, "oom_usage": None, "oom_inactive_file": None}
OVER = (clear(1100), End(ms(9000)))
MINUTES = 10 * 60 * 1000


def thought(t: float = 0.1, name: str = "cart", held_mi: float | None = 4, **more: object) -> Event:
    return decided(t, name, observed=True, working_set=None if held_mi is None else round(held_mi * MI), **more)


# an eviction that was only thought of has to free enough

OBSERVED: dict[str, tuple[tuple[Event, ...], str, int | None]] = {
    # name -> events, verdict, margin in bytes: held at the kill less the growth from 900.25 to 1000 MiB
    "4 MiB against 99.75": ((thought(), mark(997)), "oom_after_eviction", round(-95.75 * MI)),
    "more than it grew by": ((thought(held_mi=150), mark(997)), "eviction_won", round(50.25 * MI)),
    "exactly what it grew by": ((thought(held_mi=99.75), mark(997)), "oom_after_eviction", 0),
    "it is the one that grew": ((thought(name="hog", held_mi=4), mark(997)), "eviction_won", round(400.25 * MI)),
    "it grew, as its samples show": (
        (thought(), sample(500, 120, domain="/kubepods/cart", pod="uid-cart"), mark(997)), "eviction_won",
        round(20.25 * MI),
    ),
    "two small ones make a large one": (
        (thought(held_mi=60), thought(5, "db", 60), mark(997)), "eviction_won", round(20.25 * MI),
    ),
    "the large one would still have been dying": (
        (thought(), thought(990, "db", 500), mark(997)), "oom_during_grace", None,
    ),
    "the machine has no usage of its own at the mark": ((thought(), mark(997, **GLOBAL)), "oom_after_eviction", None),
    "what it held is not known": ((thought(held_mi=None), mark(997)), "undetermined", None),
}  # fmt: skip


@pytest.mark.parametrize("name", OBSERVED)
def test_a_thought_eviction_wins_only_if_it_would_have_freed_enough(name: str) -> None:
    events, expected, margin = OBSERVED[name]
    found = judged(*START, *GROWTH, crossing(), *events, died(1010), *OVER)
    assert found.verdict == expected
    assert found.observed
    if margin is not None:
        assert found.margin_bytes == margin
    assert ("would have won" in found.summary) == (expected == "eviction_won")


def test_what_was_missing_is_reported_with_its_number() -> None:
    found = judged(*START, *GROWTH, crossing(), thought(), mark(997), died(1010), *OVER)
    assert found.summary == (
        "OOM killer won: outrace would have evicted shop/cart in time, but that was 4.0 MiB, 95.8 MiB less than memory "
        "grew by until it took shop/hog (python3, pid 4242, 500 MiB)."
    )
    assert found.margin_ms == pytest.approx(-995.3, abs=0.1)
    assert "evictionMinimumReclaim memory.available=96Mi has the next pod evicted at once" in found.advice


def test_without_any_number_for_the_growth_nothing_is_claimed() -> None:
    found = judged(*START, crossing(usage=0), thought(usage=None), mark(997, **GLOBAL), died(1010), *OVER)
    assert found.verdict == "undetermined"
    assert found.missing == ("whether what shop/cart held would have been enough",)
    assert "the OOM killer took shop/hog (python3, pid 4242" in found.summary


# evictions that belong to the past

RECROSSED = (crossing(MINUTES), mark(MINUTES + 3), died(MINUTES + 10), clear(MINUTES + 12), End(ms(MINUTES + 5000)))
SOFT = {"hard": False, "quantity": 200 * MI}
#: What keeps the episode going meanwhile: the threshold of another domain, met all the time.
HELD_OPEN = crossing(-5, **KUBEPODS)
CLOSED = (clear(MINUTES + 13, **KUBEPODS),)

PAST: dict[str, tuple[tuple[Event, ...], str]] = {
    "evicted and cleared ten minutes ago": ((decided(0.1), signalled(0.15), gone(8), clear(12)), "oom_before_decision"),
    "thought of, and cleared ten minutes ago": ((thought(name="hog", held_mi=500), clear(12)), "oom_before_decision"),
    "evicted ten minutes ago, never clear": ((decided(0.1), signalled(0.15), gone(8)), "oom_after_eviction"),
    "thought of again after it cleared": (
        (thought(name="hog", held_mi=500), clear(12), crossing(MINUTES - 500), thought(MINUTES - 490, "hog", 500)),
        "eviction_won",
    ),
    "decided anew on the same dying pod": (
        (
            decided(0.1, grace_s=1), signalled(0.15), clear(12), crossing(MINUTES - 50), decided(MINUTES - 49),
            signalled(MINUTES - 48), gone(MINUTES + 9),
        ),
        "oom_during_grace",
    ),
    "decided anew on the same dying pod, which was gone then": (
        (
            decided(0.1), signalled(0.15), clear(12), crossing(MINUTES - 50), decided(MINUTES - 49),
            signalled(MINUTES - 48), gone(MINUTES - 5),
        ),
        "oom_after_eviction",
    ),
    "cleared for a moment, and the pod still in its grace": (
        (
            crossing(MINUTES - 101, 199, **SOFT), decided(MINUTES - 100, grace_s=30, **SOFT),
            signalled(MINUTES - 99, signal=15), clear(MINUTES - 50, hard=False), crossing(MINUTES - 40, 199, **SOFT),
        ),
        "oom_during_grace",
    ),
    "another threshold cleared": (
        (decided(MINUTES - 100), signalled(MINUTES - 99), gone(MINUTES - 90), clear(MINUTES - 50, hard=False)),
        "oom_after_eviction",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAST)
def test_a_kill_is_judged_by_what_was_decided_since_the_threshold_last_cleared(name: str) -> None:
    events, expected = PAST[name]
    found = judged(*START, HELD_OPEN, crossing(), *events, *RECROSSED, *CLOSED)
    assert found.verdict == expected
    if expected == "oom_before_decision":
        assert (found.margin_ms, found.by, found.observed) == (None, None, False)
    if expected == "eviction_won":  # decided 490 ms before, 71 ms to be gone; not by what was thought ten minutes ago
        assert found.margin_ms == pytest.approx(490 + 3 - 1 - 74.9, abs=1)


DOMAINS: dict[str, tuple[tuple[Event, ...], str]] = {
    "the node's kill, an eviction for the node": (
        (crossing(), decided(1), signalled(1), gone(2)), "oom_after_eviction",
    ),
    "the node's kill, an eviction for kubepods": (
        (crossing(), crossing(0, **KUBEPODS), decided(1, **KUBEPODS), signalled(1), gone(2)), "oom_before_decision",
    ),
    "the node's kill, and only kubepods was crossed": ((crossing(0, **KUBEPODS),), "oom_unseen"),
}  # fmt: skip


@pytest.mark.parametrize("name", DOMAINS)
def test_a_kill_is_judged_by_decisions_of_its_own_domain(name: str) -> None:
    events, expected = DOMAINS[name]
    cached = {"oom_inactive_file": 400 * MI}
    found = judged(*START, *events, mark(30, **cached), died(40), clear(41), clear(41, **KUBEPODS), End(ms(9000)))
    assert found.verdict == expected


# did no process die?

SIGKILLED = "shop/hog (python3, pid 4242) got SIGKILL from bash (pid 77)"


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ((crossing(), thought(1), kill(3, code=0), clear(12)), SIGKILLED),
        ((crossing(), kill(3, code=0), clear(12)), SIGKILLED),
        ((kill(3, code=0),), SIGKILLED),
        ((crossing(), thought(1), kill(3, code=0), kill(4, "db", 9, code=0), clear(12)), SIGKILLED + ", and 1 more"),
    ],
)
def test_who_got_sigkill_from_whom_is_reported_and_never_that_nobody_died(
    events: tuple[Event, ...], expected: str
) -> None:
    found = judged(*START, *events, died(9), End(ms(9000)))
    assert found.verdict == "relieved"
    assert "nobody died" not in found.summary
    assert expected in found.summary


# the id

DEEP = "/kubelet/kubepods/burstable/pod0f5a1c2e-1111-2222-3333-444455556666/outrace-test-container"


@pytest.mark.parametrize(
    ("domain", "name"),
    [
        ("node", "node"),
        ("kubepods", "node"),
        ("/kubepods/hog/main", "kubepods-hog-main"),
        (DEEP, "pod0f5a1c2e-1111-2222-3333-444455556666-outrace-test-container"),
        ("/kubepods/" + "x" * 80, "x" * 80),
        ("/a b/c", "a-b-c"),
        ("/", "root"),
    ],
)
def test_an_id_has_whole_names(domain: str, name: str) -> None:
    assert verdict(Episode(domain, ms(0), ms(1), "quiet", ())).id == f"19700101-001640.000-{name}"


@pytest.mark.parametrize("scope", ["node", "kubepods", "global"])
@pytest.mark.parametrize("first", [crossing(0), crossing(0, **KUBEPODS)])
def test_an_id_stays_when_it_turns_out_whose_limit_it_was(first: Event, scope: str) -> None:
    state, seen = State(), []
    for event in (*START, first, mark(300, scope=scope), died(400), clear(500), clear(500, **KUBEPODS), End(ms(9000))):
        state, done = feed(state, event)
        seen += [verdict(e).id for e in (*done, *ongoing(state))]
    assert len(seen) > 2
    assert len(set(seen)) == 1


# undetermined


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ((mark(3),), "the OOM killer took shop/hog (python3, pid 4242, 500 MiB), but this is not known"),
        ((mark(3), mark(4, "db", pid=5)), "and 1 more) of shop/hog and shop/db, but this is not known"),
        ((mark(3, None),), "the OOM killer took a process outside every pod"),
    ],
)
def test_undetermined_names_who_was_killed_and_what_is_missing(events: tuple[Event, ...], expected: str) -> None:
    lost = Lost(ms(1), ms(-1), "decision", 2)
    found = judged(*START, crossing(), lost, *events, died(9), died(9, 5), clear(12), End(ms(9000)))
    assert found.verdict == "undetermined"
    assert expected in found.summary
    assert found.missing[0] in found.summary
    assert len(found.oom_victims) == len(events)


# groups


@pytest.mark.parametrize(
    ("apart_ms", "first", "second", "is_group"),
    [
        (9, {"group": None}, {"group": None}, True),
        (11, {"group": True}, {"group": None}, False),
        (1001, {"group": True}, {"group": True}, False),
        (300, {"memcg": "/kubepods/podx/a", "group": True}, {"memcg": "/kubepods/pody/a", "group": True}, False),
        (0.1, {"memcg": "/kubepods/podx/a", "group": True}, {"memcg": "/kubepods/podx/b", "group": True}, True),
        (9, {"memcg": "/kubepods/podx/a", "group": None}, {"memcg": "/kubepods/podx/b/c", "group": True}, True),
        (9, {"memcg": "/kubepods/podx", "group": True}, {"memcg": "/kubepods/podx/b", "group": False}, True),
        (0.1, {"memcg": "/kubepods/podx/a", "group": None}, {"memcg": "/kubepods/podx/b", "group": None}, False),
        (0.1, {"memcg": "/kubepods/podx/a", "group": False}, {"memcg": "/kubepods/podx/b", "group": False}, False),
        (0.1, {"memcg": "/kubepods/podx/a", "group": True}, {"memcg": "/system/cron", "group": True}, False),
        (0.1, {"group": True}, {"group": True, "invoker_tid": 5}, False),
    ],
)
def test_group_kill(apart_ms: float, first: dict[str, object], second: dict[str, object], is_group: bool) -> None:
    """More of them: scenarios.py."""
    marks = (mark(3, **{**OWN_POD, **first}), mark(3 + apart_ms, pid=4243, **{**OWN_POD, **second}))
    found = judged(*START, *marks, died(30), died(30, 4243), End(ms(9000)))
    assert ("group_kill" in found.flags) == is_group
