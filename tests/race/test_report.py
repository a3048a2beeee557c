"""Incidents summed up: counts, margins, the pods behind them, what is advised."""

import copy
from typing import Any

import pytest

from monitor.race.incident import LOST_RACES, VERDICTS
from monitor.race.report import OfPod, Report, report
from tests.race.builders import same_after_json
from tests.side.incident_samples import DURING_GRACE, EVICTION_WON, MIB, OWN_LIMIT


def incident(**changes: Any) -> dict[str, Any]:
    made = copy.deepcopy(EVICTION_WON)
    del made["steps"]  # a list has none
    return made | changes


def grew(pod: str, mib: int, seconds: float) -> dict[str, Any]:
    points = [[-1000.0 * seconds, 0], [0.0, mib * MIB]]
    curve = {"domain": f"/{pod}", "pod": pod, "grew": mib * MIB, "in_s": seconds, "limit": None, "points": points}
    return curve | {"measure": "working_set"}


def raced(key: str, *curves: dict[str, Any], **changes: Any) -> dict[str, Any]:
    node = grew("node", 999, 1) | {"pod": None}
    return incident(id=key, memory={"lines": [], "curves": [node, *curves]}, **changes)


def pod(found: Report, name: str) -> OfPod:
    [only] = [one for one in found.pods if one.pod == name]
    return only


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_verdict_counts_as_what_it_is(verdict: str) -> None:
    found = report([incident(verdict=verdict), incident(verdict=verdict, observed=True)])
    won, lost = verdict == "eviction_won", verdict in LOST_RACES
    assert (found.won, found.would_have_won, found.lost) == (int(won), int(won), 2 * int(lost))
    assert found.races == 2 * int(won or lost)
    assert [(one.verdict, one.incidents, one.observed) for one in found.verdicts] == [(verdict, 2, 1)]
    assert same_after_json(found)


def test_a_verdict_of_a_later_version_is_counted_too() -> None:
    found = report([incident(verdict="no_idea")])
    assert [(one.verdict, one.incidents) for one in found.verdicts] == [("no_idea", 1)]
    assert found.races == 0


def test_margins_are_the_median_and_the_worst() -> None:
    margins = [(5.0, 30 * MIB), (1.0, 50 * MIB), (9.0, 10 * MIB), (None, None)]
    found = report([incident(id=f"i{n}", margin_ms=t, margin_bytes=b) for n, (t, b) in enumerate(margins)])
    [won] = found.verdicts
    assert (won.median_ms, won.worst_ms, won.worst) == (5.0, 1.0, "i1")
    assert (won.median_bytes, won.worst_bytes) == (30 * MIB, 10 * MIB)


def test_margins_that_are_not_known_are_none_and_not_zero() -> None:
    [one] = report([incident(margin_ms=None, margin_bytes=None)]).verdicts
    assert (one.median_ms, one.worst_ms, one.median_bytes, one.worst_bytes, one.worst) == (None,) * 5
    [of_bytes] = report([incident(id="b", margin_ms=None)]).verdicts
    assert (of_bytes.worst, of_bytes.worst_ms) == ("b", None)


def test_who_grew_comes_before_who_was_killed_for_it() -> None:
    victim = {"pod": "prod/db", "comm": "postgres", "pid": 1}
    lost = {"verdict": "oom_before_decision", "evicted": [], "oom_victims": [victim, victim]}
    found = report(
        [
            raced("a", grew("jobs/batch", 50, 1.0), grew("prod/db", 2, 1.0), **lost),
            raced("b", grew("jobs/batch", 90, 0.5), **lost),
            raced("c", grew("jobs/batch", 10, 9.0), evicted=[{"pod": "jobs/batch"}]),
            raced("d", evicted=[{"pod": "jobs/batch"}], observed=True),
        ]
    )
    assert [one.pod for one in found.pods] == ["jobs/batch", "prod/db"]
    batch = pod(found, "jobs/batch")
    assert (batch.grew_most, batch.evicted, batch.would_be_evicted, batch.oom_killed) == (3, 1, 1, 0)
    assert (batch.grew, batch.in_s, batch.incident) == (90 * MIB, 0.5, "b"), "the fastest, not the largest"
    db = pod(found, "prod/db")
    assert (db.grew_most, db.oom_killed, db.own_limit) == (0, 2, 0), "two processes of a pod are one incident"
    often = [incident(id=f"k{n}", **lost) for n in range(9)]
    assert [one.pod for one in report([raced("a", grew("jobs/z", 50, 1.0), **lost), *often]).pods] == [
        "jobs/z",
        "prod/db",
    ]


def test_an_own_limit_is_no_lost_race() -> None:
    found = report([OWN_LIMIT])
    killed = OWN_LIMIT["oom_victims"][0]["pod"]
    assert (pod(found, killed).own_limit, pod(found, killed).oom_killed) == (1, 0)
    assert (found.races, found.lost) == (0, 0)
    grown = report([{**OWN_LIMIT, "memory": {"lines": [], "curves": [grew(killed, 50, 1.0)]}}])
    assert (pod(grown, killed).own_limit, pod(grown, killed).grew_most, pod(grown, killed).grew) == (1, 0, 50 * MIB)


def test_growth_of_nobody_is_not_known_of_incidents_without_curves() -> None:
    one = pod(report([EVICTION_WON]), "shop/cart")
    assert (one.grew_most, one.grew, one.in_s, one.incident) == (0, None, None, None)
    assert one.evicted == 1
    found = report([EVICTION_WON, incident(memory=None), raced("a", grew("x", 1, 1.0))])
    assert found.growth_unknown == 2


def test_advice_is_grouped_by_verdict_and_pods_and_the_newest_is_said() -> None:
    older = [incident(id=f"i{n}", advice=f"a threshold of {n}Mi") for n in (3, 2, 1)]
    found = report([DURING_GRACE, *older, incident(id="none", advice="")])
    assert [(one.incidents, one.newest) for one in found.advice] == [(3, "i3"), (1, DURING_GRACE["id"])]
    assert found.advice[0].advice == "a threshold of 3Mi"
