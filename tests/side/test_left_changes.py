"""The helper releases what the hot process held when that dies and no other daemon comes, and only then."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.actions import ledger
from monitor.actions.undo import undo_left
from monitor.cli.run import lock
from monitor.settings.config import RunConfig
from monitor.side.left_changes import LeftChanges
from tests import live
from tests.actions.test_ledger import killed_daemon
from tests.hold.braked import HIERARCHY, Stand
from tests.hold.braked import held as held

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.kernel, pytest.mark.oldest]

#: Stands for the hot process: holds a pod, starts its helper, and waits; the helper looks when its stdin is closed.
_HOT = """
import os, subprocess, sys
from pathlib import Path
from monitor.actions import ledger
from monitor.hold import pod_brake
from monitor.kernel import cgroupfs
state, pod, side = sys.argv[1:]
journal = ledger.Ledger(Path(state))
brake = pod_brake.PodBrake("uid", Path(pod), cgroupfs.detect(), journal)
assert brake.apply(64 << 20) is not None
subprocess.Popen([sys.executable, "-c", side, state])
os.execvp("sleep", ["sleep", "1000"])
"""
_SIDE = """
import socket, sys
from dataclasses import replace
from pathlib import Path
from monitor.kernel import cgroupfs
from monitor.settings.config import RunConfig
from monitor.side.left_changes import LeftChanges
config = replace(RunConfig(), enforce=True, hold=True, state_dir=sys.argv[1])
left = LeftChanges(config, cgroupfs.detect(), lambda *what, **fields: print(*what, fields, flush=True), {})
listener = socket.create_server(("127.0.0.1", 0))
print("ready", flush=True)
for line in sys.stdin:
    left._undo_rest()
    left.at_end(listener)
    socket.create_connection(listener.getsockname()).close()
    print("looked", flush=True)
left.at_end(listener)
try:
    socket.create_connection(listener.getsockname())
except ConnectionRefusedError:
    print("ended", flush=True)
"""


def left_of(held: Stand, **options: float) -> LeftChanges:
    """What the helper looks after of a daemon that held the pod, and was killed."""
    killed_daemon(held)
    config = RunConfig(enforce=True, hold=True, state_dir=str(held.state))
    return LeftChanges(config, HIERARCHY, lambda *_, **__: None, **options)


def test_under_systemd_its_stop_post_undoes_what_is_left(held: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd starts no daemon before the helper has ended: to wait for one would release every hold."""
    monkeypatch.setenv("OUTRACE_STOP_POST", "1")
    left = left_of(held, next_s=60.0)
    with subprocess.Popen(["true"]) as ended, socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(left, "_hot", os.pidfd_open(ended.pid))
        ended.wait()
        left.at_end(listener)
        with pytest.raises(OSError):
            listener.accept()
    assert held.noted()
    assert "Environment=OUTRACE_STOP_POST=1" in (ROOT / "deploy/systemd/outrace.service").read_text()
    assert undo_left([held.state], lambda *_, **__: None)


@pytest.mark.parametrize("next_one", [False, True])
def test_a_pod_is_released_when_the_hot_process_is_killed_unless_another_daemon_comes(
    held: Stand, next_one: bool
) -> None:
    before = held.files()
    command = [sys.executable, "-c", _HOT, str(held.state), str(held.pod), _SIDE.format(60.0 if next_one else 3.0)]
    hot = subprocess.Popen(
        command, env=live.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert hot.stdout.readline() == "ready\n"
        # It has become another process by execv meanwhile: the same one to its helper, and where
        # it listens, that listens still.
        hot.stdin.write("look\n")
        assert hot.stdout.readline() == "looked\n"
        assert held.noted()
        assert held.files() != before
        hot.send_signal(signal.SIGKILL)
        hot.wait(live.TIMEOUT_S)
        held.state.mkdir(exist_ok=True)
        lock_fd = lock(held.state) if next_one else -1
        hot.stdin.close()
        *lines, last = hot.stdout.read().splitlines()
        lines = [line for line in lines if str(held.node) in line]  # not what others left
    finally:
        hot.kill()
        hot.wait()
        hot.stdout.close()
    assert last == "ended"
    if next_one:
        os.close(lock_fd)
        assert lines == []
        assert held.noted()
        assert held.files() != before
        assert undo_left([held.state], lambda *_, **__: None)
        return
    # Another worker's daemon that starts in this instant may undo it first, and then this one says nothing.
    assert {line.partition(" {")[0] for line in lines} <= {"info a change of an earlier daemon is undone"}
    assert held.files() == before
    assert not held.noted()


def test_what_an_ended_hot_process_holds_is_released_once_the_next_is_ready(held: Stand) -> None:
    """Of other pods than the next one knows."""
    left = left_of(held)
    assert held.noted()
    left.at_ready()
    left.at_ready()
    live.until(lambda: not held.noted(), "the pod to be released")


def test_what_the_running_hot_process_holds_stays_where_it_is_not_known_to_run(
    held: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = left_of(held)
    monkeypatch.setattr(ledger, "runs", lambda _: None)  # no descriptor for /proc is left
    monkeypatch.setattr(left, "_holder", next(ledger.noted(held.node)).owner)
    left._undo_rest()
    assert held.noted()
    monkeypatch.setattr(left, "_holder", "another one")
    left._undo_rest()
    assert not held.noted()
