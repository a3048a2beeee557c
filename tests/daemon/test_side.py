"""The real side process on the real kernel: the test is its hot process, its scraper and its disk."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from monitor.daemon import channel
from monitor.daemon.config import RunConfig
from monitor.kernel import cgroupfs

sys.path.insert(0, str(Path(__file__).parent))
import harness

pytestmark = [pytest.mark.kernel, pytest.mark.once]

STATE: dict[str, Any] = {
    "t": "state",
    "conditions": [],
    "met": [],
    "armed": False,
    "bound_bytes": 0,
    "order": [],
    "victim": None,
    "observation": {},
    "pods": 0,
    "scheduler": "SCHED_FIFO",
    "mlocked": True,
    "oom_score_adj": 0,
    "trigger": "user",
    "ready": True,
}
DECISION: dict[str, Any] = {
    "t": "decision",
    "id": 1,
    "signal": "memory.available",
    "kind": "hard",
    "domain": "node",
    "quantity": 100 << 20,
    "available": 99 << 20,
    "capacity": 512 << 20,
    "usage": 413 << 20,
    "pod": "uid-a",
    "name": "default/a",
    "rank": 1,
    "grace_s": 1,
    "observed": True,
    "trigger": "user",
    "crossed_ns": 1,
    "decided_ns": 2,
    "signalled_ns": None,
    "working_set": 200 << 20,
    "request": 64 << 20,
    "containers": {"main": 200 << 20},
    "realtime": 1_800_000_000.5,
}
OOM: dict[str, Any] = {
    "t": "oom",
    "kind": "mark",
    "ts_ns": 1,
    "victim_pid": 4711,
    "victim_comm": "hog",
    "domain": 0,
    "victim_cgroup": 1,
    "oom_cgroup": 7,
    "exiting": False,
    "pod": None,
    "pod_name": None,
    "while_away": False,
}


class Node:
    """A cgroup as the node, a manifest directory, and a side that watches both."""

    def __init__(self, directory: Path, cgroup: Path) -> None:
        self.cgroup = cgroup
        self.manifests = directory / "manifests"
        self.manifests.mkdir()
        self.state_dir = directory / "state"
        self.directory = directory
        self.hot: harness.Hot | None = None

    def run(self, stderr: Any = None, **settings: Any) -> harness.Hot:
        settings = {"state_dir": str(self.state_dir), **settings}
        config = RunConfig(pods=f"manifests:{self.manifests}", node_cgroup=str(self.cgroup), **settings)
        self.hot = harness.Hot(config, self.directory / "log")
        self.hot.start(stderr)
        return self.hot

    def pod(self, name: str, **more: str) -> Path:
        cgroup = cgroupfs.make(self.cgroup / name)
        harness.manifest(self.manifests, name, cgroup, **more)
        return cgroup


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with harness.test_cgroup("side") as cgroup:
        cgroupfs.set_limit(cgroup, 512 << 20)
        node = Node(tmp_path, cgroup)
        try:
            yield node
        finally:
            if node.hot is not None:
                node.hot.close()


def metrics(hot: harness.Hot) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    status, body = hot.get("/metrics")
    assert status == 200, body
    families = text_string_to_metric_families(body)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def metric(hot: harness.Hot, name: str, **labels: str) -> float | None:
    return metrics(hot).get((f"outrace_{name}", tuple(sorted(labels.items()))))


def eventually(what: Callable[[], object]) -> None:
    """Wait for something that only another process's answer can tell."""
    deadline = time.monotonic() + harness.TIMEOUT_S
    while not what():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def test_pods_are_told_when_they_come_change_and_go(node: Node) -> None:
    cgroup = node.pod("a", memory="64Mi")
    hot = node.run()
    first, synced = hot.receive_until("synced")
    assert (first["t"], first["uid"], first["request"], first["qos"]) == ("pod+", "uid-a", 64 << 20, "Burstable")
    assert first["containers"] == {"main": str(cgroup)}
    assert synced == {"t": "synced"}

    node.pod("b")
    assert hot.receive("pod+")["uid"] == "uid-b"
    node.pod("b", memory="1Gi")
    assert hot.receive("pod+")["request"] == 1 << 30
    (node.manifests / "b.json").unlink()
    assert hot.receive("pod-") == {"t": "pod-", "uid": "uid-b"}
    assert hot.end() == 0
    assert 'msg="pod gone" pod=default/b' in hot.log()


