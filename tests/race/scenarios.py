"""One episode per verdict and flag, with the truth known."""

from monitor.race.events import End, Event, Lost
from monitor.race.incident import Incident
from tests.race import hold_scenarios, own_limit_scenarios
from tests.race.builders import (
    MI,
    OWN,
    START,
    clear,
    crossing,
    decided,
    died,
    gone,
    held,
    judged,
    kill,
    mark,
    ms,
    sample,
    signalled,
    watched,
)

GROWTH = hold_scenarios.GROWTH
MARKED = (kill(3, pid=4242), mark(3.002), died(10))
UNSEEN = (kill(3), mark(3.002, oom_inactive_file=400 * MI), died(10))
EVICTED = (decided(0.1), signalled(0.15), gone(8))
CLEAR = (clear(12), End(ms(5000)))
OVER = hold_scenarios.OVER
KUBELET = {"by": "kubelet"}

#: The node by memory.reclaimable; the kubelet's line is only compared.
OWN_LINES = (watched(compared=True), watched(signal="memory.reclaimable"))

#: verdict and flags -> name -> events after `START`
_CASES: dict[tuple[str, ...], dict[str, tuple[Event, ...]]] = {
    ("eviction_won",): {
        "eviction won": (*GROWTH, crossing(), *EVICTED, *CLEAR),
        "our own kills are no user kills": (
            crossing(), decided(0.1), kill(0.12, code=0, ours=True), signalled(0.15), gone(8), *CLEAR,
        ),
        "what the kubelet's runtime kills is no user kill": (
            crossing(), decided(50, **KUBELET), signalled(51, signal=15, by="kubelet"), kill(2051, code=0),
            signalled(2051, by="kubelet"), gone(2060, by="kubelet"), clear(2061), End(ms(9000)),
        ),
        "a second pod, because the first one kept what it had": (
            crossing(), decided(0.1), signalled(0.15), gone(24, freed_mi=3, settled_ns=ms(600)),
            decided(250, "cart", available_mi=15.8, coming=497 * MI, working_set=400 * MI), signalled(250, "cart"),
            gone(290, "cart", 400, settled_ns=ms(290)), clear(291, 400), End(ms(9000)),
        ),
        "a second pod that was needed": (
            crossing(), decided(0.1), signalled(0.15), gone(8, freed_mi=1), decided(9, "cart", available_mi=90),
            signalled(9.1, "cart"), gone(12, "cart", 200), clear(13), End(ms(5000)),
        ),
        "min reclaim keeps a second eviction justified": (
            crossing(), decided(0.1), signalled(0.15), gone(8, freed_mi=50),
            decided(9, "cart", available_mi=150, min_reclaim=100 * MI), signalled(9.1, "cart"), gone(12, "cart", 200),
            clear(13), End(ms(5000)),
        ),
        "observed, in time": (
            *GROWTH, crossing(), decided(0.1, observed=True, working_set=7 * MI), mark(30), died(40), clear(41),
            End(ms(5000)),
        ),
        "an eviction by a kubelet": (
            crossing(-5900), decided(0, **KUBELET), signalled(1, signal=15, by="kubelet"), gone(2100, by="kubelet"),
            clear(2200), End(ms(9000)),
        ),
    },
    ("eviction_won", "already_exiting"): {
        "its victim was marked while it died": (
            crossing(), *EVICTED[:2], mark(3, exiting=True), gone(8), died(8), *CLEAR,
        ),
    },
    ("eviction_won", "lost_events"): {
        "lost marks beside a kill that an observed eviction came before": (
            crossing(), decided(0.1, observed=True, working_set=0), Lost(ms(1), ms(-1), "oom", 5), mark(30), died(40),
            clear(41), End(ms(5000)),
        ),
    },
    ("eviction_won", "over_eviction"): {
        "evicted although memory had come back": (
            crossing(), clear(5, 400), decided(9, available_mi=90, **KUBELET), signalled(10, signal=15, by="kubelet"),
            gone(2020, by="kubelet"), End(ms(9000)),
        ),
        "a second pod before the first one had given back what it had, which was enough": (
            crossing(), decided(0.1), signalled(0.15), gone(24, settled_ns=ms(50)),
            decided(24.5, "cart", available_mi=15.8, coming=499 * MI, working_set=40 * MI), signalled(24.6, "cart"),
            gone(25, "cart", 40, settled_ns=ms(25)), clear(40, 400), End(ms(9000)),
        ),
        "a second pod before the first one was gone": (
            crossing(), decided(0.1, available_mi=95), signalled(0.15), decided(5, "cart", available_mi=90),
            signalled(5.1, "cart"), gone(8), gone(9, "cart", 200), *CLEAR,
        ),
    },
    ("oom_after_eviction",): {
        "after an eviction that freed too little": (
            *GROWTH, crossing(-50), decided(-49), signalled(-49), gone(-40, freed_mi=10), *MARKED, *CLEAR,
        ),
    },
    ("oom_before_decision",): {
        "crossed in one leap": (sample(-10, 400), *MARKED, End(ms(5000))),
        "before anybody decided": (*GROWTH, crossing(), *MARKED, *CLEAR),
        "decided too late": (crossing(), *MARKED, decided(3.5), gone(11), *CLEAR),
        "in the grace of a soft threshold": (
            crossing(-900, 200, hard=False, quantity=200 * MI), *MARKED, clear(12, hard=False), End(ms(5000)),
        ),
        "the second victim is right once the first is gone": (
            crossing(), mark(3), died(9), mark(90, "cart", pid=5), died(95, 5), clear(99), End(ms(5000)),
        ),
    },
    ("oom_before_decision", "braked"): {
        "evictions were held": (*GROWTH, crossing(), held(0.1), *MARKED, *CLEAR),
    },
    ("oom_before_decision", "collateral"): {
        "collateral": (crossing(), mark(3, None), died(9), *CLEAR),
    },
    ("oom_before_decision", "global"): {
        "the machine ran out": (
            crossing(), mark(3, scope="global", oom_path=None, oom_limit=None, oom_usage=None), died(9), *CLEAR,
        ),
    },
    ("oom_before_decision", "kubepods_limit"): {
        "the limit of kubepods": (
            crossing(0, domain="kubepods", signal="allocatableMemory.available"),
            mark(3, scope="kubepods", oom_path="/kubepods"), died(9),
            clear(12, domain="kubepods", signal="allocatableMemory.available"), End(ms(5000)),
        ),
    },
    ("oom_before_decision", "lost_events"): {
        "lost marks beside a mark do not": (crossing(), Lost(ms(1), ms(-1), "oom", 5), *MARKED, *CLEAR),
    },
    ("oom_before_decision", "wrong_victim"): {
        "wrong victim": (crossing(), mark(3, "db", oom_score_adj=999), died(9), *CLEAR),
        "a critical pod is always the wrong victim": (crossing(), mark(3, "agent"), died(9), *CLEAR),
    },
    ("oom_during_grace",): {
        "during the grace of its victim": (
            *GROWTH, crossing(), decided(1, hard=False, grace_s=30), signalled(1, signal=15), *MARKED, gone(11),
            *CLEAR,
        ),
        "during the kubelet's grace": (
            crossing(-5900), decided(0, **KUBELET), signalled(1, signal=15, by="kubelet"), *MARKED, *CLEAR,
            gone(2100, by="kubelet"),
        ),
        "observed, too late": (crossing(), decided(2.9, observed=True), *MARKED, *CLEAR),
    },
    ("oom_unseen",): {
        "the kubelet's formula had seen it": (
            *OWN_LINES, crossing(-2000), sample(-100, 990, 10, active_file=300 * MI), *MARKED, clear(12),
            End(ms(5000)),
        ),
        "never crossed": (sample(-10, 950, 400), *UNSEEN, End(ms(5000))),
        "crossed and clear again long before": (crossing(-900), clear(-890), *UNSEEN, End(ms(5000))),
        "what was met before it cleared does not count": (
            sample(-50, 950), crossing(-50), clear(-40), mark(3, oom_inactive_file=None), died(9), End(ms(5000)),
        ),
    },
    ("oom_unseen", "global"): {
        "the machine, in kernel memory": (
            sample(-10, 600), mark(3, scope="global", oom_path=None, oom_limit=None, oom_usage=None), died(9),
        ),
    },
    ("oom_unseen", "kubepods_limit"): {
        "the limit of a class of pods": (
            mark(3, scope="pods", oom_path="/kubepods/burstable", oom_limit=64 * MI, oom_usage=64 * MI), died(9),
        ),
    },
    **own_limit_scenarios.CASES,
    ("relieved",): {
        "relieved": (crossing(), *CLEAR),
        "lost samples do not matter": (Lost(ms(1), ms(-1), "sample", 5), crossing(), *CLEAR),
        "observed, and nobody died": (crossing(), decided(1, observed=True), *CLEAR),
    },
    ("relieved", "already_exiting"): {
        "only an exiting process was marked": (mark(3, **OWN, exiting=True), died(9), End(ms(5000))),
    },
    ("relieved", "braked"): {
        "evictions were held and it went away": (crossing(), held(0.1), held(11, ""), *CLEAR),
    },
    ("relieved", "kubelet_only"): {
        "only the kubelet's formula was crossed": (
            *OWN_LINES, crossing(), sample(100, 990, 10, active_file=600 * MI), *CLEAR,
        ),
    },
    **hold_scenarios.CASES,
    ("relieved", "lost_events"): {
        "marks lost long before": (Lost(ms(-9), ms(-20), "oom", 5), crossing(), *CLEAR),
    },
    ("relieved", "user_kill"): {
        "user kill": (kill(3, code=0), died(4), End(ms(5000))),
        "a user kill under pressure": (crossing(), kill(3, code=0), *CLEAR),
    },
    ("undetermined",): {
        "the record stops": (crossing(), End(ms(1000))),
        "the record stops before the pod is gone": (crossing(), *EVICTED[:2], End(ms(1000))),
    },
    ("undetermined", "lost_events"): {
        "lost marks do": (crossing(), Lost(ms(1), ms(-1), "oom", 5), *CLEAR),
        "a lost crossing": (Lost(ms(1), ms(-1), "cross", 5), *UNSEEN, End(ms(5000))),
    },
}  # fmt: skip
#: name -> events, verdict, flags
SCENARIOS = {
    name: ((*START, *events), verdict, set(flags))
    for (verdict, *flags), cases in _CASES.items()
    for name, events in cases.items()
}


def of_scenario(name: str) -> Incident:
    return judged(*SCENARIOS[name][0])
