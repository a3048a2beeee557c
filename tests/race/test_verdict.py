"""One episode per verdict and flag, with the truth known; and the laws every verdict keeps."""

from __future__ import annotations

import pytest

from monitor.race.episode import Episode
from monitor.race.events import End, Event, Lost, Reclaim
from monitor.race.facts import facts
from monitor.race.incident import FLAGS, VERDICTS, Incident, timestamp
from monitor.race.verdict import verdict
from tests.race.builders import (
    CAPACITY,
    MI,
    MS,
    PODS,
    clear,
    crossing,
    decided,
    died,
    episodes,
    gone,
    growing,
    kill,
    mark,
    ms,
    one,
    pod,
    ranked,
    same_after_json,
    sample,
    signalled,
    watched,
)

START = (watched(), ranked())
GROWTH = tuple(growing(-1000, -100, 800, 100))
MARKED = (kill(3, pid=4242), mark(3.002), died(10))
UNSEEN = (kill(3), mark(3.002, oom_inactive_file=400 * MI), died(10))
EVICTED = (decided(0.1), signalled(0.15), gone(8))
CLEAR = (clear(12), End(ms(5000)))
OWN = {"scope": "container", "oom_path": "/kubepods/hog/main", "oom_limit": 64 * MI, "oom_usage": 64 * MI}
KUBELET = {"by": "kubelet"}