def test_a_side_that_was_killed_sends_all_pods_again(node: Node) -> None:
    node.pod("a")
    hot = node.run()
    before = hot.receive_until("synced")
    assert hot.process is not None
    hot.process.kill()
    assert hot.process.wait(harness.TIMEOUT_S) == -signal.SIGKILL
    hot.start()
    assert hot.receive_until("synced") == before
    assert hot.get("/metrics")[0] == 200  # on the same socket


def test_readiness_and_liveness(node: Node) -> None:
    hot = node.run()
    hot.receive("synced")
    assert hot.get("/readyz") == (503, "the hot process is starting\n")
    hot.stats.set("ready_ns", 1)
    hot.send(**STATE | {"ready": False})
    eventually(lambda: "counters are not complete" in hot.get("/readyz")[1])
    hot.send(**STATE)
    eventually(lambda: hot.get("/readyz") == (200, "ok\n"))

    hot.stats.set("published_ns", time.monotonic_ns())
    assert hot.get("/healthz") == (200, "ok\n")
    hot.stats.set("published_ns", 0)
    assert hot.get("/healthz") == (503, "the hot loop does not turn\n")
    assert hot.receive("refresh") == {"t": "refresh"}  # it had been asked for a sign of life
    status, body = hot.get("/nothing")
    assert status == 404
    assert "/metrics" in body


def test_metrics_follow_the_pods_and_the_kernel(node: Node) -> None:
    cgroup = node.pod("a", memory="64Mi")
    hot = node.run()
    hot.receive("synced")
    with harness.sleeper(cgroup):
        usage = metric(hot, "pod_memory_usage_bytes", namespace="default", pod="a")
        assert usage is not None
        assert 4096 <= usage == int((cgroup / usage_file()).read_text())
    assert metric(hot, "pod_memory_request_bytes", namespace="default", pod="a") == 64 << 20
    assert metric(hot, "memory_capacity_bytes", domain="node") == 512 << 20
    available = metric(hot, "memory_available_bytes", domain="node")
    assert available is not None
    assert 0 < available < 512 << 20
    assert metric(hot, "threshold_bytes", signal="memory.available", kind="hard") == 100 << 20
    assert metric(hot, "threshold_met", signal="memory.available", kind="hard") == 0
    assert metric(hot, "node_condition", condition="MemoryPressure") == 0

    hot.send(**STATE | {"conditions": ["MemoryPressure"], "met": [{"signal": "memory.available", "kind": "hard"}]})
    eventually(lambda: metric(hot, "node_condition", condition="MemoryPressure") == 1)
    assert metric(hot, "threshold_met", signal="memory.available", kind="hard") == 1

    (node.manifests / "a.json").unlink()
    hot.receive("pod-")
    eventually(lambda: metric(hot, "pod_memory_usage_bytes", namespace="default", pod="a") is None)
    assert not [labels for name, labels in metrics(hot) if name.startswith("outrace_pod_")]


def usage_file() -> str:
    return "memory.usage_in_bytes" if cgroupfs.detect().version == 1 else "memory.current"


def test_counters_and_histograms_come_from_the_shared_page(node: Node) -> None:
    hot = node.run()
    hot.receive("synced")
    hot.stats.add("evictions", 3)
    hot.stats.add("records_cross", 5)
    hot.stats.observe_us("detection_us", 60)
    hot.stats.observe_us("detection_us", 2_000_000)
    assert metric(hot, "evictions_total") == 3
    assert metric(hot, "records_total", kind="cross", side="reader") == 5
    assert metric(hot, "detection_seconds_bucket", le="0.0001") == 1
    assert metric(hot, "detection_seconds_bucket", le="1.0") == 1
    assert metric(hot, "detection_seconds_bucket", le="+Inf") == 2
    assert metric(hot, "detection_seconds_sum") == pytest.approx(2.00006)
    assert not [name for name, _ in metrics(hot) if name.endswith("_created")]

    # every labelled counter is there before its first event
    assert metric(hot, "decisions_total", signal="allocatableMemory.available", mode="observe") == 0
    assert metric(hot, "oom_kills_total", scope="global") == 0
    hot.send(**OOM)
    hot.send(**OOM | {"exiting": True})
    hot.send(**OOM | {"kind": "exit"})
    hot.send(**OOM | {"oom_cgroup": 0})
    eventually(lambda: metric(hot, "oom_kills_total", scope="global") == 1)
    assert metric(hot, "oom_kills_total", scope="memcg") == 1
    assert metric(hot, "process_resident_memory_bytes", process="side")
    status, body = hot.get("/metrics", {"Accept": "application/openmetrics-text; version=1.0.0"})
    assert status == 200
    assert body.endswith("# EOF\n")


