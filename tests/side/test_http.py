"""The HTTP server on a real socket: wrong requests, failing routes, clients that mean no good."""

import contextlib
import http.client
import itertools
import math
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Self

import pytest

from monitor.side.export import http as http_server
from monitor.side.export.http import (
    BURST_S,
    MAX_CONNECTIONS,
    MAX_WAITING,
    OPENMETRICS,
    Response,
    Route,
    Server,
    Shared,
    text,
)
from tests import live

TIMEOUT_S = 60.0


class Running:
    """Context manager: a server with one good, one failing and one waiting route, and ``cpu`` for its CPU time."""

    def __init__(self, cpu: Callable[[], float] | None = None, exposed: bool = False) -> None:
        self.errors: list[str] = []
        self.connected: list[http.client.HTTPConnection] = []
        self.entered = threading.Semaphore(0)
        self.go = threading.Event()
        listener = socket.create_server(("127.0.0.1", 0))
        self.renderings = 0
        self.kept_for: list[str] = []
        self.cpu_s = 0.0  # of the threads that serve, as they believe
        probes: dict[str, Route] = {
            "/good": lambda _: text(200, "good"),
            "/bad": self.bad,
            "/wait": self.wait,
            "/wrong": lambda _: Response(-1, "text/plain", b""),
            "/large": lambda _: Response(200, "text/plain", bytes(1 << 20)),
            "/spends": self.spends,
        }
        routes = {path: Shared({path: probe}, self.errors.append) for path, probe in probes.items()}
        routes["/kept"] = Shared({"/kept": self.kept}, self.errors.append, fresh_s=math.inf)
        self.server = Server(listener, routes, self.errors.append, exposed, cpu=cpu or (lambda: self.cpu_s))
        self.address = listener.getsockname()
        self.server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.go.set()
        for connection in self.connected:
            connection.close()

    def bad(self, _accept: str) -> Response:
        raise KeyError("missing")

    def kept(self, accept: str) -> Response:
        self.kept_for.append(accept)
        return text(200, f"rendering {len(self.kept_for)}")

    def spends(self, _accept: str) -> Response:
        self.cpu_s += 100 * BURST_S
        return text(200, "spent")

    def wait(self, _accept: str) -> Response:
        self.renderings += 1
        self.entered.release()
        self.go.wait(TIMEOUT_S)
        return text(200, "waited")

    def connect(self) -> http.client.HTTPConnection:
        """A connection that is closed in the end."""
        self.connected.append(http.client.HTTPConnection(*self.address, timeout=TIMEOUT_S))
        return self.connected[-1]

    def probe(self) -> tuple[int, str]:
        with contextlib.closing(self.connect()) as connection:
            return get(connection, "/good")


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    for name in ("HEAD_S", "DEAF_S"):  # a client of these tests, and a thread that serves, may be late
        monkeypatch.setattr(http_server, name, 60.0)
    with Running() as running:
        yield running


def test_what_is_asked_is_answered_and_the_connection_closed(running: Running) -> None:
    assert get(running.connect(), "/good?x=1") == (200, "good\n")
    connection = running.connect()
    connection.request("HEAD", "/good")
    response = connection.getresponse()
    assert (response.status, response.getheader("Connection"), response.read()) == (200, "close", b"")
    status, body = get(running.connect(), "/none")
    assert status == 404
    assert "/good" in body
    connection.request("DELETE", "/good")
    assert connection.getresponse().status == 501
    assert running.errors == []


def test_a_failing_route_is_an_error_for_one_client_only(running: Running) -> None:
    assert get(running.connect(), "/bad") == (500, "internal error; see the log\n")
    assert running.probe() == (200, "good\n")
    assert running.errors == ["/bad: KeyError: 'missing'"]
    connection = running.connect()
    connection.request("GET", "/wrong")
    with pytest.raises(http.client.RemoteDisconnected):
        connection.getresponse()
    assert running.probe() == (200, "good\n")
    assert len(running.errors) == 2


def test_a_request_with_a_body_is_not_taken_for_two_requests(running: Running) -> None:
    hidden = b"GET /bad HTTP/1.1\r\nHost: x\r\n\r\n"
    head = b"GET /good HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(hidden)
    for request in (head + hidden, b"GET /good HTTP/1.1\r\nConnection: keep-alive\r\n\r\n" + hidden):
        answer = answer_to(running, request)
        assert answer.count(b"HTTP/1.1") == 1
        assert answer.endswith(b"good\n")
    assert running.errors == []


def test_requests_over_the_limit_of_a_route_are_refused_at_once_and_others_served(running: Running) -> None:
    waiting = [running.connect() for _ in range(MAX_WAITING)]
    for connection in waiting:
        connection.request("GET", "/wait")
    assert running.entered.acquire(timeout=TIMEOUT_S)
    live.until(lambda: running.server.routes["/wait"]._room._value == 0, "all to wait")
    late = running.connect()
    late.request("GET", "/wait")
    response = late.getresponse()
    assert response.status == 503
    assert running.probe() == (200, "good\n")  # a route that hangs holds up no other
    assert running.server.refused == 1
    running.go.set()
    for connection in waiting:
        assert connection.getresponse().read() == b"waited\n"
    # The first had a rendering of its own, all that came meanwhile one together.
    assert running.renderings <= 3


