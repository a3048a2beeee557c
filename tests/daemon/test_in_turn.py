"""A service waits for what another process has; a datagram socket stands for systemd's."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.cli.in_turn import PATIENCE_S, in_turn
from monitor.cli.listen import bind
from monitor.cli.run import lock
from monitor.errors import InUseError, MonitorError
from monitor.side.export.log import Log
from tests.commands import TIMEOUT_S

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy/systemd/outrace.service"
CODE = "import sys; from monitor.cli.main import main; sys.exit(main())"


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(TIMEOUT_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield sock


@pytest.fixture
def held(tmp_path: Path) -> int:
    return lock(tmp_path / "state")


def test_it_is_taken_when_the_other_one_lets_go(
    held: int, manager: socket.socket, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    threading.Timer(1.2, os.close, (held,)).start()  # looked at three times meanwhile
    os.close(in_turn(lambda: lock(tmp_path / "state"), Log()))
    [line] = capfd.readouterr().err.splitlines()
    assert "level=warning" in line
    assert f"another outrace (pid {os.getpid()}) is running on state directory {tmp_path}/state" in line
    assert manager.recv(4096).decode().startswith(f"STATUS=waiting: another outrace (pid {os.getpid()}) is running")


def test_a_port_is_waited_for_too(manager: socket.socket) -> None:
    other = bind("127.0.0.1", 0)
    port = other.getsockname()[1]
    threading.Timer(0.7, other.close).start()
    in_turn(lambda: bind("127.0.0.1", port), Log()).close()


def test_not_for_ever(held: int, manager: socket.socket, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(InUseError, match="another outrace"):
        in_turn(lambda: lock(tmp_path / "state"), Log(), patience_s=1.0)
    assert time.monotonic() - began >= 1.0
    os.close(held)


@pytest.mark.usefixtures("manager")
def test_what_is_wrong_with_the_directory_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    began = time.monotonic()
    with pytest.raises(MonitorError, match=r"Not a directory|File exists"):
        in_turn(lambda: lock(tmp_path / "state"), Log())
    assert time.monotonic() - began < PATIENCE_S / 2


def test_who_types_the_command_is_told_at_once(held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    began = time.monotonic()
    with pytest.raises(InUseError):
        in_turn(lambda: lock(tmp_path / "state"), Log())
    assert time.monotonic() - began < PATIENCE_S / 2
    os.close(held)


@pytest.mark.skipif(os.geteuid() != 0, reason="outrace run needs root to get this far")
def test_a_service_starts_once_the_other_daemon_has_ended(held: int, manager: socket.socket, tmp_path: Path) -> None:
    """It ended, and was started again every second, for as long as the other one ran. Here it ends in the end too, for
    192.0.2.1 is no machine's address (RFC 5737).
    """
    command = [sys.executable, "-c", CODE, "run", "--pods", "cgroups", "--listen", "192.0.2.1:9469"]
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