def test_summary_has_the_kubelets_shape(node: Node) -> None:
    cgroup = node.pod("a")
    hot = node.run()
    hot.receive("synced")
    with harness.sleeper(cgroup):
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


def test_observed_decision_is_logged_in_the_kubelets_words_and_writes_nothing(node: Node) -> None:
    node.pod("a", memory="64Mi")
    hot = node.run()
    hot.receive("synced")
    hot.send(**DECISION)
    line = hot.wait_for_log('msg="would evict"')
    assert "The node was low on resource: memory. Threshold quantity: 100Mi, available: 99Mi. " in line
    assert "Container main was using 200Mi, request is 64Mi, has larger consumption of memory. " in line
    assert "pod=default/a" in line
    assert metric(hot, "decisions_total", signal="memory.available", mode="observe") == 1
    assert hot.end() == 0  # which also finishes what was queued for the disk
    assert not node.state_dir.exists()


def test_eviction_leaves_status_and_event(node: Node) -> None:
    node.pod("a", memory="64Mi")
    hot = node.run(enforce=True)
    hot.receive("synced")
    hot.send(**DECISION | {"observed": False, "signalled_ns": 3})
    hot.send(t="evicted", id=1, pod="uid-a", gone_ns=4, pids=[11, 12], freed=12345)
    hot.send(**DECISION | {"observed": False, "signalled_ns": 3, "id": 2})
    assert hot.end() == 0
    first = json.loads((node.state_dir / "pods" / "default_a_uid-a.json").read_text())
    status = first["status"]
    assert (status["phase"], status["reason"], status["qosClass"]) == ("Failed", "Evicted", "Burstable")
    target = next(c for c in status["conditions"] if c["type"] == "DisruptionTarget")
    assert (target["status"], target["reason"]) == ("True", "TerminationByKubelet")
    assert target["message"] == status["message"]
    assert first["metadata"]["annotations"]["outrace/freed-bytes"] == "12345"
    event = json.loads((node.state_dir / "events" / "default_a_uid-a.json").read_text())
    assert (event["reason"], event["type"], event["message"]) == ("Evicted", "Warning", status["message"])
    assert event["metadata"]["annotations"]["offending_containers"] == "main"
    # the second eviction of the same pod did not take the first one's place
    assert (node.state_dir / "pods" / "default_a_uid-a.2.json").exists()
    assert not list(node.state_dir.rglob("*.tmp"))


