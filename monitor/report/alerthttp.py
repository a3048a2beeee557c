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

from monitor.errors import ConfigError

if TYPE_CHECKING:
    from http.client import HTTPConnection

#: Seconds for connecting, and for every single read or write.
IO_TIMEOUT_S = 5.0
#: Seconds after which a post is cut off, however many small bytes still come.
TOTAL_TIMEOUT_S = 15.0
#: Bytes of an answer that are read; the rest says nothing new.
MAX_ANSWER = 16 << 10

ALERTMANAGER_PATH = "/api/v2/alerts"


def check_url(text: str, option: str) -> str:
    """The URL as it is used (no slash at the end). Raises ConfigError, naming the option, when it is none."""

    def wrong(problem: str, remedy: str) -> ConfigError:
        return ConfigError(f"{option}: {_shown(text)!r} {problem}", remedy)

    example = "write http://HOST:PORT or https://HOST/PATH"
    if not text.isascii() or not text.isprintable() or " " in text:
        raise wrong("has a blank or a character that is not printable ASCII", "write such characters as %XX")
    try:
        parts = urlsplit(text)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise wrong(f"is not a URL ({error})", example) from error
    if parts.scheme not in ("http", "https"):
        raise wrong("does not begin with http:// or https://", example)
    if not host:
        raise wrong("names no host", example)
    if port == 0:
        raise wrong("has port 0", example)
    if parts.fragment:
        raise wrong("has a fragment (#...), which is never sent", "leave it out")
    if "alertmanager" in option:
        if parts.query:
            raise wrong("has a query (?...)", f"give the base URL; {ALERTMANAGER_PATH} is added to it")
        if "/api/v" in parts.path:
            raise wrong("is the address of the API", f"give the base URL; {ALERTMANAGER_PATH} is added to it")
        return text.rstrip("/")
    return text


def _shown(url: str) -> str:
    """The URL without a password, for messages."""
    head, at, tail = url.rpartition("@")
    return f"{head.partition('://')[0]}://...@{tail}" if at and "://" in head else url


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
        """Whether the receiver will say the same next time: it is the content that it does not like.

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