#: name -> events, verdict, flags
SCENARIOS: dict[str, tuple[tuple[Event, ...], str, set[str]]] = {
    "eviction won": ((*START, *GROWTH, crossing(), *EVICTED, *CLEAR), "eviction_won", set()),
    "its victim was marked while it died": (
        (*START, crossing(), *EVICTED[:2], mark(3, exiting=True), gone(8), died(8), *CLEAR),
        "eviction_won",
        {"already_exiting"},
    ),
    "never crossed": ((*START, sample(-10, 950, 400), *UNSEEN, End(ms(5000))), "oom_unseen", set()),
    "crossed in one leap": ((*START, sample(-10, 400), *MARKED, End(ms(5000))), "oom_before_decision", set()),
    "crossed and clear again long before": (
        (*START, crossing(-900), clear(-890), *UNSEEN, End(ms(5000))),
        "oom_unseen",
        set(),
    ),
    "the machine, in kernel memory": (
        (*START, sample(-10, 600), mark(3, scope="global", oom_path=None, oom_limit=None, oom_usage=None), died(9)),
        "oom_unseen",
        {"global"},
    ),
    "before anybody decided": ((*START, *GROWTH, crossing(), *MARKED, *CLEAR), "oom_before_decision", set()),
    "decided too late": ((*START, crossing(), *MARKED, decided(3.5), gone(11), *CLEAR), "oom_before_decision", set()),
    "in the grace of a soft threshold": (
        (*START, crossing(-900, 200, hard=False, quantity=200 * MI), *MARKED, clear(12, hard=False), End(ms(5000))),
        "oom_before_decision",
        set(),
    ),
    "during the grace of its victim": (
        (
            *START,
            *GROWTH,
            crossing(),
            decided(1, hard=False, grace_s=30),
            signalled(1, signal=15),
            *MARKED,
            gone(11),
            *CLEAR,
        ),
        "oom_during_grace",
        set(),
    ),
    "during the kubelet's grace": (
        (
            *START,
            crossing(-5900),
            decided(0, **KUBELET),
            signalled(1, signal=15, by="kubelet"),
            *MARKED,
            *CLEAR,
            gone(2100, by="kubelet"),
        ),
        "oom_during_grace",
        set(),
    ),
    "after an eviction that freed too little": (
        (*START, *GROWTH, crossing(-50), decided(-49), signalled(-49), gone(-40, freed_mi=10), *MARKED, *CLEAR),
        "oom_after_eviction",
        set(),
    ),
    "a container at its own limit": (
        (*START, kill(3), mark(3.002, **OWN), died(9), End(ms(5000))),
        "own_limit",
        set(),
    ),
    "a pod at its own limit": (
        (*START, mark(3, **{**OWN, "scope": "pod", "oom_path": "/kubepods/hog"}), died(9), End(ms(5000))),
        "own_limit",
        set(),
    ),
    "a service outside every pod at its limit": (
        (*START, mark(3, name=None, **{**OWN, "scope": "outside", "oom_path": "/system/cron"}), died(9)),
        "own_limit",
        set(),
    ),
    "the limit of kubepods": (
        (
            *START,
            crossing(0, domain="kubepods", signal="allocatableMemory.available"),
            mark(3, scope="kubepods", oom_path="/kubepods"),
            died(9),
            clear(12, domain="kubepods", signal="allocatableMemory.available"),
            End(ms(5000)),
        ),
        "oom_before_decision",
        {"kubepods_limit"},
    ),
    "the limit of a class of pods": (
        (*START, mark(3, scope="pods", oom_path="/kubepods/burstable", oom_limit=64 * MI, oom_usage=64 * MI), died(9)),
        "oom_unseen",
        {"kubepods_limit"},
    ),
    "the machine ran out": (
        (*START, crossing(), mark(3, scope="global", oom_path=None, oom_limit=None, oom_usage=None), died(9), *CLEAR),
        "oom_before_decision",
        {"global"},
    ),
    "wrong victim": (
        (*START, crossing(), mark(3, "db", oom_score_adj=999), died(9), *CLEAR),
        "oom_before_decision",
        {"wrong_victim"},
    ),
    "a critical pod is always the wrong victim": (
        (*START, crossing(), mark(3, "agent"), died(9), *CLEAR),
        "oom_before_decision",
        {"wrong_victim"},
    ),
    "the second victim is right once the first is gone": (
        (*START, crossing(), mark(3), died(9), mark(90, "cart", pid=5), died(95, 5), clear(99), End(ms(5000))),
        "oom_before_decision",
        set(),
    ),
    "collateral": ((*START, crossing(), mark(3, None), died(9), *CLEAR), "oom_before_decision", {"collateral"}),
    "group kill": (
        (*START, mark(3, **OWN, group=True), mark(3.1, pid=4243, **OWN, group=True), died(9), died(9, 4243)),
        "own_limit",
        {"group_kill"},
    ),
    "two processes of one invoker long apart are no group": (
        (*START, mark(3, **OWN), mark(30, pid=4243, **OWN), died(9), died(39, 4243)),
        "own_limit",
        set(),
    ),
    "two processes of one invoker that are known to be no group": (
        (*START, mark(3, **OWN, group=False), mark(4, pid=4243, **OWN, group=False), died(9), died(39, 4243)),
        "own_limit",
        set(),
    ),
    "marks lost long before": (
        (*START, Lost(ms(-9), ms(-20), "oom", 5), crossing(), *CLEAR),
        "relieved",
        {"lost_events"},
    ),
    "lost marks beside a kill that an observed eviction came before": (
        (
            *START,
            crossing(),
            decided(0.1, observed=True, working_set=0),
            Lost(ms(1), ms(-1), "oom", 5),
            mark(30),
            died(40),
            clear(41),
            End(ms(5000)),
        ),
        "eviction_won",
        {"lost_events"},
    ),
    "what was met before it cleared does not count": (
        (*START, sample(-50, 950), crossing(-50), clear(-40), mark(3, oom_inactive_file=None), died(9), End(ms(5000))),
        "oom_unseen",
        set(),
    ),
    "user kill": ((*START, kill(3, code=0), died(4), End(ms(5000))), "relieved", {"user_kill"}),
    "a user kill under pressure": (
        (*START, crossing(), kill(3, code=0), *CLEAR),
        "relieved",
        {"user_kill"},
    ),
    "our own kills are no user kills": (
        (*START, crossing(), decided(0.1), kill(0.12, code=0, ours=True), signalled(0.15), gone(8), *CLEAR),
        "eviction_won",
        set(),
    ),
    "what the kubelet's runtime kills is no user kill": (
        (
            *START,
            crossing(),
            decided(50, **KUBELET),
            signalled(51, signal=15, by="kubelet"),
            kill(2051, code=0),
            signalled(2051, by="kubelet"),
            gone(2060, by="kubelet"),
            clear(2061),
            End(ms(9000)),
        ),
        "eviction_won",
        set(),
    ),
    "what the runtime kills after an OOM is no user kill": (
        (*START, mark(3, **OWN), died(9), kill(20, pid=5, code=0), End(ms(5000))),
        "own_limit",
        set(),
    ),
    "only an exiting process was marked": (
        (*START, mark(3, **OWN, exiting=True), died(9), End(ms(5000))),
        "relieved",
        {"already_exiting"},
    ),
    "relieved": ((*START, crossing(), *CLEAR), "relieved", set()),
    "evicted although memory had come back": (
        (
            *START,
            crossing(),
            clear(5, 400),
            decided(9, available_mi=90, **KUBELET),
            signalled(10, signal=15, by="kubelet"),
            gone(2020, by="kubelet"),
            End(ms(9000)),
        ),
        "eviction_won",
        {"over_eviction"},
    ),
    "a second pod before the first one was gone": (
        (
            *START,
            crossing(),
            decided(0.1, available_mi=95),
            signalled(0.15),
            decided(5, "cart", available_mi=90),
            signalled(5.1, "cart"),
            gone(8),
            gone(9, "cart", 200),
            *CLEAR,
        ),
        "eviction_won",
        {"over_eviction"},
    ),
    "a second pod that was needed": (
        (
            *START,
            crossing(),
            decided(0.1),
            signalled(0.15),
            gone(8, freed_mi=1),
            decided(9, "cart", available_mi=90),
            signalled(9.1, "cart"),
            gone(12, "cart", 200),
            clear(13),
            End(ms(5000)),
        ),
        "eviction_won",
        set(),
    ),
    "min reclaim keeps a second eviction justified": (
        (
            *START,
            crossing(),
            decided(0.1),
            signalled(0.15),
            gone(8, freed_mi=50),
            decided(9, "cart", available_mi=150, min_reclaim=100 * MI),
            signalled(9.1, "cart"),
            gone(12, "cart", 200),
            clear(13),
            End(ms(5000)),
        ),
        "eviction_won",
        set(),
    ),
    "lost samples do not matter": (
        (*START, Lost(ms(1), ms(-1), "sample", 5), crossing(), *CLEAR),
        "relieved",
        set(),
    ),
    "lost marks do": (
        (*START, crossing(), Lost(ms(1), ms(-1), "oom", 5), *CLEAR),
        "undetermined",
        {"lost_events"},
    ),
    "lost marks beside a mark do not": (
        (*START, crossing(), Lost(ms(1), ms(-1), "oom", 5), *MARKED, *CLEAR),
        "oom_before_decision",
        {"lost_events"},
    ),
    "a lost crossing": (
        (*START, Lost(ms(1), ms(-1), "cross", 5), *UNSEEN, End(ms(5000))),
        "undetermined",
        {"lost_events"},
    ),
    "the record stops": ((*START, crossing(), End(ms(1000))), "undetermined", set()),
    "the record stops before the pod is gone": (
        (*START, crossing(), *EVICTED[:2], End(ms(1000))),
        "undetermined",
        set(),
    ),
    "observed, in time": (
        (
            *START,
            *GROWTH,
            crossing(),
            decided(0.1, observed=True, working_set=7 * MI),
            mark(30),
            died(40),
            clear(41),
            End(ms(5000)),
        ),
        "eviction_won",
        set(),
    ),
    "observed, too late": (
        (*START, crossing(), decided(2.9, observed=True), *MARKED, *CLEAR),
        "oom_during_grace",
        set(),
    ),
    "observed, and nobody died": ((*START, crossing(), decided(1, observed=True), *CLEAR), "relieved", set()),
    "an eviction by a kubelet": (
        (
            *START,
            crossing(-5900),
            decided(0, **KUBELET),
            signalled(1, signal=15, by="kubelet"),
            gone(2100, by="kubelet"),
            clear(2200),
            End(ms(9000)),
        ),
        "eviction_won",
        set(),
    ),
}