def fill(file: Any) -> None:
    try:
        while True:
            file.write(bytes(4096))
    except OSError as error:
        assert error.errno == errno.ENOSPC  # noqa: PT017 - what is wanted, not what is tested


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB, full to the last byte."""
    path = tmp_path / "disk"
    path.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"outrace-test", os.fsencode(path), b"tmpfs", 0, b"size=64k") != 0:
        pytest.skip(f"mount(2) of a tmpfs is refused: {os.strerror(ctypes.get_errno())}")
    try:
        with open(path / "ballast", "wb", buffering=0) as file:
            fill(file)
        yield path
    finally:
        libc.umount2(os.fsencode(path), 2)  # MNT_DETACH


def test_full_disk_holds_up_nothing_and_loses_nothing(node: Node, small_disk: Path) -> None:
    node.pod("a")
    hot = node.run(enforce=True, state_dir=str(small_disk))
    hot.receive("synced")
    for number in (1, 2, 3):
        hot.send(**DECISION | {"observed": False, "id": number})
    line = hot.wait_for_log("state directory cannot be written")
    assert "errno=28" in line
    assert str(small_disk) in line
    eventually(lambda: metric(hot, "state_write_failing") == 1)
    node.pod("b")
    assert hot.receive("pod+")["uid"] == "uid-b"  # the main loop goes on
    (small_disk / "ballast").unlink()
    hot.wait_for_log("can be written again")
    eventually(lambda: len(list((small_disk / "pods").glob("default_a_uid-a*.json"))) == 3)
    assert hot.log().count("state directory cannot be written") == 1
    eventually(lambda: metric(hot, "state_write_failing") == 0)


def test_hung_clients_are_refused_not_waited_for(node: Node) -> None:
    hot = node.run()
    hot.receive("synced")
    hung = [socket.create_connection(("127.0.0.1", hot.port)) for _ in range(16)]
    try:
        for client in hung:
            client.sendall(b"GET /metrics HTTP/1.1\r\n")  # and nothing more
        eventually(lambda: hot.get("/readyz")[1] == "")  # all sixteen slots are taken: 503 with an empty body
        node.pod("a")
        assert hot.receive("pod+")["uid"] == "uid-a"
        eventually(lambda: hot.get("/readyz")[1] != "")  # their time is up, or they were cut off
    finally:
        for client in hung:
            client.close()
    eventually(lambda: hot.get("/metrics")[0] == 200)  # the threads of those just closed end first
    refused = metric(hot, "http_refused_total")
    assert refused is not None
    assert refused >= 1


def test_stuck_log_reader_holds_up_nothing(node: Node) -> None:
    read_end, write_end = os.pipe()
    try:
        with open(write_end, "wb") as stderr:
            hot = node.run(stderr)
        hot.receive("synced")
        line = "x" * 2000
        for _ in range(3000):  # far more than the pipe (64 KiB) and the queue (1,024 lines) hold
            assert hot.sock is not None
            hot.sock.send(json.dumps({"t": "log", "level": "info", "msg": line}).encode())
        node.pod("a")
        assert hot.receive("pod+")["uid"] == "uid-a"
        lost = metric(hot, "events_lost_total", where="log")
        assert lost is not None
        assert lost > 0
    finally:
        os.close(read_end)


def test_oom_score_adj_is_audited_once_in_observe_mode(node: Node) -> None:
    cgroup = node.pod("a")
    with harness.sleeper(cgroup) as pid:
        before = Path(f"/proc/{pid}/oom_score_adj").read_text()
        hot = node.run()
        hot.receive("synced")
        line = hot.wait_for_log("oom_score_adj differs")
        assert f"pid={pid} is_now={before.strip()} should_be=1000 qos=BestEffort" in line
        with harness.sleeper(cgroup) as second:
            hot.wait_for_log(f"pid={second} ")
        assert Path(f"/proc/{pid}/oom_score_adj").read_text() == before
        assert hot.log().count(f"pid={pid} ") == 1


def test_oom_score_adj_is_written_under_enforce_also_for_new_processes(node: Node) -> None:
    cgroup = node.pod("a")
    with harness.sleeper(cgroup) as pid:
        hot = node.run(enforce=True)
        hot.receive("synced")
        eventually(lambda: Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n")
        with harness.sleeper(cgroup) as second:
            eventually(lambda: Path(f"/proc/{second}/oom_score_adj").read_text() == "1000\n")


def test_reap_of_live_and_dead_processes_is_harmless(node: Node) -> None:
    cgroup = node.pod("a")
    hot = node.run()
    hot.receive("synced")
    with harness.sleeper(cgroup) as pid:
        hot.send(t="reap", pids=[pid, 2**22 + 1])
        hot.send(t="log", level="info", msg="after the reap")
        hot.wait_for_log("after the reap")
        assert Path(f"/proc/{pid}").exists()
    assert hot.end() == 0
    assert "process_mrelease failed" not in hot.log()


def test_a_pod_outside_the_node_is_no_candidate(node: Node) -> None:
    with harness.test_cgroup("stranger") as stranger:
        harness.manifest(node.manifests, "stranger", stranger)
        harness.manifest(node.manifests, "itself", node.cgroup)
        node.pod("inside")
        hot = node.run()
        told = hot.receive_until("synced")
        assert [message.get("uid") for message in told] == ["uid-inside", None]
        for file, cgroup in (("stranger", stranger), ("itself", node.cgroup)):
            line = hot.wait_for_log(f"{file}.json: document 1: metadata.annotations[outrace/cgroup]: ")
            assert f"cgroup '{cgroup.name}' is not below the node {node.cgroup}; name a cgroup below it" in line


def test_a_pod_with_the_side_in_it_is_refused(node: Node) -> None:
    cgroup = node.pod("ours")
    hot = node.run()
    assert hot.receive("pod+")["uid"] == "uid-ours"
    assert hot.process is not None
    home = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if _carries_memory(line))
    (cgroup / "cgroup.procs").write_text(str(hot.process.pid))
    try:
        node.pod("b")  # any change makes the source look again
        assert hot.receive("pod-") == {"t": "pod-", "uid": "uid-ours"}
        hot.wait_for_log(f"holds outrace itself (process {hot.process.pid})")
    finally:
        root = cgroupfs.detect().root
        (root / home.split(":", 2)[2].lstrip("/") / "cgroup.procs").write_text(str(hot.process.pid))


def _carries_memory(line: str) -> bool:
    controllers = line.split(":")[1]
    return "memory" in controllers.split(",") if cgroupfs.detect().version == 1 else not controllers


def test_a_pod_too_large_for_a_message_is_a_problem_and_the_others_are_told(node: Node) -> None:
    cgroup = node.pod("big")
    node.pod("small")
    hot = node.run()
    assert len(hot.receive_until("synced")) == 3
    deep = cgroup
    for _ in range(8):
        deep = cgroupfs.make(deep / ("d" * 240))
    relative = str(deep.relative_to(cgroupfs.detect().root))
    manifest = json.loads((node.manifests / "big.json").read_text())
    names = [f"c{i}" for i in range(70)]
    manifest["spec"]["containers"] = [{"name": name} for name in names]
    manifest["metadata"]["annotations"] |= {f"outrace/cgroup.{name}": relative for name in names}
    (node.manifests / ".new").write_text(json.dumps(manifest))
    (node.manifests / ".new").rename(node.manifests / "big.json")
    assert hot.receive("pod-") == {"t": "pod-", "uid": "uid-big"}
    line = hot.wait_for_log("pod default/big is not watched: its pod+ message has ")
    assert "give it fewer containers" in line
    node.pod("late")
    assert hot.receive("pod+")["uid"] == "uid-late"
    eventually(lambda: metric(hot, "pods") == 2)
    node.pod("big")
    assert hot.receive("pod+")["uid"] == "uid-big"


def test_messages_that_cannot_be_used_are_counted_and_the_next_one_counts(node: Node) -> None:
    hot = node.run()
    hot.receive("synced")
    assert hot.sock is not None
    for packet in (b"{", b"[]", b"x" * (channel.MAX_PACKET + 1), b'{"t":"nonsense"}', b'{"t":"oom"}', b'{"t":"state"}'):
        hot.sock.send(packet)
    hot.send(t="log", level="info", msg="still here")
    hot.wait_for_log("still here")
    assert metric(hot, "events_lost_total", where="messages") == 6
    log = hot.log()
    for problem in ("not JSON", "not an object with a type", "packet of more than", "unknown type", "KeyError"):
        assert problem in log


def test_totals_outlive_the_side(node: Node) -> None:
    node.pod("a")
    hot = node.run()
    hot.receive("synced")
    hot.stats.add("decisions", 2)
    hot.stats.add("oom_kills", 3)
    assert hot.process is not None
    hot.process.kill()
    hot.process.wait(harness.TIMEOUT_S)
    hot.start()
    hot.receive("synced")
    assert (metric(hot, "pods_chosen_total"), metric(hot, "oom_victims_total")) == (2, 3)


_PTRACE_SEIZE, _PTRACE_INTERRUPT, _PTRACE_DETACH, _WALL = 0x4206, 0x4207, 17, 0x40000000


@contextmanager
def main_thread_stopped(pid: int) -> Iterator[None]:
    """Stop one thread of a process; the others go on."""
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    if ptrace(_PTRACE_SEIZE, pid, None, None) != 0:
        pytest.skip(f"ptrace(2) is refused: {os.strerror(ctypes.get_errno())}")
    assert ptrace(_PTRACE_INTERRUPT, pid, None, None) == 0
    os.waitpid(pid, _WALL)
    try:
        yield
    finally:
        assert ptrace(_PTRACE_DETACH, pid, None, None) == 0


def test_a_main_loop_that_hangs_is_not_healthy(node: Node) -> None:
    hot = node.run()
    hot.receive("synced")
    hot.stats.set("published_ns", time.monotonic_ns() + 10**12)  # the hot loop is not what is tested
    assert hot.get("/healthz") == (200, "ok\n")
    assert hot.process is not None
    with main_thread_stopped(hot.process.pid):
        assert hot.get("/healthz") == (503, "the side's main loop does not turn\n")
    assert hot.get("/healthz") == (200, "ok\n")


@contextmanager
def hung(directory: Path) -> Iterator[None]:
    """A file system over ``directory`` that never answers: FUSE with nobody behind it."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"/dev/fuse: {error.strerror}")
    try:
        options = f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()
        if libc.mount(b"outrace-test", os.fsencode(directory), b"fuse", 0, options) != 0:
            pytest.skip(f"mount(2) of a FUSE is refused: {os.strerror(ctypes.get_errno())}")
        try:
            yield
        finally:
            libc.umount2(os.fsencode(directory), 2)  # MNT_DETACH
    finally:
        os.close(fd)  # whoever waits gets ENOTCONN


