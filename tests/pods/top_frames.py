"""Frames of `outrace top` by hand, for tests of what is shown."""

from collections.abc import Sequence
from typing import Any

from monitor.cli.top_frame import threshold_row
from monitor.kernel.cgroupfs import Reading
from monitor.policy.quantity import Quantity
from monitor.policy.signals import Observation
from monitor.policy.thresholds import Threshold, ThresholdValue

MI = 1 << 20
GI = 1 << 30
MEMORY, ALLOCATABLE = "memory.available", "allocatableMemory.available"


def domain(usage: int, active: int, inactive: int, capacity: int, **more: Any) -> dict[str, Any]:
    return {**Reading(usage, inactive, active, capacity=capacity).figures(), "growth_bytes_per_s": None, **more}


def pod(name: str, used: int = 100 * MI, request: int | None = 0, **more: Any) -> dict[str, Any]:
    given = {
        "namespace": "ns",
        "name": name,
        "uid": f"uid-{name}",
        "cgroup": f"/sys/fs/cgroup/kubepods/{name}",
        "qos": "Burstable",
        "priority": 0,
        "spec_known": True,
        "critical": False,
        "request": request,
        **Reading(used, 0, 0).figures(),
        "over_request": None if request is None else used - request,
        "growth_bytes_per_s": 0,
        "stall_ratio": 0.0,
    }
    return given | more


def threshold(signal: str, quantity: int, available: int, kind: str = "hard", **more: Any) -> dict[str, Any]:
    value = ThresholdValue(Quantity.parse(f"{quantity // MI}Mi"))
    row = threshold_row(Threshold(signal, value, grace_ns=int(kind == "soft")), Observation(available, 0, 0))
    return {**row, "compared": False, **more}


def frame(pods: Sequence[dict[str, Any]] = (), **more: Any) -> dict[str, Any]:
    """A machine of 8 GiB with 2 GiB in use: 512 MiB active, 256 MiB inactive page cache."""
    node = domain(2 * GI, 512 * MI, 256 * MI, 8 * GI, growth_bytes_per_s=3 * MI)
    available = node["available"]
    given: dict[str, Any] = {
        "time": "2026-11-25T12:00:00Z",
        "source": "cgroup files",
        "hierarchy": {"version": 2, "root": "/sys/fs/cgroup"},
        "node": {"cgroup": "/sys/fs/cgroup", **node},
        "signals": {MEMORY: {"available": available, "capacity": 8 * GI}},
        "kubepods": None,
        "thresholds": [threshold(MEMORY, 100 * MI, available)],
        "braked": None,
        "held": [],
        "pods": list(pods),
        "unlisted": "",
        "problems": [],
        "kernel_victim": None,
        "daemon": None,
    }
    return given | more


def daemon(**more: Any) -> dict[str, Any]:
    given = {
        "name": "web",
        "pid": 321,
        "version": "0.1.0",
        "mode": "observe",
        "rung": "memcg-tracepoint",
        "trigger": "user",
        "armed": True,
        "bound_bytes": 131072,
        "not_ready": None,
        "conditions": [],
        "lost": {"ring_cross": 0, "channel": 0},
    }
    return given | more


def victim(comm: str = "hog", uid: str | None = "uid-a", **more: Any) -> dict[str, Any]:
    name = None if uid is None else f"ns/{uid.removeprefix('uid-')}"
    given = {"pid": 4711, "comm": comm, "pod": name, "uid": uid, "points": 512, "rss": 300 * MI}
    return {**given, "oom_score_adj": 900, **more}