def judged(name: str) -> Incident:
    return verdict(one(*SCENARIOS[name][0]))


@pytest.mark.parametrize("name", SCENARIOS)
def test_verdict_and_flags(name: str) -> None:
    found = judged(name)
    assert (found.verdict, set(found.flags)) == SCENARIOS[name][1:]


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_incident_can_be_stored_and_read(name: str) -> None:
    found = judged(name)
    assert same_after_json(found)
    assert same_after_json(one(*SCENARIOS[name][0]))  # type: ignore[arg-type]
    assert list(found.to_json())[:14] == [
        "id", "start", "end", "domain", "verdict", "flags", "oom_victims", "invoker", "evicted",
        "margin_bytes", "margin_ms", "steps", "advice", "summary",
    ]  # fmt: skip
    assert "steps" not in found.to_json(steps=False)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_incident_is_said_in_one_sentence(name: str) -> None:
    found = judged(name)
    assert found.summary.endswith(".")
    assert 20 < len(found.summary) < 330
    assert "None" not in found.summary + found.advice
    assert all(a["t_ms"] <= b["t_ms"] for a, b in zip(found.steps, found.steps[1:], strict=False))


def test_every_verdict_and_flag_has_a_scenario() -> None:
    assert {v for _, v, _ in SCENARIOS.values()} == set(VERDICTS)
    assert set().union(*(flags for _, _, flags in SCENARIOS.values())) == set(FLAGS)