def test_a_manifest_directory_that_hangs_holds_up_nothing(node: Node) -> None:
    node.pod("a")
    hot = node.run(enforce=True)
    hot.receive("synced")
    hot.stats.set("ready_ns", 1)
    hot.stats.set("published_ns", time.monotonic_ns() + 10**12)
    hot.send(**STATE)
    eventually(lambda: hot.get("/readyz") == (200, "ok\n"))
    with hung(node.manifests):
        cgroupfs.make(node.cgroup / "stir")  # makes the source look
        eventually(lambda: "has been hanging for" in hot.get("/readyz")[1])
        hot.send(**DECISION | {"observed": False})
        assert "pod=default/a" in hot.wait_for_log("msg=evicting")
        eventually(lambda: (node.state_dir / "pods" / "default_a_uid-a.json").exists())
        assert hot.get("/healthz") == (200, "ok\n")
    node.pod("b")
    eventually(lambda: hot.get("/readyz") == (200, "ok\n"))
    assert hot.receive("pod+")["uid"] == "uid-b"


def test_json_log(node: Node) -> None:
    hot = node.run(log_format="json")
    hot.receive("synced")
    hot.send(t="log", level="error", msg="something", n=1, text='a "quoted" text')
    record = json.loads(hot.wait_for_log('"something"'))
    assert (record["level"], record["msg"], record["n"], record["text"]) == ("error", "something", 1, 'a "quoted" text')


def test_termination_signal_ends_it_too(node: Node) -> None:
    hot = node.run()
    hot.receive("synced")
    assert hot.process is not None
    hot.process.send_signal(signal.SIGINT)  # Ctrl-C is the hot process's business
    node.pod("a")
    hot.receive("pod+")
    hot.process.terminate()
    assert hot.process.wait(harness.TIMEOUT_S) == 0


def test_without_a_pod_source_it_says_why(tmp_path: Path) -> None:
    hot = harness.Hot(RunConfig(pods="kubelet:x", state_dir=str(tmp_path)), tmp_path / "log")
    try:
        hot.start()
        assert hot.process is not None
        assert hot.process.wait(harness.TIMEOUT_S) == 2
        assert "not in this version" in hot.log()
    finally:
        hot.close()


def test_importing_the_side_stays_light() -> None:
    """What only a feature needs is loaded by that feature: bcc never, pyroute2 and prometheus_client on demand."""
    code = "import sys, monitor.daemon.side; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    environment = os.environ | {"PYTHONPATH": str(harness.ROOT)}
    loaded = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"bcc", "pyroute2", "prometheus_client", "yaml", "click", "psutil", "asyncio"} & set(loaded)