def test_idle_and_slow_clients_by_the_hundred_do_not_keep_a_probe_out(running: Running) -> None:
    threads = threading.active_count()
    silent = [socket.create_connection(running.address, timeout=TIMEOUT_S) for _ in range(2 * MAX_CONNECTIONS)]
    slow_clients = [socket.create_connection(running.address, timeout=TIMEOUT_S) for _ in range(MAX_CONNECTIONS)]
    try:
        for client in slow_clients:
            with contextlib.suppress(ConnectionError):  # it had to go already
                client.sendall(b"GET /good HTTP/1.1\r\nX-A: b\r\n")
        for _ in range(20):
            assert running.probe() == (200, "good\n")
        assert len(running.server.open) <= MAX_CONNECTIONS
        assert running.server.cut >= 2 * MAX_CONNECTIONS
        most = threads + MAX_CONNECTIONS + 1
        live.until(lambda: threading.active_count() <= most, "the threads of those that were cut to end")
    finally:
        for client in (*silent, *slow_clients):
            client.close()
    live.until(lambda: len(running.server.open) == 0, "the server to see them gone")


def test_a_head_that_comes_byte_by_byte_is_cut_when_its_time_is_over(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "HEAD_S", 0.5)
    with socket.create_connection(running.address, timeout=TIMEOUT_S) as client, contextlib.suppress(ConnectionError):
        while True:
            client.sendall(b"G")
            time.sleep(0.01)
    live.until(lambda: running.server.cut == 1, "it to be counted")


def test_those_that_do_not_take_their_answers_keep_no_probe_out(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "WRITE_S", 3600.0)
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS + 8):
            client = stack.enter_context(socket.create_connection(running.address, timeout=TIMEOUT_S))
            client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        live.until(lambda: running.server.cut >= 8, "the first to be cut")
        assert running.probe() == (200, "good\n")
        assert len(running.server.open) <= MAX_CONNECTIONS


def test_one_that_does_not_take_its_answer_in_time_is_cut(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "WRITE_S", 0.1)
    with socket.create_connection(running.address, timeout=TIMEOUT_S) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        live.until(lambda: running.server.cut == 1, "it to be cut")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET /good HTTP/1.1\r\n" + b"X: y\r\n" * 10_000 + b"\r\n", 431),
        (b"GET /good HTTP/1.1\r\nX: " + b"y" * 1_000_000, 431),
        (b"GET /good HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
        (b"GET /good HTTP/2.0\r\n\r\n", 505),
        (b"GET /good HTTP/1.1 x\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"POST /good HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 501),
    ],
)
def test_what_is_too_large_or_no_request_is_refused_and_the_connection_closed(
    running: Running, request_bytes: bytes, status: int
) -> None:
    answer = answer_to(running, request_bytes)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert b"Connection: close" in answer


#: A server in a process of its own, which has no descriptor left when the test says so.
WITHOUT_DESCRIPTORS = """
import contextlib, http.client, os, resource
from monitor.side.export import http as http_server
from tests import live
from tests.side.test_http import Running, get
http_server.HEAD_S = http_server.DEAF_S = 60.0
running = Running()
get(http.client.HTTPConnection(*running.address), "/good")
live.until(lambda: not running.server.open, "it is closed")
print(running.address[1], flush=True)
input()
live.until(lambda: len(running.server.open) == 1, "the idle one")
highest = max(int(name) for name in os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, highest + 1))
with contextlib.suppress(OSError):
    while True:
        os.dup(0)
print(flush=True)
input()
"""


def test_without_descriptors_it_waits_and_goes_on() -> None:
    command = (sys.executable, "-c", WITHOUT_DESCRIPTORS)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=live.environment()
    ) as server:
        address = ("127.0.0.1", int(server.stdout.readline()))
        with socket.create_connection(address, timeout=TIMEOUT_S):
            print(file=server.stdin, flush=True)
            server.stdout.readline()
            # accept(2) gives EMFILE: the idle one goes for it
            with socket.create_connection(address, timeout=TIMEOUT_S) as client:
                client.sendall(b"GET /good HTTP/1.0\r\n\r\n")
                assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        server.kill()


def answer_to(running: Running, data: bytes) -> bytes:
    """All that comes until the server closes."""
    answer = b""
    # The server may close with what it did not read.
    with socket.create_connection(running.address, timeout=TIMEOUT_S) as client, contextlib.suppress(ConnectionError):
        client.sendall(data)
        while chunk := client.recv(1 << 16):
            answer += chunk
    return answer


def get(connection: http.client.HTTPConnection, path: str, accept: str = "") -> tuple[int, str]:
    connection.request("GET", path, headers={"Accept": accept})
    response = connection.getresponse()
    return response.status, response.read().decode()


def test_out_of_cpu_time_the_next_connection_waits(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "LONGEST_S", 3600.0)
    monkeypatch.setattr(http_server, "BATCH", 1)
    assert get(running.connect(), "/spends") == (200, "spent\n")
    live.until(lambda: len(running.server.open) == 0, "it to be paid for")
    # The thread that accepts may wait already: then the first has no answer either. 500 s are to be earned.
    for connection in (running.connect(), running.connect()):
        connection.request("GET", "/good")
    connection.sock.settimeout(0.2)
    with pytest.raises(TimeoutError):
        connection.getresponse()


def test_a_cpu_that_takes_longer_to_wake_up_than_that_earns_answers_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As an emulated one does: 5 to 15 ms, of the 10 ms that it has earned in the second before."""
    monkeypatch.setattr(http_server, "LONGEST_S", 0.01)
    looks = itertools.count(1)
    with Running(cpu=lambda: next(looks) * 2 * BURST_S) as running:
        for path in ("/good", "/kept", "/good"):
            assert get(running.connect(), path)[0] == 200


def test_what_is_kept_is_rendered_once_for_each_format_whatever_clients_accept(running: Running) -> None:
    for n in range(100):
        assert get(running.connect(), "/kept", f"text/plain; q=0.{n}") == (200, "rendering 1\n")
        openmetrics = f"application/openmetrics-text; version=1.0.{n}; escaping=values"
        assert get(running.connect(), "/kept", openmetrics) == (200, "rendering 2\n")
    assert running.kept_for == ["", OPENMETRICS]