def test_an_incident_has_the_keys_of_the_contract() -> None:
    found = judged("during the grace of its victim").to_json()
    assert found["oom_victims"] == [
        {
            "pid": 4242,
            "comm": "python3",
            "pod": "shop/hog",
            "memcg": "/kubepods/hog/main",
            "rss_bytes": 500 * MI,
            "oom_score_adj": 1000,
            "policy_rank": 1,
        }
    ]
    assert found["invoker"] == {"pid": 77, "comm": "nginx", "pod": "shop/cart"}
    assert found["evicted"] == [{"pod": "shop/hog", "grace_s": 30, "rank": 1}]
    assert found["domain"] == "node"


@pytest.mark.parametrize(
    ("name", "observed", "by"),
    [
        ("eviction won", False, "outrace"),
        ("observed, in time", True, "outrace"),
        ("observed, too late", True, "outrace"),
        ("observed, and nobody died", True, "outrace"),
        ("an eviction by a kubelet", False, "kubelet"),
        ("during the kubelet's grace", False, "kubelet"),
        ("relieved", False, None),
    ],
)
def test_whose_eviction_it_is_about(name: str, observed: bool, by: str | None) -> None:
    found = judged(name)
    assert (found.observed, found.by) == (observed, by)


def test_margins_of_an_eviction_that_won() -> None:
    found = judged("eviction won")
    # 99.75 MiB were left, growing by 100 MiB/s: the limit would have been hit 1 s after the decision, the pod was gone
    # after 7.9 ms.
    assert found.margin_bytes == 99.75 * MI
    assert found.margin_ms == pytest.approx(997.5 - 7.9, abs=1)


def test_an_eviction_that_was_slower_than_the_forecast_has_no_time_to_spare() -> None:
    found = verdict(one(*START, *GROWTH, crossing(), decided(0.1), signalled(0.2), gone(1500), clear(1600)))
    assert (found.verdict, found.margin_ms) == ("eviction_won", 0.0)


def test_margin_of_an_oom_that_was_never_seen() -> None:
    found = judged("never crossed")  # 1000 MiB in use, 400 of them inactive cache, which counts as available
    assert found.margin_bytes == -300 * MI
    assert "400 MiB were available, and the threshold is 100 MiB" in found.summary
    assert "memory.available<401Mi" in found.advice


def test_margin_of_a_decision_that_came_late() -> None:
    assert judged("decided too late").margin_ms == pytest.approx(-0.498)
    assert judged("before anybody decided").margin_ms is None


def test_margin_during_a_grace() -> None:
    found = judged("during the grace of its victim")
    assert found.margin_ms == pytest.approx(-(30_000 - 2.002 + 1), abs=0.01)
    assert "30 s before its grace of 30 s was over" in found.summary
    assert judged("during the kubelet's grace").margin_ms == pytest.approx(-(2000 - 2.002 + 1), abs=0.01)


def test_margin_of_an_eviction_that_freed_too_little() -> None:
    found = judged("after an eviction that freed too little")
    assert found.margin_ms == pytest.approx(-43.002)
    assert found.margin_bytes == -109.75 * MI  # 900.25 in use, 10 given back, and 1000 is the limit
    assert "evictionMinimumReclaim memory.available=110Mi" in found.advice


def test_margin_of_an_observed_eviction_is_measured_against_the_kill() -> None:
    # Decided 0.1 ms after the crossing, 1 ms to die and 1.05 ms for 7 MiB: gone at 2.15 ms, killed at 30 ms.
    assert judged("observed, in time").margin_ms == pytest.approx(27.85, abs=0.01)


def test_the_policy_rank_counts_pods_that_may_be_evicted() -> None:
    assert judged("wrong victim").oom_victims[0].policy_rank == 3
    assert judged("a critical pod is always the wrong victim").oom_victims[0].policy_rank is None
    assert judged("collateral").oom_victims[0].policy_rank is None


def test_the_order_can_be_given_where_no_event_tells_it() -> None:
    episode = one(watched(), crossing(), mark(3, "db"), died(9), *CLEAR)
    assert "wrong_victim" not in verdict(episode).flags
    assert "wrong_victim" in verdict(episode, PODS).flags


