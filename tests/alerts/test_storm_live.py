"""30 pods OOM-killed as fast as the machine can: every one of them is an alert, and nothing is lost on the way."""

import contextlib
import json
import os
import statistics
import threading
from pathlib import Path

import pytest

from monitor.errors import MonitorError
from monitor.kernel.sched import HURRIED, hurry, take_time
from monitor.lab import receivers
from monitor.lab.bench_alerts import receiver, storm
from monitor.lab.node import MIB, LabNode
from monitor.lab.receivers import Alertmanager
from tests import live
from tests.alerts.services import alertmanager, binary

pytestmark = [pytest.mark.kernel, pytest.mark.once]
PODS = 30

node = live.fixture(LabNode, "test-storm", 1024 * MIB)


@pytest.mark.parametrize("real", [True, False], ids=["alertmanager", "stand-in"])
def test_every_pod_is_an_alert_and_nothing_is_lost(node: LabNode, tmp_path: Path, real: bool) -> None:
    if real:
        binary("prometheus-alertmanager")  # or this is skipped
    live.pin_dir()
    with receiver(alertmanager(tmp_path) if real else None) as known:
        found = storm(node, PODS, 40.0 if live.emulated() else 6.0, known, live.state_dir())
    assert found.receiver == ("prometheus-alertmanager" if real else "stand-in")
    late = [ms for ms in found.late_ms.values() if ms is not None]
    print(
        f"\n{found.kills} kills in {found.seconds:.1f} s, {len(late)} pods, to {found.receiver}: "
        f"median {statistics.median(late):.0f} ms, max {max(late):.0f} ms"
    )
    assert len(found.late_ms) == PODS, "every pod was killed in"
    assert [pod for pod, ms in found.late_ms.items() if ms is None] == []
    assert found.kills >= PODS
    # A receiver on an emulated CPU may be too slow for one try, which is made again.
    lost = [name for name in found.lost if "alerts_failed" not in name or not live.emulated()]
    assert lost == [], found.lost


def test_the_bench_names_the_receiver_it_measured() -> None:
    done = live.outrace("bench", "alerts", "--pods", "3", "--seconds", "1", "-o", "json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["results"]
    assert (row["pods"], row["pods_killed_in"], row["missing"], row["lost"]) == (3, 3, [], {})
    assert row["unit"] == "ms"
    assert row["max"] >= row["p50"]
    program = receivers.find_program(None)
    assert row["receiver"] == ("stand-in" if program is None else Path(program).name)
    live.one_line(live.outrace("bench", "alerts", "--alertmanager-binary", "/nowhere"), 1, "/nowhere is no program")


def test_an_alertmanager_that_does_not_start_is_reported_with_its_last_line(tmp_path: Path) -> None:
    broken = tmp_path / "alertmanager"
    broken.write_text("#!/bin/sh\necho no luck today\nexit 1\n")
    broken.chmod(0o755)
    with (
        pytest.raises(MonitorError, match="alertmanager does not answer: no luck today"),
        Alertmanager(str(broken), tmp_path).running(),
    ):
        pass


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

        # The loop, the judge, the one receiver, the state of alerts; all others are as they were.
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
