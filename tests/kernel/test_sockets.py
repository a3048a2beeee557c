"""What waits in the sockets of processes: real connections on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import ExitStack

import pytest

from monitor.kernel.sockets import Waiting, waiting
from tests import live

pytestmark = [pytest.mark.live, pytest.mark.once]


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_connections_that_nobody_accepted_and_bytes_that_nobody_read(family: int, address: str) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket(family))
        server.bind((address, 0))
        server.listen(8)
        before = waiting([os.getpid()])
        assert before is not None
        clients = [stack.enter_context(socket.create_connection(server.getsockname()[:2])) for _ in range(3)]
        accepted = stack.enter_context(server.accept()[0])
        clients[0].sendall(bytes(1000))
        live.until(lambda: waiting([os.getpid()]) == _more(before, 2, 1000, 4), lambda: str(waiting([os.getpid()])))
        assert len(accepted.recv(2000)) == 1000
        assert waiting([os.getpid()]) == _more(before, 2, 0, 4)


def _more(before: Waiting, connections: int, unread: int, sockets: int) -> Waiting:
    """Three clients and the one that was accepted: what waits to be accepted is no socket of anybody yet."""
    return Waiting(before.connections + connections, before.unread + unread, before.sockets + sockets)


def test_nothing_is_known_of_who_has_ended() -> None:
    with subprocess.Popen(["sleep", "1000"]) as ended:
        assert waiting([ended.pid]) == Waiting(0, 0, 0)
        ended.kill()
    assert waiting([ended.pid]) is None
    assert waiting([]) is None