def test_the_order_is_the_last_one_told_before_the_kill() -> None:
    other = (pod("db", 900 * MI), *PODS[:2])
    late = one(watched(), ranked(), crossing(), *MARKED, ranked(4, other), *CLEAR)
    assert facts(late).order == PODS


def test_advice_for_a_polling_kubelet_and_for_outrace() -> None:
    fast = judged("before anybody decided")  # 100 MiB/s: 12 s are 1200 MiB, 5 ms are half a MiB
    assert "no threshold is enough for a kubelet" in fast.advice
    assert "outrace --enforce needs memory.available<1Mi" in fast.advice
    slow = verdict(one(*START, *growing(-1000, -100, 890, 10), crossing(), *MARKED, *CLEAR))
    assert "a kubelet that looks every 10 s needs memory.available<120Mi" in slow.advice


def test_the_grace_of_a_soft_threshold_is_compared_with_the_way_to_the_limit() -> None:
    soft = {"hard": False, "quantity": 200 * MI}
    told = watched(**soft, grace_s=60.0)
    episode = one(*START, told, crossing(-900, 200, **soft), *MARKED, clear(12, hard=False), End(ms(5000)))
    assert "takes 903 ms: its grace of 60 s has to be shorter" in verdict(episode).advice


def test_the_timeline_has_every_step_and_what_grew_before() -> None:
    podly = [sample(t, used, domain="/kubepods/hog", pod="uid-hog", limit=None) for t, used in ((-900, 10), (-1, 99))]
    cache = [
        sample(-900, 300, 100, domain="/kubepods/db", active_file=0),
        sample(-1, 300, 20, domain="/kubepods/db", active_file=80 * MI),
    ]
    episode = one(*START, *podly, *cache, Reclaim(ms(-0.5), "/node"), crossing(), *EVICTED, *CLEAR)
    found = verdict(episode).steps
    assert [s["what"] for s in found] == [
        "grew", "grew", "cache_activated", "reclaim", "crossed", "decided", "signalled", "gone", "clear",
    ]  # fmt: skip
    assert found[0] | {"pod": "shop/hog", "bytes": 89 * MI, "t_ms": -1.0} == found[0]
    assert found[2]["active_file"] == 80 * MI
    assert found[5] | {"t_ms": 0.1, "pod": "shop/hog", "available": round(99.75 * MI)} == found[5]


def test_steps_of_a_kind_are_limited_and_the_rest_counted() -> None:
    marks = [mark(3 + k / 100, pid=100 + k, **OWN, group=True) for k in range(200)]
    found = verdict(one(*START, *marks, *(died(50, 100 + k) for k in range(200)))).steps
    assert sum(s["what"] == "oom" for s in found) == 64
    assert {"what": "more", "of": "oom", "count": 136} in [{k: v for k, v in s.items() if k != "t_ms"} for s in found]


def test_a_process_marked_twice_is_one_victim() -> None:
    assert len(verdict(one(*START, mark(3), mark(4), died(9))).oom_victims) == 1


def test_two_limits_are_two_incidents() -> None:
    other = {**OWN, "oom_path": "/kubepods/cart/main"}
    found = episodes(*START, mark(3, **OWN), mark(4, "cart", pid=5, **other), died(9), died(9, 5), End(ms(9000)))
    assert [e.domain for e in found] == ["/kubepods/hog/main", "/kubepods/cart/main"]
    assert [verdict(e).verdict for e in found] == ["own_limit", "own_limit"]
    assert len({verdict(e).id for e in found}) == 2


def test_an_empty_episode_gets_a_verdict_too() -> None:
    assert verdict(Episode("node", ms(0), ms(1), "quiet", ())).verdict == "relieved"


def test_times_are_written_as_dates() -> None:
    assert timestamp(0) == "1970-01-01T00:00:00.000Z"
    assert timestamp(951_826_149_123 * MS) == "2000-02-29T12:09:09.123Z"
    assert timestamp(4_107_542_399_999 * MS) == "2100-02-28T23:59:59.999Z"
    found = verdict(one(*SCENARIOS["eviction won"][0]), realtime_ns=1_800_000_000 * 10**9)
    assert (found.start, found.id) == ("2027-01-15T08:16:40.000Z", "20270115-081640.000-node")
    assert found.margin_bytes is not None
    assert found.margin_bytes <= CAPACITY
