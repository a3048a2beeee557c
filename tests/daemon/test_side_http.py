"""The real helper process asked over HTTP: is it ready and alive, its metrics and its summary."""

import json
import time
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from monitor.kernel import cgroupfs
from monitor.link.messages import Turn
from monitor.settings.config import RunConfig
from monitor.side import endpoints
from tests import live
from tests.daemon import harness
from tests.daemon.harness import STATE, Node, Series, eventually, metric, metrics, oom, value
from tests.side.parts import Parts

pytestmark = [pytest.mark.kernel, pytest.mark.once]

node = pytest.fixture(harness.side_node)


def test_readiness_and_liveness(node: Node) -> None:
    hot = node.synced()
    assert hot.get("/readyz") == (503, "the hot process is starting\n")
    hot.stats.set("ready_ns", 1)
    hot.send(STATE._replace(ready=False))
    eventually(lambda: "counters are not complete" in hot.get("/readyz")[1])
    hot.send(STATE)
    eventually(lambda: hot.get("/readyz") == (200, "ok\n"))

    hot.stats.set("published_ns", time.monotonic_ns() + 10**12)
    eventually(lambda: hot.get("/healthz") == (200, "ok\n"))
    hot.stats.set("published_ns", 0)
    eventually(lambda: hot.get("/healthz") == (503, "the hot loop stands still\n"))
    assert hot.receive("turn") == Turn()  # it had been asked for a sign of life
    status, body = hot.get("/nothing")
    assert status == 404
    assert "/metrics" in body


def test_a_main_loop_that_hangs_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that has turned before; it is asked to turn."""
    server = MagicMock()
    monkeypatch.setattr(endpoints, "Server", server)
    monkeypatch.setattr("monitor.side.health._PROBE_TIMEOUT_S", 0.0)
    parts = Parts(RunConfig(), cgroupfs.Hierarchy(2, Path("/")), 1 << 30)
    health = parts.health
    endpoints.serve(MagicMock(), health, parts.summary, MagicMock(), parts.log)
    healthz = server.call_args.args[1]["/healthz"]
    health.turns = 7
    answer = healthz.ask("/healthz", "")
    assert (answer.status, answer.body) == (503, b"the helper's main loop stands still\n")
    health.wake = lambda: setattr(health, "turns", 8)
    assert health.side_lives()


def test_metrics_follow_the_pods_and_the_kernel(node: Node) -> None:
    cgroup = node.pod("a", memory="64Mi")
    hot = node.synced()
    pod = {"namespace": "default", "pod": "a"}
    file = cgroup / ("memory.usage_in_bytes" if cgroupfs.detect().version == 1 else "memory.current")
    with live.Puppet(cgroup):

        def is_exact() -> bool:  # the kernel takes back what a CPU has in stock (64 pages) at any moment
            usage = metric(hot, "pod_memory_usage_bytes", **pod)
            return usage is not None and 4096 <= usage == int(file.read_text())

        eventually(is_exact)
    hard = {"signal": "memory.available", "kind": "hard"}
    found = metrics(hot)
    assert value(found, "pod_memory_request_bytes", **pod) == 64 << 20
    assert value(found, "memory_capacity_bytes", domain="node") == 512 << 20
    assert 0 < (value(found, "memory_available_bytes", domain="node") or 0) < 512 << 20
    assert value(found, "threshold_bytes", **hard) == 100 << 20
    assert value(found, "threshold_met", **hard) == 0
    assert value(found, "node_condition", condition="MemoryPressure") == 0

    hot.send(STATE._replace(conditions=["MemoryPressure"], met=[hard]))
    (node.manifests / "a.json").unlink()
    hot.receive("pod-")
    eventually(lambda: value(found := metrics(hot), "threshold_met", **hard) == 1 and not of_pods(found))
    assert metric(hot, "node_condition", condition="MemoryPressure") == 1


def of_pods(found: Series) -> list[str]:
    return [name for name, _ in found if name.startswith("outrace_pod_")]


def test_counters_and_histograms_come_from_the_shared_page(node: Node) -> None:
    hot = node.synced()
    hot.stats.add("evictions", 3)
    hot.stats.add("records_cross", 5)
    hot.stats.observe_us("detection_us", 60)
    hot.stats.observe_us("detection_us", 2_000_000)
    found = metrics(hot)
    assert value(found, "evictions_total") == 3
    assert value(found, "records_total", kind="cross", side="reader") == 5
    assert [value(found, "detection_seconds_bucket", le=le) for le in ("0.0001", "1.0", "+Inf")] == [1, 1, 2]
    assert value(found, "detection_seconds_sum") == pytest.approx(2.00006)
    assert not [name for name, _ in found if name.endswith("_created")]
    # every labelled counter is there before its first event
    assert value(found, "decisions_total", signal="allocatableMemory.available", mode="observe") == 0
    assert value(found, "oom_kills_total", scope="global") == 0
    assert value(found, "process_resident_memory_bytes", process="side")
    for message in (oom(), oom(exiting=True), oom(kind="exit"), oom(oom_cgroup=0)):
        hot.send(message)
    eventually(lambda: metric(hot, "oom_kills_total", scope="global") == 1)
    assert metric(hot, "oom_kills_total", scope="memcg") == 1
    status, body = hot.get("/metrics", {"Accept": "application/openmetrics-text; version=1.0.0"})
    assert status == 200
    assert body.endswith("# EOF\n")


def test_summary_has_the_kubelets_shape(node: Node) -> None:
    cgroup = node.pod("a")
    hot = node.synced()
    with live.Puppet(cgroup):
        status, body = hot.get("/stats/summary")
    assert status == 200
    summary = json.loads(body)
    memory = summary["node"]["memory"]
    assert memory["availableBytes"] + memory["workingSetBytes"] == 512 << 20
    assert summary["node"]["systemContainers"] == []  # this node has no kubepods cgroup
    (pod,) = summary["pods"]
    assert pod["podRef"] == {"name": "a", "namespace": "default", "uid": "uid-a"}
    assert pod["memory"]["usageBytes"] >= 4096
    assert [c["name"] for c in pod["containers"]] == ["main"]
    assert pod["containers"][0]["memory"]["workingSetBytes"] == pod["memory"]["workingSetBytes"]
