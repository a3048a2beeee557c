"""30 pods OOM-killed as fast as the machine can: every one of them is an alert, and nothing is lost on the way."""

import contextlib
import os
import statistics
import threading
import time
from pathlib import Path

import pytest

from monitor.kernel.sched import HURRIED, hurry, take_time
from monitor.lab.child import Child
from monitor.lab.node import MIB, LabNode
from monitor.side.alerts.rules import OWN_LIMIT
from monitor.side.judge import wall_offset_ns
from tests import live
from tests.kube.fake_http import Asked, FakeServer, Reply

pytestmark = [pytest.mark.kernel, pytest.mark.once]
PODS, LIMIT_MIB = 30, 8
SECONDS = 40.0 if live.emulated() else 6.0
LOST = (
    *("outrace_channel_dropped_total", "outrace_incidents_lost_total"),
    *("outrace_alerts_dropped_total", "outrace_alerts_failed_total"),
)
KILLED = "the kernel's OOM killer killed a process"

node = live.fixture(LabNode, "test-storm", 1024 * MIB)


class StandIn(FakeServer):
    """Takes `POST /api/v2/alerts` as an Alertmanager does. ``first``: when it first had each pod's of its own limit."""

    def __init__(self) -> None:
        self.first: dict[str, float] = {}
        super().__init__()

    def answer(self, asked: Asked, reply: Reply) -> None:
        for labels in (alert["labels"] for alert in asked.json()):
            if labels["alertname"] == OWN_LIMIT:
                self.first.setdefault(f"{labels.get('namespace')}/{labels.get('pod')}", time.time())
        reply.body(200, b"")


def test_every_pod_is_an_alert_and_nothing_is_lost(node: LabNode) -> None:
    made = [
        node.add_pod(f"p{i}", "Burstable", request=MIB, limit=LIMIT_MIB * MIB).containers["c0"] for i in range(PODS)
    ]
    names = {f"lab/{name}" for name in node.pods}
    first: dict[str, int] = {}  # when (CLOCK_MONOTONIC) each pod had its first kill
    options = ("--eviction-hard", "memory.available<1Mi", "--alertmanager")
    with contextlib.closing(StandIn()) as known, live.daemon(node, *options, known.url) as daemon:
        child = Child("tests.alerts.oom_storm:oom_kills", mib=2 * LIMIT_MIB, cgroups=":".join(map(str, made)))
        node.children.append(child)
        child.expect("ready")
        child.send("go")
        time.sleep(SECONDS)
        child.close_stdin()
        kills = int(child.expect("killed"))
        live.until(lambda: names <= known.first.keys(), lambda: f"an alert about each: {names - known.first.keys()}")
        for record in daemon.log:
            if record.get("msg") == KILLED and record.get("pod") in names:
                first.setdefault(record["pod"], record["ts_ns"])
        # A receiver on an emulated CPU may be too slow for one try, which is made again.
        lost = [name for name in daemon.lost(*LOST) if "alerts_failed" not in name or not live.emulated()]
        assert lost == [], daemon.lost(*LOST)
    assert set(first) == names, "every pod was killed in"
    print(f"\n{kills} kills in {SECONDS:g} s")
    offset = wall_offset_ns()
    late = [known.first[pod] - (ts + offset) / 1e9 for pod, ts in first.items()]
    print(f"first alert of each pod after {statistics.median(late):.2f} s in the median, {max(late):.2f} s at most")
    assert statistics.median(late) < (10 if live.emulated() else 2)


def test_who_brings_an_alert_goes_before_ordinary_threads(node: LabNode, tmp_path: Path) -> None:
    url = "http://127.0.0.1:9"
    with live.daemon(node, "--eviction-hard", "memory.available<1Mi", "--alertmanager", url) as daemon:
        (side,) = live.children(daemon.pid)
        tasks = Path(f"/proc/{side}/task")

        def nice() -> list[int]:
            found = []
            for tid in tasks.iterdir():
                with contextlib.suppress(ProcessLookupError):  # a thread that ended meanwhile
                    found.append(os.getpriority(os.PRIO_PROCESS, int(tid.name)))
            return sorted(found)

        # The loop, the judge, the one receiver, what slows held pods; all others are as they were.
        live.until(lambda: nice().count(HURRIED) == 4, "four threads in a hurry")
        assert set(nice()) == {HURRIED, 0}


def test_a_thread_may_go_back() -> None:
    seen: list[int] = []

    def run() -> None:
        for step in (hurry, take_time):
            step()
            seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == ([HURRIED, 0] if os.geteuid() == 0 else [0, 0])
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == 0
