"""The real side process as such: messages it cannot use, how it ends, why it does not start, and what it loads."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.kernel.sched import STARTING
from monitor.link import channel
from monitor.link.messages import LogLine
from monitor.settings.config import RunConfig
from tests.daemon import harness
from tests.daemon.harness import Node, metric

pytestmark = [pytest.mark.kernel, pytest.mark.once]

node = pytest.fixture(harness.side_node)


def test_messages_that_cannot_be_used_are_counted_and_the_next_one_counts(node: Node) -> None:
    hot = node.run()
    hot.receive("synced")
    assert hot.sock is not None
    for packet in (b"{", b"[]", b"x" * (channel.MAX_PACKET + 1), b'{"t":"nonsense"}', b'{"t":"oom"}', b'{"t":"state"}'):
        hot.sock.send(packet)
    hot.send(LogLine("info", "still here"))
    hot.wait_for_log("still here")
    assert metric(hot, "events_lost_total", where="messages") == 6
    log = hot.log()
    for problem in (
        "not JSON",
        "not an object with a type",
        "packet of more than",
        "unknown type",
        "required positional argument",
    ):
        assert problem in log


def test_termination_signal_ends_it_too(node: Node) -> None:
    hot = node.run()
    hot.receive("synced")
    hot.process.send_signal(signal.SIGINT)  # Ctrl-C is the hot process's business
    node.pod("a")
    hot.receive("pod+")
    hot.process.terminate()
    assert hot.process.wait(harness.TIMEOUT_S) == 0


def test_without_a_pod_source_it_says_why(tmp_path: Path) -> None:
    hot = harness.Hot(RunConfig(pods="kubelet:x", state_dir=str(tmp_path)), tmp_path / "log")
    try:
        hot.start()
        assert hot.process.wait(harness.TIMEOUT_S) == 2
        assert "not in this version" in hot.log()
    finally:
        hot.close()


def test_importing_the_side_stays_light() -> None:
    """What only a feature needs is loaded by that feature: bcc never, pyroute2 and prometheus_client on demand."""
    code = "import sys, monitor.side.main; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    environment = os.environ | {"PYTHONPATH": str(harness.ROOT)}
    loaded = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"bcc", "pyroute2", "prometheus_client", "yaml", "click", "psutil", "asyncio"} & set(loaded)


def test_it_starts_ahead_of_others_by_itself() -> None:
    """What its parent did for it came too late at times: when it was back among ordinary ones already."""
    code = """import contextlib, os, runpy
with contextlib.suppress(KeyError):  # it is given no descriptors
    runpy.run_module("monitor.side.main", run_name="__main__")
print(os.nice(0))"""
    environment = os.environ | {"PYTHONPATH": str(harness.ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(STARTING), done.stderr
