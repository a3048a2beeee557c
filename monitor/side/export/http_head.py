"""The head of an HTTP/1 request read, and that of an answer written. Pure; the sockets are in
`monitor.side.export.http`.

The parser of `http.server` would take 6 MB for a head, five times the CPU time and 3 MB more of memory.
"""

from __future__ import annotations

import re
import time
from http import HTTPStatus
from typing import NamedTuple

#: Bytes of a request's first line, and of its whole head. A scraper sends 300.
MAX_LINE = 2048
MAX_HEAD = 8192

_END = re.compile(rb"\r?\n\r?\n")
_VERSION = re.compile(r"HTTP/([0-9])\.([0-9])")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Request(NamedTuple):
    """What is used of a request. ``keep``: the connection stays open after the answer."""

    method: str
    path: str
    accept: str
    keep: bool
    size: int  # bytes of its head


class BadRequestError(Exception):
    """No request that is answered with anything but ``status``; the connection is closed after it."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


def parse(data: bytes | bytearray) -> Request | None:
    """The first request in ``data``; None while its head is not complete. Raises BadRequestError."""
    found = _END.search(data, 0, MAX_HEAD)
    if found is None:
        if len(data) > MAX_LINE and b"\n" not in data[:MAX_LINE]:
            raise BadRequestError(HTTPStatus.REQUEST_URI_TOO_LONG)
        if len(data) >= MAX_HEAD:
            raise BadRequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        return None
    first, *rest = bytes(data[: found.start()]).decode("latin-1").replace("\r\n", "\n").split("\n")
    if len(first) > MAX_LINE:
        raise BadRequestError(HTTPStatus.REQUEST_URI_TOO_LONG)
    parts = first.split(" ")
    version = _VERSION.fullmatch(parts[-1])
    if len(parts) != 3 or version is None or not _TOKEN.fullmatch(parts[0]):
        raise BadRequestError(HTTPStatus.BAD_REQUEST)
    if version[1] != "1":
        raise BadRequestError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
    headers = _headers(rest)
    if parts[0] not in ("GET", "HEAD"):
        raise BadRequestError(HTTPStatus.NOT_IMPLEMENTED)
    connection = {word.strip().lower() for word in headers.get("connection", "").split(",")}
    keep = "close" not in connection and (version[2] != "0" or "keep-alive" in connection)
    # A GET with a body: it is not read, so what follows on the connection could be taken for a request.
    keep = keep and "content-length" not in headers and "transfer-encoding" not in headers
    return Request(parts[0], _path(parts[1]), headers.get("accept", ""), keep, found.end())


def _headers(lines: list[str]) -> dict[str, str]:
    """Names in lower case; what is given several times is one list."""
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name):
            raise BadRequestError(HTTPStatus.BAD_REQUEST)
        name, value = name.lower(), value.strip()
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def _path(target: str) -> str:
    """Of ``/path?query`` and of ``http://host/path``."""
    if target.startswith(("http://", "https://")):
        target = "/" + target.partition("://")[2].partition("/")[2]
    return target.partition("?")[0].partition("#")[0]


def head(status: int, content_type: str, length: int, keep: bool, retry_s: int = 0) -> bytes:
    """The head of an answer with a body of ``length`` bytes; ``retry_s``: when it is worth trying again."""
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "Server: outrace",
        f"Date: {time.strftime('%a, %d %b %Y %H:%M:%S GMT', time.gmtime())}",
        f"Content-Type: {content_type}",
        f"Content-Length: {length}",
    ]
    if retry_s:
        lines.append(f"Retry-After: {retry_s}")
    if not keep:
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
