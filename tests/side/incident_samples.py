"""Three incidents as the daemon makes them, written by hand; tests change what they need."""

import copy
import datetime
from typing import Any

Incident = dict[str, Any]
MIB = 1 << 20


def _incident(name: str, end: str, domain: str, verdict: str, **more: Any) -> Incident:
    """One with nothing in it but ``more``. The id begins with its start."""
    nothing = ("flags", "oom_victims", "evicted", "missing", "counterfactual", "reported_evicted", "refused", "holds")
    unknown = ("invoker", "margin_bytes", "margin_ms", "memory", "by")
    made: Incident = {
        "id": name,
        "start": name[:24],
        "end": end,
        "domain": domain,
        "verdict": verdict,
        "observed": False,
    }
    return made | {name: [] for name in nothing} | dict.fromkeys(unknown) | more


def _step(t_ms: float, what: str, **more: Any) -> dict[str, Any]:
    return {"t_ms": t_ms, "what": what, **more}


def _threshold(kind: str, **more: Any) -> dict[str, Any]:
    return {"domain": "node", "signal": "memory.available", "kind": kind, **more}


def _decided(pod: str, grace_s: int, available: int, working_set: int) -> dict[str, Any]:
    made = {"by": "outrace", "pod": pod, "rank": 1, "grace_s": grace_s, "available": available, "observed": False}
    return made | {"trigger": "user", "pod_working_set": working_set}


#: A Burstable pod fills the node and is evicted 21 MiB before the limit.
EVICTION_WON: Incident = _incident(
    "2026-01-31T03:12:09.412Z-node-4f1c",
    "2026-01-31T03:12:09.431Z",
    "node",
    "eviction_won",
    evicted=[{"pod": "shop/cart", "grace_s": 0, "rank": 1}],
    margin_bytes=21 * MIB,
    margin_ms=8.73,
    by="outrace",
    steps=[
        _step(-412.0, "grew", domain="/kubepods/podcart", pod="shop/cart", bytes=180 * MIB, in_s=2.5),
        _step(0.0, "crossed", **_threshold("hard", quantity=100 * MIB, available=100 * MIB - 65536))
        | {"usage": 436 * MIB, "working_set": 412 * MIB},
        _step(0.074, "seen", by="outrace", signal="memory.available", available=98 * MIB),
        _step(0.112, "decided", **_decided("shop/cart", 0, 97 * MIB, 280 * MIB)),
        _step(0.131, "signalled", by="outrace", pod="shop/cart", signal=9),
        _step(9.9, "gone", by="outrace", pod="shop/cart", freed=279 * MIB),
        _step(19.0, "clear", **_threshold("hard", available=376 * MIB)),
    ],
    advice="Nothing has to change. A threshold of 79Mi would still have been enough.",
    summary="Eviction won: shop/cart was evicted with 21.0 MiB to spare.",
    counterfactual=[
        {"mode": "poll", "detected": 0.062, "in_time": 0.0, "in_time_if_obeying": 0.058}
        | {"oom_ms": 620.0, "assumed": True}
    ],
)

_POSTGRES = {"pid": 4312, "comm": "postgres", "pod": "prod/db-0", "oom_score_adj": 992}

#: The pod is given 30 s, ignores SIGTERM and goes on growing; the OOM killer takes a process of another one.
DURING_GRACE: Incident = _incident(
    "2026-01-31T04:00:00.000Z-node-77aa",
    "2026-01-31T04:00:14.250Z",
    "node",
    "oom_during_grace",
    flags=["global", "wrong_victim"],
    oom_victims=[_POSTGRES | {"memcg": "/kubepods/poddb", "rss_bytes": 310 * MIB, "policy_rank": 7}],
    invoker={"pid": 991, "comm": "stress-ng", "pod": "batch/report"},
    evicted=[{"pod": "batch/report", "grace_s": 30, "rank": 1}],
    margin_bytes=-48 * MIB,
    margin_ms=-15800.0,
    by="outrace",
    steps=[
        _step(0.0, "crossed", **_threshold("soft", quantity=300 * MIB, available=299 * MIB))
        | {"usage": 3700 * MIB, "working_set": 3500 * MIB},
        _step(0.2, "decided", **_decided("batch/report", 30, 299 * MIB, 900 * MIB)),
        _step(0.3, "signalled", by="outrace", pod="batch/report", signal=15),
        _step(14190.0, "reclaim", memcg="global"),
        _step(14200.0, "oom", **_POSTGRES, rss=310 * MIB, limit_of="global", usage=None, limit=None)
        | {"invoker_pid": 991, "invoker": "stress-ng"},
        *(_step(14210.0 + i, "exited", pid=4312 + i, comm="postgres", pod="prod/db-0") for i in range(12)),
        _step(14230.0, "checked", source="kmsg", agrees=True, detail="Killed process 4312 (postgres)"),
        _step(14250.0, "clear", **_threshold("soft", available=340 * MIB)),
    ],
    advice="Shorten --eviction-max-pod-grace-period to 14 s or less, or raise the request of prod/db-0 to 310Mi.",
    summary="OOM won during the grace of batch/report and killed prod/db-0, which the policy would have taken 7th.",
)

_API = "/kubepods/burstable/podapi/main"
_JAVA = {"comm": "java", "pod": "shop/api"}

#: A container at its own limit: no race.
OWN_LIMIT: Incident = _incident(
    "2026-01-31T05:30:00.500Z-own-0b2d",
    "2026-01-31T05:30:00.520Z",
    _API,
    "own_limit",
    flags=["group_kill"],
    oom_victims=[
        {"pid": 5000 + i, **_JAVA, "memcg": _API, "rss_bytes": 120 * MIB, "oom_score_adj": 900, "policy_rank": 3}
        for i in range(2)
    ],
    invoker={"pid": 5000, **_JAVA},
    steps=[
        _step(0.0, "oom", pid=5000, **_JAVA, rss=120 * MIB, oom_score_adj=900, limit_of=_API)
        | {"usage": 256 * MIB, "limit": 256 * MIB, "invoker_pid": 5000, "invoker": "java"},
        _step(20.0, "exited", pid=5000, **_JAVA),
    ],
    advice="Raise the memory limit of shop/api above 256Mi.",
    summary="No race: shop/api hit its own limit of 256 MiB.",
)
SAMPLES = (EVICTION_WON, DURING_GRACE, OWN_LIMIT)


def variant(number: int, of: Incident = EVICTION_WON, **changes: Any) -> Incident:
    """A copy with an id and a start of its own, one second after the other."""
    made = copy.deepcopy(of)
    begin = datetime.datetime.fromisoformat("2026-01-31T03:00:00Z") + datetime.timedelta(seconds=number)
    made["id"] = f"incident-{number:05d}"
    made["start"] = begin.isoformat(timespec="milliseconds")
    made["end"] = (begin + datetime.timedelta(milliseconds=20)).isoformat(timespec="milliseconds")
    return made | changes
