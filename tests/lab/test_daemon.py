"""The lab's daemon: its error when it does not start, and what it leaves behind."""

import signal
import socket

import pytest

from monitor.cli import run
from monitor.errors import InUseError, MonitorError
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode
from monitor.side.export.log import Log
from tests import live

pytestmark = [pytest.mark.kernel, pytest.mark.once]

node = live.fixture(LabNode, "test-labd", 64 * MIB)


def test_who_takes_its_port_does_not_keep_it_from_watching(node: LabNode) -> None:
    """Any user may listen on 9469 before it does; it did not start then, for as long as that one listened."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with live.daemon(node, "--listen", f"127.0.0.1:{port}") as daemon:
            record = live.message(daemon, "served on another port", level="error")
            assert f"--listen 127.0.0.1:{port}: Address already in use" in record["problem"]
            assert daemon.get("/healthz")[0] == 200


def test_one_that_neither_starts_nor_ends_is_an_error(node: LabNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.lab.daemon.PATIENCE_S", 0.1)
    daemon = LabDaemon(node, state_dir=live.state_dir(), keep_pins=True, wrapper=("sh", "-c", "exec sleep 1000"))
    with pytest.raises(MonitorError, match=r"waited 0\.2 s for the monitor to be ready"):
        daemon.start()
    daemon.process.kill()
    assert daemon.process.wait(live.TIMEOUT_S) == -signal.SIGKILL


def test_users_on_every_port_do_not_keep_the_daemon_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A local user can listen on all 28,232 ports that the kernel would choose from."""

    def taken(host: str, port: int) -> socket.socket:
        raise InUseError(f"--listen {host}:{port}: taken", "stop it")

    monkeypatch.setattr(run, "bind", taken)
    with run.bind_or_other("127.0.0.1", 9469, Log(), patience_s=0.0) as listener:
        assert (listener.family, run.address_of(listener)) == (socket.AF_UNIX, ("nowhere", 0))
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(listener.getsockname())
