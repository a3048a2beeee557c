"""One episode per verdict and flag, with the truth known."""

from __future__ import annotations

from monitor.race.events import End, Event, Lost
from monitor.race.incident import Incident
from monitor.race.verdict import verdict
from tests.race.builders import (
    MI,
    clear,
    crossing,
    decided,
    died,
    gone,
    held,
    kill,
    mark,
    ms,
    one,
    sample,
    signalled,
)
from tests.race.scenario_parts import CLEAR, EVICTED, GAPS, GROWTH, KUBELET, MARKED, OWN, START, UNSEEN

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
    "evictions were held": (
        (*START, *GROWTH, crossing(), held(0.1), *MARKED, *CLEAR),
        "oom_before_decision",
        {"braked"},
    ),
    "evictions were held and it went away": (
        (*START, crossing(), held(0.1), held(11, ""), *CLEAR),
        "relieved",
        {"braked"},
    ),
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
    "a container at its own limit": ((*START, kill(3), mark(3.002, **OWN), died(9), End(ms(5000))), "own_limit", set()),
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
    "a group whose kills are printed on a slow console": (
        (*START, mark(3, **OWN, group=True), mark(180, pid=4243, **OWN, group=True), died(9), died(189, 4243)),
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
    "a user kill under pressure": ((*START, crossing(), kill(3, code=0), *CLEAR), "relieved", {"user_kill"}),
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
    "a second pod before the first one had given back what it had, which was enough": (
        (
            *START,
            crossing(),
            decided(0.1),
            signalled(0.15),
            gone(24, settled_ns=ms(50)),
            decided(24.5, "cart", available_mi=15.8, coming=499 * MI, working_set=40 * MI),
            signalled(24.6, "cart"),
            gone(25, "cart", 40, settled_ns=ms(25)),
            clear(40, 400),
            End(ms(9000)),
        ),
        "eviction_won",
        {"over_eviction"},
    ),
    "a second pod, because the first one kept what it had": (
        (
            *START,
            crossing(),
            decided(0.1),
            signalled(0.15),
            gone(24, freed_mi=3, settled_ns=ms(600)),
            decided(250, "cart", available_mi=15.8, coming=497 * MI, working_set=400 * MI),
            signalled(250, "cart"),
            gone(290, "cart", 400, settled_ns=ms(290)),
            clear(291, 400),
            End(ms(9000)),
        ),
        "eviction_won",
        set(),
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
    **GAPS,
}


def judged(name: str) -> Incident:
    return verdict(one(*SCENARIOS[name][0]))
