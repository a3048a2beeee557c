"""What the service manager is sent: a real datagram socket stands for systemd's."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from monitor.hot.sd_notify import Service
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode
from tests import live

SECOND = 1_000_000_000


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "30000000")
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
        yield sock


def received(sock: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(sock.recv(4096).decode())
        except BlockingIOError:
            return found


def test_ready_alive_stopping(manager: socket.socket) -> None:
    service = Service()
    service.alive(100 * SECOND)
    service.ready("110 pods")
    service.alive(114 * SECOND)  # not yet: half of 30 s
    service.alive(115 * SECOND)
    service.stopping()
    service.alive(200 * SECOND)  # too late to send anything
    assert received(manager) == ["WATCHDOG=1", "READY=1\nSTATUS=110 pods", "WATCHDOG=1", "STOPPING=1"]
    assert service.due_ns() == 130 * SECOND


def test_a_full_queue_is_tried_again(manager: socket.socket) -> None:
    service = Service()
    sent = 1
    while sent:  # under systemd the queue takes 512, which is more than one sender may have on its way
        sent = 0
        flood = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        with flood, suppress(BlockingIOError):
            while True:
                sent += bool(flood.sendto(b"x" * 1000, manager.getsockname()))
    with closing(service):
        service.ready("110 pods")
        service.alive(100 * SECOND)
        due = service.due_ns()
        assert due <= 100 * SECOND
        received(manager)
        service.alive(100 * SECOND + 1)
        service.alive(115 * SECOND + 1)
        assert received(manager) == ["READY=1\nSTATUS=110 pods\nWATCHDOG=1", "WATCHDOG=1"]


def test_an_abstract_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0outrace-test-{os.getpid()}")
        sock.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@outrace-test-{os.getpid()}")
        with closing(Service()) as service:
            service.ready("0 pods")
        assert received(sock) == ["READY=1\nSTATUS=0 pods"]


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": "/nowhere"},
        {"WATCHDOG_USEC": "30000000"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"},  # of another process
    ],
)
def test_without_a_manager_nothing_happens(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    service = Service()
    service.ready("")
    service.alive(SECOND)
    service.stopping()
    assert service.due_ns() is None


@pytest.mark.once
@pytest.mark.kernel
def test_the_daemon_notifies_systemd_when_it_can_decide_and_while_its_loop_turns(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")  # the queue of the socket takes 10, and the rest is lost
    monkeypatch.delenv("WATCHDOG_PID")  # not known before it is started
    found: list[str] = []

    def heard(text: str) -> bool:
        found.extend(received(manager))
        return any(one.startswith(text) for one in found)

    with LabNode("test-service", 64 * MIB) as node:
        with LabDaemon(node):
            live.until(lambda: heard("READY=1"), "ready")
            found.clear()
            live.until(lambda: heard("WATCHDOG=1"), "alive")  # idle, nothing else wakes it for up to 10 s
        live.until(lambda: heard("STOPPING=1"), "stopping")
