"""One episode per verdict and flag, with the truth known."""

from monitor.race.events import KMSG_BY_HAND, Checked, End, Event, Lost
from monitor.race.incident import Incident
from tests.race.builders import (
    KUBEPODS,
    MI,
    OWN,
    START,
    clear,
    crossing,
    decided,
    died,
    gone,
    growing,
    held,
    hold,
    hold_end,
    judged,
    kill,
    mark,
    ms,
    reported,
    sample,
    signalled,
    stalled,
    watched,
)

GROWTH = tuple(growing(-1000, -100, 800, 100))
MARKED = (kill(3, pid=4242), mark(3.002), died(10))
UNSEEN = (kill(3), mark(3.002, oom_inactive_file=400 * MI), died(10))
BY_HAND = Checked(ms(4), KMSG_BY_HAND, 4242, True, "SysRq f asked for this kill (order=-1)")
EVICTED = (decided(0.1), signalled(0.15), gone(8))
CLEAR = (clear(12), End(ms(5000)))
OVER = (End(ms(9000)),)
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
        "a kill by SysRq f is no part of the race beside it": (
            *GROWTH, crossing(), mark(3, "db", pid=9, invoker_tid=9), Checked(ms(4), KMSG_BY_HAND, 9, True, ""),
            *MARKED, *OVER,
        ),
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
        "evictions were suspended": (*GROWTH, crossing(), held(0.1), *MARKED, *CLEAR),
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
            crossing(0, **KUBEPODS),
            mark(3, scope="kubepods", oom_path="/kubepods"), died(9),
            clear(12, **KUBEPODS), End(ms(5000)),
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
    ("own_limit",): {
        "a container at its own limit": (kill(3), mark(3.002, **OWN), died(9), End(ms(5000))),
        "a pod at its own limit": (
            mark(3, **{**OWN, "scope": "pod", "oom_path": "/kubepods/hog"}), died(9), End(ms(5000)),
        ),
        "a service outside every pod at its limit": (
            mark(3, name=None, **{**OWN, "scope": "outside", "oom_path": "/system/cron"}), died(9),
        ),
        "two processes of one invoker long apart are no group": (
            mark(3, **OWN), mark(30, pid=4243, **OWN), died(9), died(39, 4243),
        ),
        "two processes of one invoker that are known to be no group": (
            mark(3, **OWN, group=False), mark(4, pid=4243, **OWN, group=False), died(9), died(39, 4243),
        ),
        "what the runtime kills after an OOM is no user kill": (
            mark(3, **OWN), died(9), kill(20, pid=5, code=0), End(ms(5000)),
        ),
    },
    ("own_limit", "by_hand", "group_kill"): {
        "SysRq f, and a container that dies as a whole": (
            mark(3, group=True), mark(3.1, pid=4243, group=True), died(9), died(9, 4243), BY_HAND, End(ms(5000)),
        ),
    },
    ("own_limit", "by_hand"): {
        "SysRq f, with plenty of memory": (kill(3), mark(3.002), died(9), BY_HAND, End(ms(5000))),
        "SysRq f under pressure, before outrace decided": (
            *GROWTH, crossing(), kill(3), mark(3.002), died(9), BY_HAND, clear(12), End(ms(5000)),
        ),
    },
    ("own_limit", "group_kill"): {
        "group kill": (mark(3, **OWN, group=True), mark(3.1, pid=4243, **OWN, group=True), died(9), died(9, 4243)),
        "a group whose kills are printed on a slow console": (
            mark(3, **OWN, group=True), mark(180, pid=4243, **OWN, group=True), died(9), died(189, 4243),
        ),
    },
    ("relieved",): {
        "relieved": (crossing(), *CLEAR),
        "lost samples do not matter": (Lost(ms(1), ms(-1), "sample", 5), crossing(), *CLEAR),
        "nor do lost reports of reclaim": (Lost(ms(1), ms(-1), "reclaim", 5), crossing(), *CLEAR),
        "observed, and nobody died": (crossing(), decided(1, observed=True), *CLEAR),
    },
    ("relieved", "already_exiting"): {
        "only an exiting process was marked": (mark(3, **OWN, exiting=True), died(9), End(ms(5000))),
    },
    ("relieved", "braked"): {
        "evictions were suspended and it went away": (crossing(), held(0.1), held(11, ""), *CLEAR),
    },
    ("relieved", "kubelet_only"): {
        "only the kubelet's formula was crossed": (
            *OWN_LINES, crossing(), sample(100, 990, 10, active_file=600 * MI), *CLEAR,
        ),
    },
    ("relieved", "held"): {
        "held until there was room": (*GROWTH, crossing(), hold(0.5), hold_end(900, "clear"), clear(890), *OVER),
    },
    ("eviction_won", "held"): {
        "held, then killed at the second line": (
            *GROWTH, crossing(), hold(0.5), hold_end(50, "second_line"), decided(50), signalled(50.1), gone(60),
            clear(61), *OVER,
        ),
    },
    ("eviction_won", "held", "held_then_evicted"): {
        "held, then the kubelet evicted it": (
            *GROWTH, crossing(), hold(0.5), kill(8000, pid=1, code=0, sender_comm="runc"), gone(8100, by="kubelet"),
            hold_end(8100, "gone"), clear(8105), reported(9000), End(ms(20_000)),
        ),
    },
    ("eviction_won", "held", "hold_unanswered"): {
        "held, and the kubelet took another pod": (
            *GROWTH, crossing(), hold(0.5), kill(8000, "db", pid=1, code=0, sender_comm="runc"),
            gone(8100, "db", by="kubelet"), hold_end(8200, "other_pod", instead="shop/db"), decided(8200),
            signalled(8200.1), gone(8210), clear(8211), End(ms(20_000)),
        ),
    },
    ("own_limit", "held"): {
        "killed at the cap of its hold": (mark(3, **OWN, held=True), died(9), End(ms(5000))),
    },
    ("relieved", "lost_events"): {
        "marks lost long before": (Lost(ms(-9), ms(-20), "oom", 5), crossing(), *CLEAR),
    },
    ("relieved", "user_kill"): {
        "user kill": (kill(3, code=0), died(4), End(ms(5000))),
        "a user kill under pressure": (crossing(), kill(3, code=0), *CLEAR),
    },
    ("stalled",): {
        "a pod waits for what another took": (stalled(0), stalled(9000, over="freed"), End(ms(20_000))),
    },
    ("stalled", "own_limit"): {
        "a pod waits at its own limit": (stalled(0, why="own_limit", cause="uid-web"), End(ms(20_000))),
    },
    ("stalled", "throttled"): {
        "a pod waits at its memory.high": (stalled(0, why="throttled", cause="uid-web"), End(ms(20_000))),
    },
    ("stalled", "swap"): {
        "a pod waits for swap": (stalled(0, why="outside", cause=None, swap=True), End(ms(20_000))),
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
