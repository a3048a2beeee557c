"""Incidents as `outrace incidents show -o json` gives them."""

from typing import Any

_COMMON: dict[str, Any] = {
    "id": "20260131-120000.250-node",
    "start": "2026-01-31T12:00:00.250Z",
    "end": "2026-01-31T12:00:03.500Z",
    "domain": "node",
    "flags": [],
    "oom_victims": [],
    "invoker": None,
    "evicted": [],
    "margin_bytes": None,
    "margin_ms": None,
    "steps": [],
    "advice": "",
    "summary": "",
    "observed": False,
    "by": None,
}

EVICTION_WON: dict[str, Any] = {
    **_COMMON,
    "verdict": "eviction_won",
    "evicted": [{"pod": "default/hog", "grace_s": 0, "rank": 1}],
    "margin_bytes": 104857600,
    "margin_ms": 812.5,
    "by": "outrace",
    "summary": "default/hog was evicted 812 ms before memory ran out",
    "advice": "nothing to do",
}

OOM_DURING_GRACE: dict[str, Any] = {
    **_COMMON,
    "verdict": "oom_during_grace",
    "flags": ["wrong_victim"],
    "oom_victims": [
        {
            "pid": 4711,
            "comm": "postgres",
            "pod": "shop/db-0",
            "memcg": "/sys/fs/cgroup/kubepods/burstable/podx/c",
            "rss_bytes": 734003200,
            "oom_score_adj": 985,
            "policy_rank": 3,
        }
    ],
    "invoker": {"pid": 99, "comm": "hog", "pod": "default/hog"},
    "evicted": [{"pod": "default/hog", "grace_s": 30, "rank": 1}],
    "margin_bytes": -20971520,
    "margin_ms": -1200.0,
    "by": "kubelet",
    "summary": "the OOM killer took shop/db-0 1.2 s into the grace period of default/hog",
    "advice": "a grace of 1 s instead of 30 s",
}

OWN_LIMIT: dict[str, Any] = {
    **_COMMON,
    "domain": "/sys/fs/cgroup/memory/kubepods/burstable/podx/0f3a",
    "verdict": "own_limit",
    "oom_victims": [{**OOM_DURING_GRACE["oom_victims"][0], "comm": "java", "pod": "shop/web-1", "policy_rank": None}],
    "summary": "shop/web-1 hit its own limit of 512Mi",
    "advice": "a limit of 700Mi",
}
