"""A real OOM kill in a cgroup, a real daemon, a real Alertmanager and Prometheus: from the kernel to the alert."""

import time
from pathlib import Path

import pytest

from monitor.lab.node import MIB, LabNode
from tests import live
from tests.alerts.services import Alertmanager, fetch
from tests.alerts.test_rules_live import INTERVAL_S, prometheus

pytestmark = [pytest.mark.kernel, pytest.mark.once]

node = live.fixture(LabNode, "test-alerts", 96 * MIB)


def lost_race(node: LabNode) -> float:
    """A pod at full speed against a daemon that may only watch; returns when it was killed (Unix seconds)."""
    pod = node.add_pod("hog")
    hog = node.start_hog(pod, mib=400)
    hog.go()
    hog.process.wait()
    return time.time()


def test_a_lost_race_is_an_alert_within_a_second(node: LabNode, tmp_path: Path) -> None:
    alertmanager = Alertmanager(tmp_path)
    with alertmanager.running():
        options = ("--eviction-hard", "memory.available<2Mi", "--alertmanager", alertmanager.url)
        with live.daemon(node, *options, state_dir=tmp_path / "state") as daemon:
            killed = lost_race(node)
            alert = live.until(lambda: alertmanager.alerts("OutraceOOMKill"), "the alert")[0]
            took = time.time() - killed
            print(f"\nfrom the OOM kill to Alertmanager by push: {took * 1000:.0f} ms")
            assert (alert["labels"]["namespace"], alert["labels"]["pod"]) == ("lab", "hog")
            assert alert["labels"]["domain"] == "node"
            assert alert["annotations"]["summary"]
            # The pressure itself is an alert that lasts, and is over when memory is back.
            live.message(daemon, "incident", final=True)
            live.until(lambda: not alertmanager.alerts("OutracePressure"), "pressure resolved")


def test_a_receiver_that_is_down_misses_nothing_of_a_restarted_daemon(node: LabNode, tmp_path: Path) -> None:
    alertmanager = Alertmanager(tmp_path)  # not running yet
    options = ("--eviction-hard", "memory.available<2Mi", "--alertmanager", alertmanager.url)
    with live.daemon(node, *options, state_dir=tmp_path / "state") as daemon:
        lost_race(node)
        live.message(daemon, "incident", final=True)
        failed = f'alerts_failed_total{{receiver="alertmanager 127.0.0.1:{alertmanager.port}"}}'
        live.until(lambda: live.metric(daemon, failed) >= 2, "tries that fail")
    with alertmanager.running(), live.daemon(node, *options, state_dir=tmp_path / "state"):
        assert live.until(lambda: alertmanager.alerts("OutraceOOMKill"), "the alert of the daemon before")


def test_the_rule_fires_on_the_daemons_own_metrics(node: LabNode, tmp_path: Path) -> None:
    alertmanager = Alertmanager(tmp_path)
    options = ("--eviction-hard", "memory.available<2Mi")
    with alertmanager.running(), live.daemon(node, *options, state_dir=tmp_path / "state") as daemon:
        port = int(daemon.address.rpartition(":")[2])
        with prometheus(tmp_path, alertmanager, port) as url:

            def scraped() -> object:
                """Counted from 0: increase() needs the value before the first kill."""
                found = fetch(f"{url}/api/v1/query?query=outrace_race_total")["data"]["result"]
                return found and all(series["value"][1] == "0" for series in found)

            live.until(scraped, "the first scrape")
            killed = lost_race(node)
            live.until(lambda: alertmanager.alerts("OutraceOOMKill", source="rule"), "the alert by rule")
            took = time.time() - killed
            print(f"\nby rule: {took:.1f} s after the kill (scrape and evaluation every {INTERVAL_S} s)")
