"""A service waits for what another process has; a datagram socket stands for systemd's."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from monitor.cli.run import LOCK_PATIENCE_S as PATIENCE_S
from monitor.cli.run import in_turn, lock
from monitor.errors import MonitorError
from monitor.side.export.log import Log
from tests.commands import TIMEOUT_S
from tests.daemon.test_service import manager as manager
from tests.live import CLI, ROOT


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.mark.parametrize(
    ("is_held", "is_service", "waited_s"),
    [(True, True, PATIENCE_S), (True, False, 0), (False, True, 0)],  # a command fails at once, and what is no lock
)
@pytest.mark.usefixtures("manager")
def test_only_a_service_waits_for_another_process_and_not_for_ever(
    is_held: bool, is_service: bool, waited_s: float, state: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    if not is_service:
        monkeypatch.delenv("NOTIFY_SOCKET")
    slept, held = list[float](), lock(state) if is_held else os.open(state, os.O_CREAT)
    with pytest.raises(MonitorError, match="another outrace" if is_held else "Not a directory|File exists"):
        in_turn(lambda: lock(state), Log(), now=lambda: sum(slept), sleep=slept.append)
    os.close(held)
    assert sum(slept) == waited_s
    assert capfd.readouterr().err.count("level=warning") == bool(waited_s), "one line, however long it waits"


@pytest.mark.skipif(os.geteuid() != 0, reason="outrace run needs root to get this far")
def test_a_service_starts_once_the_other_daemon_has_ended(manager: socket.socket, state: Path) -> None:
    """It ended, and was started again every second, for as long as the other one ran. Here it ends in the end too, for
    192.0.2.1 is no machine's address (RFC 5737).
    """
    command = [sys.executable, "-c", CLI, "run", "--pods", "cgroups", "--listen", "192.0.2.1:9469"]
    command += ["--state-dir", str(state)]
    held, problem = lock(state), f"another outrace (pid {os.getpid()}) is running"
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            manager.settimeout(60)
            assert manager.recv(4096).decode().startswith(f"STATUS=waiting: {problem}")
            assert process.poll() is None
            os.close(held)
            _, err = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    assert process.returncode == 1
    first, *rest = err.splitlines()
    assert "level=warning" in first
    assert f"{problem} on state directory {state}" in first
    assert "another outrace" not in str(rest)
    assert "Cannot assign requested address" in err
