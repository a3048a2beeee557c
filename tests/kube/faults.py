"""What real servers and the networks before them do, for `FakeServer.fail`."""

import json
import socket
from collections.abc import Callable

from tests.kube.fake_http import Asked, Reply, status_object

Do = Callable[[Asked, Reply], object]


def status(code: int, reason: str = "", message: str = "", details: object = None, **headers: str) -> Do:
    return lambda _, reply: reply.status(code, reason, message or reason, details, **headers)


def text(code: int, body: str, **headers: str) -> Do:
    """No Status: a load balancer's page."""
    return lambda _, reply: reply.body(code, body.encode(), {"Content-Type": "text/html", **headers})


def garbage(body: bytes = b"\x00\xff<html>") -> Do:
    return lambda _, reply: reply.body(200, body)


def no_http(data: bytes = b"SSH-2.0-OpenSSH_9.2\r\n\r\n") -> Do:
    def do(_: Asked, reply: Reply) -> None:
        reply.raw(data)
        reply.cut()

    return do


def hang_up(_: Asked, reply: Reply) -> None:
    """Close the connection when the request has been read."""
    reply.cut()


def hang(_: Asked, reply: Reply) -> None:
    """Answer nothing."""
    reply.wait(30.0)
    reply.cut()


def cut_off(body: bytes = b'{"kind": "PodList", "items": [{"metadata": {"na', announced: int | None = 10_000) -> Do:
    """Half of an answer, then the end of the connection, or only of its sending half. None: framed as if complete."""

    def do(_: Asked, reply: Reply) -> None:
        reply.body(200, body, length=announced)
        if announced is not None:
            reply.cut(socket.SHUT_WR)
            reply.wait(3.0)

    return do


def drip(_: Asked, reply: Reply) -> None:
    """A byte, and a pause, and a byte."""
    reply.head(200, {"Content-Length": "10000"})
    for _byte in range(10_000):
        reply.raw(b" ")
        if reply.wait(0.05):
            return


def stream(*lines: object, end: bool = True) -> Do:
    """A watch that sends these lines (bytes as they are), then ends, or is silent."""

    def do(_: Asked, reply: Reply) -> None:
        reply.chunked()
        for line in lines:
            reply.chunk(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
        if end:
            reply.chunk(b"")
        else:
            reply.wait(30.0)

    return do


def error_event(made: object = None) -> Do:
    """An ERROR event and the end; without ``made`` a 410."""
    gone = status_object(410, "Expired", "too old resource version: 1 (9)")
    return stream({"type": "ERROR", "object": gone if made is None else made})
