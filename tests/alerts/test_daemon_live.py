"""A real OOM kill in a cgroup, a real daemon and a real Alertmanager: from the kernel to the alert."""

import contextlib
import os
from pathlib import Path

import pytest

from monitor.kernel.sched import HURRIED
from monitor.lab.node import MIB, LabNode
from tests import live
from tests.alerts.services import Alertmanager

pytestmark = [pytest.mark.kernel, pytest.mark.once]

node = live.fixture(LabNode, "test-alerts", 96 * MIB)


def test_a_lost_race_is_an_alert_also_where_the_receiver_was_down(node: LabNode, tmp_path: Path) -> None:
    alertmanager = Alertmanager(tmp_path)  # not running yet
    options = ("--eviction-hard", "memory.available<2Mi", "--alertmanager", alertmanager.url)
    with live.daemon(node, *options) as daemon:
        pod = node.add_pod("first")
        live.message(daemon, "pod found", pod="lab/first")
        live.killed_hog(node, pod, 400)  # the daemon may only watch
        failed = f'alerts_failed_total{{receiver="alertmanager 127.0.0.1:{alertmanager.port}"}}'
        live.until(lambda: live.metric(daemon, failed) >= 2, "tries that fail")
        with alertmanager.running():
            (alert,) = live.until(
                lambda: alertmanager.alerts("OutraceOOMKill", pod="first"),
                lambda: f"the alert among {alertmanager.alerts()}",
            )
            assert (alert["labels"]["namespace"], alert["labels"]["domain"]) == ("lab", "node")
            assert alert["annotations"]["summary"]


def test_who_brings_an_alert_goes_before_ordinary_threads(node: LabNode) -> None:
    url = "http://127.0.0.1:9"
    with live.daemon(node, "--eviction-hard", "memory.available<1Mi", "--alertmanager", url) as daemon:
        (side,) = live.children(daemon.pid)

        def nice() -> list[int]:
            found = []
            for tid in Path(f"/proc/{side}/task").iterdir():
                with contextlib.suppress(ProcessLookupError):  # a thread that ended meanwhile
                    found.append(os.getpriority(os.PRIO_PROCESS, int(tid.name)))
            return sorted(found)

        # The loop, the judge, the one receiver, what slows held pods, what follows their processes; all others are as
        # they were once they began.
        live.until(lambda: (found := nice()) == [HURRIED] * 5 + [0] * (len(found) - 5), "five threads in a hurry")
