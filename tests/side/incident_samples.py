"""Three incidents as the daemon makes them, written by hand; tests change what they need."""

import copy
import datetime
from typing import Any

Incident = dict[str, Any]
MIB = 1 << 20

#: A Burstable pod fills the node and is evicted 21 MiB before the limit.
EVICTION_WON: Incident = {
    "id": "2026-01-31T03:12:09.412Z-node-4f1c",
    "start": "2026-01-31T03:12:09.412Z",
    "end": "2026-01-31T03:12:09.431Z",
    "domain": "node",
    "verdict": "eviction_won",
    "flags": [],
    "oom_victims": [],
    "invoker": None,
    "evicted": [{"pod": "shop/cart", "grace_s": 0, "rank": 1, "figures": None}],
    "margin_bytes": 21 * MIB,
    "margin_ms": 8.73,
    "steps": [
        {
            "t_ms": -412.0,
            "what": "grew",
            "domain": "/kubepods/podcart",
            "pod": "shop/cart",
            "bytes": 180 * MIB,
            "in_s": 2.5,
        },
        {
            "t_ms": 0.0,
            "what": "crossed",
            "domain": "node",
            "signal": "memory.available",
            "kind": "hard",
            "quantity": 100 * MIB,
            "available": 100 * MIB - 65536,
            "usage": 436 * MIB,
            "working_set": 412 * MIB,
        },
        {"t_ms": 0.074, "what": "seen", "by": "outrace", "signal": "memory.available", "available": 98 * MIB},
        {
            "t_ms": 0.112,
            "what": "decided",
            "by": "outrace",
            "pod": "shop/cart",
            "rank": 1,
            "grace_s": 0,
            "available": 97 * MIB,
            "observed": False,
            "trigger": "user",
            "pod_working_set": 280 * MIB,
        },
        {"t_ms": 0.131, "what": "signalled", "by": "outrace", "pod": "shop/cart", "signal": 9},
        {"t_ms": 9.9, "what": "gone", "by": "outrace", "pod": "shop/cart", "freed": 279 * MIB},
        {
            "t_ms": 19.0,
            "what": "clear",
            "domain": "node",
            "signal": "memory.available",
            "kind": "hard",
            "available": 376 * MIB,
        },
    ],
    "advice": "Nothing has to change. A threshold of 79Mi would still have been enough.",
    "summary": "Eviction won: shop/cart was evicted with 21.0 MiB to spare.",
    "observed": False,
    "by": "outrace",
    "missing": [],
    "burst": {
        "signal": "memory.available",
        "capacity": 17179869184,
        "threshold": 104857600,
        "beyond": 0,
        "rate": 52428800.5,
        "most": [[1, 52428], [12500, 655360000]],
        "outside": None,
        "reserved": None,
    },
    "forecast": {
        "before_ms": 11_800.0,
        "in_ms": 12_100.0,
        "soonest_ms": 9_900.0,
        "latest_ms": 15_200.0,
        "interval_holds": 0.8,
        "inside": True,
        "no": "",
    },
    "reported_evicted": [],
    "refused": [],
    "holds": [],
    "memory": None,
    "counterfactual": [
        {
            "mode": "poll",
            "detected": 0.062,
            "in_time": 0.0,
            "in_time_if_obeying": 0.058,
            "p10_ms": 980.0,
            "p50_ms": 4980.0,
            "p90_ms": 9010.0,
            "oom_ms": 620.0,
            "assumed": True,
            "victims": [{"pod": "shop/cart", "probability": 0.71}, {"pod": "shop/search", "probability": 0.29}],
            "figures": {
                "at_ms": 310.0,
                "fresh": "shop/cart",
                "known_s": 15.0,
                "by_age": [
                    {"pod": "shop/cart", "from_s": 0.0, "to_s": 6.0, "share": 0.4},
                    {"pod": "shop/search", "from_s": 6.0, "to_s": 15.0, "share": 0.6},
                ],
                "could": ["shop/cart", "shop/search"],
            },
        }
    ],
}

