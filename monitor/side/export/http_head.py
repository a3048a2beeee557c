"""The head of an HTTP/1 request read, and that of an answer written. Pure; the sockets are in
`monitor.side.export.http`."""

from __future__ import annotations

import re
import socket
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple

# A client's connection to `monitor.side.export.http`, and what it may cost.
#: Connections open at the same time. One scraper needs one; each costs 10 KB here and 130 KB of socket buffers at most.
MAX_CONNECTIONS = 64
#: Bytes of answers that clients have not taken yet, of all connections together. The metrics of 500 pods are 0.5 MB.
MAX_UNSENT = 8 << 20
#: The socket buffer of each connection (the kernel doubles it); left alone it grows to 4 MiB for a client that reads
#: nothing.
SEND_BUFFER = 64 << 10
#: Seconds until the head of a request is complete, from the connection or from its first byte on.
HEAD_S = 5.0
#: Seconds a connection may be kept open without a request. Prometheus asks again after 15 to 60.
IDLE_S = 90.0
#: Seconds until the answer is taken.
WRITE_S = 10.0
#: After a refusal what still comes is read and thrown away for so long (seconds), because closing with unread data
#: would reset the connection, and the client would not see why.
DRAIN_S = 1.0
#: Pause after accept(2) failed for want of descriptors or memory, seconds.
DEAF_S = 1.0
#: Seconds that a request waits while the CPU time of all is used up, before it is refused: a client that repeats its
#: request as fast as it is refused would take more than the answer does.
BUSY_S = 1.0
#: Connections accepted between two looks at the others; events handled between two at the CPU time they took.
BATCH = 16
TIMEOUTS = {"head": HEAD_S, "idle": IDLE_S, "write": WRITE_S, "drain": DRAIN_S, "busy": BUSY_S}
#: States whose connections are closed to make room; those whose route is at work are not.
CLOSABLE = ("busy", "drain", "idle", "head", "write")


@dataclass(eq=False, slots=True)
class Connection:
    """A client. ``state``: "head" (a request is coming), "idle", "wait" (for its route), "busy" (for CPU time),
    "write", "drain".
    """

    sock: socket.socket
    state: str = ""
    since: float = 0.0  # monotonic seconds
    inbox: bytearray = field(default_factory=bytearray)
    outbox: list[memoryview] = field(default_factory=list)
    request: Request | None = None  # that is being answered
    closed: bool = False

    def __post_init__(self) -> None:
        """Raises OSError."""
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        if self.sock.family != socket.AF_UNIX:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def unsent(self) -> int:
        return sum(map(len, self.outbox))

    def write(self) -> None:
        """Send what the client takes without waiting. Raises OSError."""
        outbox = self.outbox
        while outbox:
            try:
                sent = self.sock.sendmsg(outbox)
            except BlockingIOError:
                return
            while outbox and sent >= len(outbox[0]):
                sent -= len(outbox.pop(0))
            if outbox:
                outbox[0] = outbox[0][sent:]

    @property
    def is_own(self) -> bool:
        """Whether the client is on this machine: at a loopback address, or at the address it connected to, which the
        kernel gives a connection to an own address. (A packet from outside with such a source is a martian.)
        """
        if self.sock.family == socket.AF_UNIX:
            return True
        names = self.sock.getpeername(), self.sock.getsockname()
        peer, own = (str(name[0]).removeprefix("::ffff:") for name in names)
        return peer == own or peer == "::1" or peer.startswith("127.")


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
    # A GET with a body: nobody reads it here, so what follows on the connection could be taken for a request.
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
