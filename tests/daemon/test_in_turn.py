"""A service waits for what another process has; a datagram socket stands for systemd's."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monitor.cli.run import LOCK_PATIENCE_S as PATIENCE_S
from monitor.cli.run import in_turn, lock
from monitor.errors import InUseError, MonitorError
from monitor.side.export.log import Log
from tests.commands import TIMEOUT_S
from tests.daemon.test_service import manager as manager
from tests.live import CLI, ROOT

UNIT = ROOT / "deploy/systemd/outrace.service"


@pytest.fixture
def held(tmp_path: Path) -> int:
    return lock(tmp_path / "state")


class Clock:
    """Moves while it is slept; what is waited for is let go of after so many sleeps."""

    def __init__(self, sleeps: int, let_go: Callable[[], object]) -> None:
        self.now, self.slept = 0.0, 0
        self._sleeps, self._let_go = sleeps, let_go

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += 1
        if self.slept == self._sleeps:
            self._let_go()

    def in_turn(self, take: Callable[[], Any]) -> Any:
        return in_turn(take, Log(), now=lambda: self.now, sleep=self.sleep)


def test_it_is_taken_when_the_other_one_lets_go(
    held: int, manager: socket.socket, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(3, lambda: os.close(held))
    os.close(clock.in_turn(lambda: lock(tmp_path / "state")))
    assert clock.slept == 3
    text = f"another outrace (pid {os.getpid()}) is running on state directory {tmp_path}/state"
    [line] = [line for line in capfd.readouterr().err.splitlines() if text in line]
    assert "level=warning" in line
    assert manager.recv(4096).decode().startswith(f"STATUS=waiting: another outrace (pid {os.getpid()}) is running")


def test_not_for_ever(held: int, manager: socket.socket, tmp_path: Path) -> None:
    clock = Clock(0, list)
    with pytest.raises(InUseError, match="another outrace"):
        clock.in_turn(lambda: lock(tmp_path / "state"))
    assert clock.now == PATIENCE_S
    os.close(held)


@pytest.mark.usefixtures("manager")
def test_what_is_wrong_with_the_directory_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    clock = Clock(0, list)
    with pytest.raises(MonitorError, match=r"Not a directory|File exists"):
        clock.in_turn(lambda: lock(tmp_path / "state"))
    assert clock.slept == 0


def test_a_command_that_no_manager_started_fails_at_once(
    held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    clock = Clock(0, list)
    with pytest.raises(InUseError):
        clock.in_turn(lambda: lock(tmp_path / "state"))
    assert clock.slept == 0
    os.close(held)


@pytest.mark.skipif(os.geteuid() != 0, reason="outrace run needs root to get this far")
def test_a_service_starts_once_the_other_daemon_has_ended(held: int, manager: socket.socket, tmp_path: Path) -> None:
    """It ended, and was started again every second, for as long as the other one ran. Here it ends in the end too, for
    192.0.2.1 is no machine's address (RFC 5737).
    """
    command = [sys.executable, "-c", CLI, "run", "--pods", "cgroups", "--listen", "192.0.2.1:9469"]
    command += ["--state-dir", str(tmp_path / "state")]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            manager.settimeout(60)
            assert b"another outrace" in manager.recv(4096)
            assert process.poll() is None
            os.close(held)
            _, err = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    assert process.returncode == 1
    assert [line for line in err.splitlines() if "another outrace" in line] == err.splitlines()[:1]
    assert "Cannot assign requested address" in err


def test_the_unit_starts_soon_after_a_crash_and_gives_a_start_the_time_to_wait() -> None:
    settings = dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if "=" in line)
    assert settings["RestartSec"] == "1"
    assert int(settings["TimeoutStartSec"]) >= PATIENCE_S + 90
