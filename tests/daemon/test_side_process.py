"""The real helper process: messages it cannot use, how it ends, what it loads; and what it logs."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from monitor.kernel.sched import STARTING
from monitor.link import messages
from monitor.link.messages import LogLine
from monitor.settings.config import RunConfig
from monitor.side.export.log import BURST
from tests import live
from tests.commands import run
from tests.daemon import harness
from tests.daemon.harness import DECISION, Node, metric, metrics, oom, value

pytestmark = [pytest.mark.kernel, pytest.mark.once]

node = pytest.fixture(harness.side_node)


def test_messages_that_cannot_be_used_are_counted_and_the_next_one_counts(node: Node) -> None:
    hot = node.synced(log_format="json")
    for kind in (messages.Suspended, messages.Reap):
        hot.send(kind(*(None for _ in kind._fields)))
    hot.send(LogLine("error", "still here", {"n": 1, "text": 'a "quoted" text'}))
    record = json.loads(hot.wait_for_log('"still here"'))
    expected = {"level": "error", "msg": "still here", "n": 1, "text": 'a "quoted" text'}
    assert record.items() >= expected.items()
    assert metric(hot, "events_lost_total", where="messages") == 2


def test_termination_signal_ends_it_too(node: Node) -> None:
    hot = node.synced()
    hot.process.send_signal(signal.SIGINT)  # Ctrl-C is the hot process's business
    node.pod("a")
    hot.receive("pod+")
    hot.process.terminate()
    assert hot.process.wait(harness.TIMEOUT_S) == 0


def test_without_a_pod_source_it_names_the_reason(tmp_path: Path) -> None:
    hot = harness.Hot(RunConfig(pods="apiserver", state_dir=str(tmp_path)), tmp_path / "log")
    try:
        hot.start()
        assert hot.process.wait(harness.TIMEOUT_S) == 2
        assert "no credentials for an API server" in hot.log()
    finally:
        hot.close()


def test_importing_the_side_stays_light() -> None:
    """What only a feature needs is loaded by that feature: bcc never, pyroute2 and prometheus_client on demand."""
    code = "import sys, monitor.side.main; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    loaded = run(sys.executable, "-c", code, env=live.environment(), check=True).stdout.split()
    assert not {"bcc", "pyroute2", "prometheus_client", "yaml", "click", "psutil", "asyncio"} & set(loaded)


def test_it_starts_ahead_of_others_by_itself() -> None:
    """What its parent did for it came too late at times: when it was back among ordinary ones already."""
    code = """import contextlib, os, runpy
with contextlib.suppress(KeyError):  # it is given no descriptors
    runpy.run_module("monitor.side.main", run_name="__main__")
print(os.nice(0))"""
    done = run(sys.executable, "-c", code, env=live.environment())
    assert done.stdout.strip() == str(STARTING), done.stderr


def test_observed_decision_is_logged_as_the_kubelet_words_it_and_writes_nothing(node: Node) -> None:
    node.pod("a", memory="64Mi")
    hot = node.synced()
    hot.send(DECISION)
    line = hot.wait_for_log('msg="would evict"')
    assert "The node was low on resource: memory. Threshold quantity: 100Mi, available: 99Mi. " in line
    assert "Container main was using 200Mi, request is 64Mi, has larger consumption of memory. " in line
    assert "pod=default/a" in line
    assert metric(hot, "decisions_total", signal="memory.available", mode="observe") == 1


def test_stuck_log_reader_holds_up_nothing(node: Node) -> None:
    read_end, write_end = os.pipe()
    try:
        with open(write_end, "wb") as stderr:
            hot = node.synced(stderr)
        line = "x" * 2000
        for _ in range(6000):  # far more than the pipe (64 KiB) and the queue (4,096 lines) hold
            hot.sock.send(json.dumps({"t": "log", "level": "info", "msg": line}).encode())
        node.pod("a")
        assert hot.receive("pod+").uid == "uid-a"
        lost = metric(hot, "events_lost_total", where="log")
        assert lost > 0
    finally:
        os.close(read_end)


def test_a_pod_fills_no_log(node: Node) -> None:
    """One had 26,151 lines in 12 s."""
    node.pod("a")
    node.pod("b")
    hot = node.synced()
    kinds, most = ("kill", "mark"), 500
    for kind in kinds:
        made = oom(kind=kind, invoker_pid=7, invoker_comm="x")
        for n in range(most):
            hot.send(made._replace(pod="uid-a", pod_name="default/a", victim_pid=n))
    hot.send(made._replace(pod="uid-b", pod_name="default/b", victim_pid=4711))
    assert "pod=default/b" in hot.wait_for_log("victim_pid=4711")
    found = metrics(hot)
    assert value(found, "pod_over_budget_total", namespace="default", pod="a", what="log_lines")
    assert value(found, "pod_over_budget_total", namespace="default", pod="b", what="log_lines") is None
    assert hot.end() == 0
    of_a = [line for line in hot.log().splitlines() if "pod=default/a" in line]
    written = [line for line in of_a if "victim_pid" in line]
    left_out = [int(line.partition(" lines=")[2].split()[0]) for line in of_a if 'msg="more of the same"' in line]
    assert len(written) + sum(left_out) == len(kinds) * most
    assert len(kinds) * BURST <= len(written) < len(kinds) * most / 2
