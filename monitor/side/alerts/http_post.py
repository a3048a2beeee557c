"""Posting JSON to a URL the user gave: bounded in time and in bytes, no redirects, no proxies.

http.client of the standard library, imported with the first post; ssl is set up (2 MB) only for https.
"""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

if TYPE_CHECKING:
    from http.client import HTTPConnection

#: Seconds for connecting, and for every single read or write.
IO_TIMEOUT_S = 5.0
#: Seconds after which a post is cut off, even while the receiver still sends small pieces.
TOTAL_TIMEOUT_S = 15.0
#: Bytes of an answer that are read.
MAX_ANSWER = 16 << 10


def address(url: str) -> str:
    """``host:port`` of a checked URL: what may be shown of it. A path or query may hold a secret."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Answer(NamedTuple):
    """``status`` of HTTP, and the beginning of the body as text."""

    status: int
    text: str

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def final(self) -> bool:
        """Whether the answer will be the same next time: the receiver refuses the content.

        404 and the like are not: an operator may be correcting just that.
        """
        return self.status in (400, 413, 422)


class PostError(Exception):
    """No answer: the text says why."""


def post(url: str, body: bytes, user_agent: str) -> Answer:
    """POST JSON and read the answer. Raises PostError."""
    import http.client

    parts = urlsplit(url)
    connection = _connection(parts)
    cut = threading.Timer(TOTAL_TIMEOUT_S, _cut, (connection,))
    cut.daemon = True
    try:
        connection.connect()
        cut.start()
        headers = {"Content-Type": "application/json", "User-Agent": user_agent, "Connection": "close"}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", target, body, headers)
        answer = connection.getresponse()
        text = answer.read(MAX_ANSWER).decode(errors="replace")
    except (OSError, http.client.HTTPException, ValueError, RuntimeError) as error:
        # ValueError: a host name IDNA cannot encode. RuntimeError: no thread can be started.
        raise PostError(_why(error)) from error
    finally:
        cut.cancel()
        connection.close()
    return Answer(answer.status, text)


def _connection(parts: SplitResult) -> HTTPConnection:
    import http.client

    assert parts.hostname
    if parts.scheme == "https":
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=IO_TIMEOUT_S)
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=IO_TIMEOUT_S)


def _cut(connection: HTTPConnection) -> None:
    sock = connection.sock
    if sock is not None:
        with contextlib.suppress(OSError):  # it was just closed
            sock.shutdown(socket.SHUT_RDWR)


def _why(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return text or type(error).__name__
