"""`outrace reload` and SIGHUP on real daemons: what changes, in one step; what is refused, whole."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from monitor.cli.daemons import described
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode
from monitor.link.daemon_socket import SOCKET
from tests import live
from tests.commands import called
from tests.daemon.hot_node import evicted, hot_node

pytestmark = [pytest.mark.kernel, pytest.mark.once]

REFUSED = "the configuration is not reloaded; the old one stays in force"
node = live.fixture(hot_node)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "outrace.yaml"


def reload(daemon: LabDaemon) -> subprocess.CompletedProcess[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTRACE_RUN_DIR", str(daemon.state_dir))
        return called("reload")


def in_force(daemon: LabDaemon) -> dict[str, str]:
    return dict(described(daemon.state_dir / SOCKET).config.eviction_hard)


@pytest.mark.parametrize("hooks", ["auto", "poll"])
def test_a_lower_line_a_higher_line_and_a_pod_that_goes_for_it(hooks: str, node: LabNode, own: Path) -> None:
    own.write_text("eviction-hard: {memory.available: 16Mi}\n")
    pod = node.add_pod("web")
    with live.daemon(node, "--config", str(own), "--enforce", "--hooks", hooks) as daemon:
        node.fill(pod, 60)
        own.write_text("eviction-hard: {memory.available: 24Mi}\n")
        assert reload(daemon).stdout.endswith(": reloaded; changed: eviction-hard\n")
        # 128 MiB are the node's: with 60 in use a line of 80 is met as it comes into force.
        own.write_text("eviction-hard: {memory.available: 80Mi}\n")
        assert reload(daemon).returncode == 0
        decision, _ = evicted(daemon, pod)
        assert (decision["quantity"], decision["kind"]) == (80 * MIB, "hard")
        assert live.metric(daemon, 'config_reloads_total{result="taken"}') == 2
        assert live.metric(daemon, "config_last_reload_success_timestamp_seconds") == pytest.approx(time.time(), abs=60)
        incident = live.message(daemon, "incident", final=True)
        assert incident["verdict"] == "eviction_won"
        live.ended(daemon)
        assert len(live.messages(daemon, "evicting")) == 1, "at 24Mi there was none"


def test_a_bad_file_changes_nothing_and_its_reason_is_logged_exported_and_printed(node: LabNode, own: Path) -> None:
    own.write_text("eviction-hard: {memory.available: 16Mi}\n")
    pod = node.add_pod("web")
    with live.daemon(node, "--config", str(own), "--enforce") as daemon:
        node.fill(pod, 60)
        for text, problem in (
            ("eviction-hard: {memory.available: 80Mi\n", "not YAML"),
            (
                "eviction-hard: {memory.available: 80Mi}\nexpose-metrics: true\n",
                "running: expose-metrics (false -> true",
            ),
        ):
            own.write_text(text)
            since = len(daemon.log)
            done = reload(daemon)
            assert (done.returncode, problem in done.stderr) == (1, True)
            assert problem in live.message(daemon, REFUSED, since)["problem"]
        assert live.metric(daemon, 'config_reloads_total{result="refused"}') == 2
        assert live.metric(daemon, "config_last_reload_successful") == 0
        assert live.messages(daemon, "evicting") == []
        own.write_text("eviction-hard: {memory.available: 16Mi}\n")
        assert reload(daemon).stdout.endswith("changed: nothing\n")
        assert live.metric(daemon, "config_last_reload_successful") == 1


def test_sighup_is_enough_and_a_side_that_starts_again_has_the_new_one(node: LabNode, own: Path) -> None:
    own.write_text("eviction-hard: {memory.available: 16Mi}\n")
    with live.daemon(node, "--config", str(own)) as daemon:
        own.write_text("eviction-hard: {memory.available: 24Mi}\n")
        os.kill(daemon.pid, signal.SIGHUP)
        live.message(daemon, "configuration reloaded", changed=["eviction-hard"])
        own.write_text("eviction-hard: {memory.available: 40Mi}\n")  # for the next reload, and no helper before
        (side,) = live.children(daemon.pid)
        os.kill(side, signal.SIGKILL)
        live.until(lambda: daemon.get("/readyz")[0] == 200 and live.children(daemon.pid) not in ([], [side]), "a side")
        assert in_force(daemon) == {"memory.available": "24Mi"}
        assert reload(daemon).returncode == 0
        assert in_force(daemon) == {"memory.available": "40Mi"}
