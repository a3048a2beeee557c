"""The HTTP server on a real socket: keep-alive, wrong requests, failing routes."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator

import pytest

from monitor.report.http import MAX_CONNECTIONS, Response, Server, text

TIMEOUT_S = 30.0


class Running:
    """A server with one good, one failing and one waiting route."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.entered = threading.Semaphore(0)
        self.go = threading.Event()
        listener = socket.create_server(("127.0.0.1", 0))
        self.server = Server(
            listener,
            {"/good": lambda accept: text(200, accept), "/bad": self.bad, "/wait": self.wait},
            self.errors.append,
        )
        self.address = listener.getsockname()
        self.server.start(poll_s=0.02)

    def bad(self, _accept: str) -> Response:
        raise KeyError("missing")

    def wait(self, _accept: str) -> Response:
        self.entered.release()
        self.go.wait(TIMEOUT_S)
        return text(200, "waited")

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self.address, timeout=TIMEOUT_S)


@pytest.fixture
def running() -> Iterator[Running]:
    running = Running()
    yield running
    running.go.set()
    running.server.shutdown()
    running.server.server_close()


def test_one_connection_serves_many_requests(running: Running) -> None:
    connection = running.connect()
    for accept in ("text/plain", "application/openmetrics-text"):
        connection.request("GET", "/good?x=1", headers={"Accept": accept})
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, accept.encode() + b"\n")
    connection.request("HEAD", "/good")
    response = connection.getresponse()
    assert (response.status, response.read()) == (200, b"")
    connection.close()
    assert running.errors == []


def test_unknown_path_and_method(running: Running) -> None:
    connection = running.connect()
    connection.request("GET", "/none")
    response = connection.getresponse()
    assert response.status == 404
    assert b"/good" in response.read()
    connection.request("DELETE", "/good")
    assert connection.getresponse().status == 501
    connection.close()


def test_a_failing_route_is_an_error_for_one_client_only(running: Running) -> None:
    connection = running.connect()
    connection.request("GET", "/bad")
    response = connection.getresponse()
    assert (response.status, response.read()) == (500, b"internal error; see the log\n")
    connection.request("GET", "/good")
    assert connection.getresponse().status == 200
    connection.close()
    assert running.errors == ["/bad: KeyError: 'missing'"]


def test_a_request_with_a_body_is_not_taken_for_two_requests(running: Running) -> None:
    with socket.create_connection(running.address, timeout=TIMEOUT_S) as client:
        hidden = b"GET /bad HTTP/1.1\r\nHost: x\r\n\r\n"
        client.sendall(b"GET /good HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(hidden), hidden))
        answer = b""
        try:
            while chunk := client.recv(4096):
                answer += chunk
        except ConnectionResetError:
            pass  # the server closed with our unread body in its buffer
    assert answer.count(b"HTTP/1.1") == 1
    assert running.errors == []


def test_connections_over_the_limit_are_refused_at_once(running: Running) -> None:
    waiting = [running.connect() for _ in range(MAX_CONNECTIONS)]
    for connection in waiting:
        connection.request("GET", "/wait")
    for _ in waiting:
        assert running.entered.acquire(timeout=TIMEOUT_S)
    late = running.connect()
    late.request("GET", "/good")
    response = late.getresponse()
    assert (response.status, response.getheader("Retry-After")) == (503, "1")
    late.close()
    assert running.server.refused == 1
    running.go.set()
    for connection in waiting:
        assert connection.getresponse().read() == b"waited\n"
        connection.close()
