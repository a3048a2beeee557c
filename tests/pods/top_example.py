"""The frame of docs/top.md: a node of 16 GiB whose batch job grows towards its thresholds."""

from typing import Any

from tests.pods.top_frames import ALLOCATABLE, GI, MEMORY, MI, daemon, domain, frame, pod, threshold, victim


def example() -> dict[str, Any]:
    node = domain(13000 * MI, 900 * MI, 1200 * MI, 16 * GI)
    available = node["available"]
    job = pod("reindex-x7k2p", 5300 * MI, 512 * MI, namespace="batch", growth_bytes_per_s=131 * MI)
    pods = [
        job,
        pod("preview-6d4f9c7b58-q9zrt", 610 * MI, 256 * MI, namespace="shop", growth_bytes_per_s=0),
        pod("shell", 40 * MI, 0, namespace="dev", qos="BestEffort"),
        pod("cart-7f9c6d5b4-2xkfl", 700 * MI, GI, namespace="shop", priority=1000),
        pod("fluent-bit-8cmwz", 90 * MI, 128 * MI, namespace="logging", priority=100000),
        pod("orders-0", 3100 * MI, 4 * GI, namespace="db", qos="Guaranteed", priority=100000),
    ]
    system = {"critical": True, "priority": 2_000_001_000}
    pods.append(pod("kube-proxy-n4d2s", 60 * MI, 0, namespace="kube-system", **system))
    made: dict[str, Any] = frame(pods, time="2026-11-25T12:00:07Z")
    made["daemon"] = daemon(name="node-7", mode="observe", bound_bytes=6 * MI)
    made["source"] = "daemon node-7 (pid 321, the machine, state dir /var/lib/outrace)"
    made["hierarchy"] = {"version": 2, "root": "/sys/fs/cgroup"}
    made["node"] = {"cgroup": "/sys/fs/cgroup", **node, "growth_bytes_per_s": 129 * MI}
    made["kubepods"] = domain(10350 * MI, 100 * MI, 400 * MI, 15 * GI)
    made["kubepods"]["growth_bytes_per_s"] = 131 * MI
    left = made["kubepods"]["available"]
    made["signals"] = {
        MEMORY: {"available": available, "capacity": 16 * GI},
        ALLOCATABLE: {"available": left, "capacity": 15 * GI},
    }
    made["thresholds"] = [
        threshold(MEMORY, 100 * MI, available),
        threshold(MEMORY, 500 * MI, available, "soft"),
        threshold(ALLOCATABLE, 100 * MI, left),
    ]
    made["kernel_victim"] = victim("python3", job["uid"], pid=20417, rss=5200 * MI, oom_score_adj=969)
    made["kernel_victim"]["pod"] = "batch/reindex-x7k2p"
    return made