#: The pod is given 30 s, ignores SIGTERM and goes on growing; the OOM killer takes a process of another one.
DURING_GRACE: Incident = {
    "id": "2026-01-31T04:00:00.000Z-node-77aa",
    "start": "2026-01-31T04:00:00.000Z",
    "end": "2026-01-31T04:00:14.250Z",
    "domain": "node",
    "verdict": "oom_during_grace",
    "flags": ["global", "wrong_victim"],
    "oom_victims": [
        {
            "pid": 4312,
            "comm": "postgres",
            "pod": "prod/db-0",
            "memcg": "/kubepods/poddb",
            "rss_bytes": 310 * MIB,
            "oom_score_adj": 992,
            "policy_rank": 7,
        }
    ],
    "invoker": {"pid": 991, "comm": "stress-ng", "pod": "batch/report"},
    "evicted": [{"pod": "batch/report", "grace_s": 30, "rank": 1, "figures": None}],
    "margin_bytes": -48 * MIB,
    "margin_ms": -15800.0,
    "steps": [
        {
            "t_ms": 0.0,
            "what": "crossed",
            "domain": "node",
            "signal": "memory.available",
            "kind": "soft",
            "quantity": 300 * MIB,
            "available": 299 * MIB,
            "usage": 3700 * MIB,
            "working_set": 3500 * MIB,
        },
        {
            "t_ms": 0.2,
            "what": "decided",
            "by": "outrace",
            "pod": "batch/report",
            "rank": 1,
            "grace_s": 30,
            "available": 299 * MIB,
            "observed": False,
            "trigger": "user",
            "pod_working_set": 900 * MIB,
        },
        {"t_ms": 0.3, "what": "signalled", "by": "outrace", "pod": "batch/report", "signal": 15},
        {"t_ms": 14190.0, "what": "reclaim", "memcg": "global"},
        {
            "t_ms": 14200.0,
            "what": "oom",
            "pid": 4312,
            "comm": "postgres",
            "pod": "prod/db-0",
            "rss": 310 * MIB,
            "oom_score_adj": 992,
            "limit_of": "global",
            "usage": None,
            "limit": None,
            "invoker_pid": 991,
            "invoker": "stress-ng",
        },
        *(
            {"t_ms": 14210.0 + i, "what": "exited", "pid": 4312 + i, "comm": "postgres", "pod": "prod/db-0"}
            for i in range(12)
        ),
        {
            "t_ms": 14230.0,
            "what": "checked",
            "source": "kmsg",
            "agrees": True,
            "detail": "Killed process 4312 (postgres)",
        },
        {
            "t_ms": 14250.0,
            "what": "clear",
            "domain": "node",
            "signal": "memory.available",
            "kind": "soft",
            "available": 340 * MIB,
        },
    ],
    "advice": "Shorten --eviction-max-pod-grace-period to 14 s or less, or raise the request of prod/db-0 to 310Mi.",
    "summary": "OOM won during the grace of batch/report and killed prod/db-0, which the policy would have taken 7th.",
    "observed": False,
    "by": "outrace",
    "missing": [],
    "counterfactual": [],
    "burst": None,
    "forecast": None,
    "reported_evicted": [],
    "refused": [],
    "holds": [],
    "memory": None,
}

#: A container at its own limit: no race.
OWN_LIMIT: Incident = {
    "id": "2026-01-31T05:30:00.500Z-own-0b2d",
    "start": "2026-01-31T05:30:00.500Z",
    "end": "2026-01-31T05:30:00.520Z",
    "domain": "/kubepods/burstable/podapi/main",
    "verdict": "own_limit",
    "flags": ["group_kill"],
    "oom_victims": [
        {
            "pid": 5000 + i,
            "comm": "java",
            "pod": "shop/api",
            "memcg": "/kubepods/burstable/podapi/main",
            "rss_bytes": 120 * MIB,
            "oom_score_adj": 900,
            "policy_rank": 3,
        }
        for i in range(2)
    ],
    "invoker": {"pid": 5000, "comm": "java", "pod": "shop/api"},
    "evicted": [],
    "margin_bytes": None,
    "margin_ms": None,
    "steps": [
        {
            "t_ms": 0.0,
            "what": "oom",
            "pid": 5000,
            "comm": "java",
            "pod": "shop/api",
            "rss": 120 * MIB,
            "oom_score_adj": 900,
            "limit_of": "/kubepods/burstable/podapi/main",
            "usage": 256 * MIB,
            "limit": 256 * MIB,
            "invoker_pid": 5000,
            "invoker": "java",
        },
        {"t_ms": 20.0, "what": "exited", "pid": 5000, "comm": "java", "pod": "shop/api"},
    ],
    "advice": "Raise the memory limit of shop/api above 256Mi.",
    "summary": "No race: shop/api hit its own limit of 256 MiB.",
    "observed": False,
    "by": None,
    "missing": [],
    "counterfactual": [],
    "burst": None,
    "forecast": None,
    "reported_evicted": [],
    "refused": [],
    "holds": [],
    "memory": None,
}
SAMPLES = (EVICTION_WON, DURING_GRACE, OWN_LIMIT)
#: A moment after all of them, in Unix seconds.
NOW = datetime.datetime.fromisoformat("2026-01-31T06:00:00Z").timestamp()


def variant(number: int, of: Incident = EVICTION_WON, **changes: Any) -> Incident:
    """A copy with an id and a start of its own, one second after the other."""
    made = copy.deepcopy(of)
    begin = datetime.datetime.fromisoformat("2026-01-31T03:00:00Z") + datetime.timedelta(seconds=number)
    made["id"] = f"incident-{number:05d}"
    made["start"] = begin.isoformat(timespec="milliseconds")
    made["end"] = (begin + datetime.timedelta(milliseconds=20)).isoformat(timespec="milliseconds")
    return made | changes
