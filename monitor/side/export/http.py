"""HTTP on an already bound socket: a thread for each of a bounded number of connections, and one that accepts the next.

It serves numbers to scrapers and probes. Clients that connect and send nothing, send it slowly, do not read answers
or ask for too much cost a bounded number of connections, bytes and seconds, and the oldest connection is closed for a
new one: so a probe is answered beside any number of them. All requests together cost at most 2 % of a CPU: 1 % is
rendering (`RENDER_SHARE`), 1 % everything else (`CLIENT_SHARE`), because side and hot may share a CPU quota.
The parser of `http.server` would take 6 MB for a head, five times the CPU time and 3 MB more of memory.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple

from monitor.side.export.route import CLIENT_SHARE, MAX_WAITING, Budget, Response, Shared, text

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


#: Connections open at the same time. One scraper needs one; each costs 60 KB here and 130 KB of socket buffers at most.
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
#: Seconds in which the client has to read the answer.
WRITE_S = 10.0
#: After a refusal the server reads and drops data for so long (seconds), because closing with unread data would reset
#: the connection, and the client would not see why.
DRAIN_S = 1.0
#: Pause after accept(2) failed for want of descriptors or memory, and how long a connection gets to end, seconds.
DEAF_S = 1.0
#: Connections that are accepted without a rest where so many wait: the first costs four times as much as the others.
BATCH = 16
#: Threads that are kept for the next connections.
_SPARE = 16
#: The line that refuses a client of another host.
_NOT_FOR_OTHERS = "only for this machine; outrace run --expose-metrics opens it to other hosts and pods"
_TOO_MANY = text(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests wait")


@dataclass(eq=False, slots=True)
class Connection:
    """A client, as its thread sees it."""

    sock: socket.socket
    counted_s: float  # the CPU time of its thread that was paid for
    since: float = field(default_factory=time.monotonic)  # seconds: when it last got or sent something
    is_waiting: bool = False  # for a route of ours: it is not closed for a new one
    unsent: int = 0  # bytes of an answer that it has not taken yet
    inbox: bytearray = field(default_factory=bytearray)

    def receive(self, first_s: float) -> Request | None:
        """The next request, whose first byte comes within ``first_s``; None if there is none. Raises OSError (of time
        too) and BadRequestError.
        """
        limit = time.monotonic() + (HEAD_S if self.inbox else first_s)
        while (request := parse(self.inbox)) is None:
            self.sock.settimeout(max(limit - time.monotonic(), 1e-6))
            if not (data := self.sock.recv(MAX_HEAD - len(self.inbox))):
                return None
            if not self.inbox:
                limit = time.monotonic() + HEAD_S  # its time begins with its first byte and does not begin anew
            self.inbox += data
        del self.inbox[: request.size]
        return request

    def drain(self) -> None:
        """End it so that the client reads what it was sent. Raises OSError."""
        self.sock.shutdown(socket.SHUT_WR)
        limit = time.monotonic() + DRAIN_S
        while (left_s := limit - time.monotonic()) > 0:
            self.sock.settimeout(left_s)
            if not self.sock.recv(MAX_HEAD):
                return

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


@dataclass(eq=False)
class Server:
    """Serves on ``listener``, which it owns; ``on_error(message)`` is called when something failed that should not.

    Each path is answered by its `Shared`; those that are kept, unless ``exposed``, only to clients of this machine.
    ``share`` is `CLIENT_SHARE`. `refused` counts requests that were answered 503 because too many waited, and
    connections that were closed because all others waited; `cut` those closed for being slow, or to make room.
    """

    listener: socket.socket
    routes: Mapping[str, Shared]
    on_error: Callable[[str], None]
    exposed: bool = True
    max_connections: int = MAX_CONNECTIONS
    share: float = CLIENT_SHARE
    cpu: Callable[[], float] = time.thread_time

    def __post_init__(self) -> None:
        self.listener.setblocking(False)
        self.refused = self.cut = 0
        self._budget = Budget(self.share)
        self._coming = select.poll()
        self._coming.register(self.listener, select.POLLIN)
        self._accepting, self._turn = threading.Lock(), threading.Lock()
        self._resting = threading.Semaphore(MAX_WAITING)
        self._accepted = 0  # connections, of a batch
        self._idle = 0  # threads that accept, or wait to accept
        self._open: set[Connection] = set()
        self._changed = threading.Condition()  # of the two
        self._ending = False

    def start(self) -> None:
        """Serve from threads of its own until the process ends, or until `close`."""
        self._start_thread()

    def close(self) -> None:
        self._ending = True
        self.listener.shutdown(socket.SHUT_RDWR)  # wakes the thread up that accepts
        with self._changed:
            for connection in self._open:
                self._cut(connection)
        with self._accepting:
            self.listener.close()

    @property
    def connections(self) -> int:
        return len(self._open)

    # the threads

    def _run(self) -> None:
        """Accept a connection, serve it, and so on: cheaper than a thread for each, and than to hand it on."""
        counted_s = 0.0  # CPU time of this thread that was paid for; the rest is paid before it accepts or reads
        while True:
            with self._accepting:
                used_s = self.cpu()
                debt_s = self._budget.spend(used_s - counted_s)
                self._accepted = (self._accepted + 1) % BATCH
                if debt_s > 0 and not (self._accepted and self._coming.poll(0)):
                    time.sleep(debt_s)  # clients wait in the kernel, which is cheap
                    used_s = self.cpu()  # to wake up costs an emulated CPU more than a second of 1 % earns
                if (sock := self._next()) is None:
                    return
                connection = Connection(sock, used_s)
                with self._changed:
                    self._open.add(connection)
                    self._idle -= 1
                    if self._idle == 0:
                        self._start_thread()
            self._serve(connection)
            counted_s = connection.counted_s
            with self._changed:
                self._open.discard(connection)
                sock.close()
                self._changed.notify_all()
                if self._idle > _SPARE:
                    return
                self._idle += 1

    def _start_thread(self) -> None:
        self._idle += 1
        try:
            threading.Thread(target=self._run, name="http", daemon=True).start()
        except RuntimeError:  # no thread can be started: the next connection waits for the end of this one
            self._idle -= 1

    def _next(self) -> socket.socket | None:
        """A new connection, and room for it; None at the end."""
        while not self._ending:
            self._coming.poll()  # accept(2) reports a want of descriptors even while no client connects
            try:
                sock, _address = self.listener.accept()
            except (BlockingIOError, ConnectionError):
                continue
            except OSError as error:  # no descriptors, no memory
                if not self._ending and not self._make_room():
                    self.on_error(f"accept: {error.strerror}")
                    time.sleep(DEAF_S)
                continue
            if len(self._open) < self.max_connections or self._make_room():
                return sock
            self.refused += 1
            sock.close()
        return None

    def _make_room(self) -> bool:
        """Close the connection that has been idle for longest; False if all wait for an answer of ours."""
        with self._changed:
            closable = [one for one in self._open if not one.is_waiting]
            oldest = min(closable, key=lambda one: one.since, default=None)
            if oldest is None:
                return False
            self._cut(oldest)
            return self._changed.wait_for(lambda: oldest not in self._open, DEAF_S)

    def _cut(self, connection: Connection) -> None:
        """Its thread sees at once that it has ended, unless a route is at work for it."""
        self.cut += 1
        with contextlib.suppress(OSError):  # it has ended by itself
            connection.sock.shutdown(socket.SHUT_RDWR)

    # one connection

    def _serve(self, connection: Connection) -> None:
        try:
            self._answer_all(connection)
        except TimeoutError:
            self.cut += 1
        except OSError:
            pass  # the client closed the connection, as it may
        except Exception as error:  # noqa: BLE001 - a thread must not end in silence
            self.on_error(f"{type(error).__name__}: {error}")

    def _answer_all(self, connection: Connection) -> None:
        """The requests of a connection, one after the other. Raises OSError."""
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        if connection.sock.family != socket.AF_UNIX:
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        first_s, keep = HEAD_S, True
        while keep:
            try:
                request = connection.receive(first_s)
            except BadRequestError as bad:
                self._send(connection, None, text(bad.status, bad.status.phrase))
                connection.drain()
                return
            if request is None:
                return
            response = self._answer(connection, request)
            # Out of CPU time the next request needs a connection: it waits to be accepted, which is cheap.
            keep = request.keep and self._paid(connection)
            self._send(connection, request._replace(keep=keep), response)
            first_s, connection.since = IDLE_S, time.monotonic()
        if connection.inbox:
            connection.drain()

    def _answer(self, connection: Connection, request: Request) -> Response:
        shared = self.routes.get(request.path)
        if shared is None:
            return text(404, f"not here; try {' '.join(self.routes)}")
        if shared.is_kept and not (self.exposed or connection.is_own):
            return text(HTTPStatus.FORBIDDEN, _NOT_FOR_OTHERS)
        connection.is_waiting = True
        if shared.is_kept and not (self._paid(connection) or self._rest()):
            response = None
        else:
            before = self.cpu()
            response = shared.ask(request.path, request.accept)
            if shared.is_kept:
                connection.counted_s += self.cpu() - before  # renderings are paid for there
        connection.is_waiting = False
        if response is None:
            self.refused += 1
            return _TOO_MANY
        return response

    def _paid(self, connection: Connection) -> bool:
        """Pay for what it has used; whether that is earned."""
        used_s = self.cpu()
        debt_s = self._budget.spend(used_s - connection.counted_s)
        connection.counted_s = used_s
        return debt_s <= 0

    def _rest(self) -> bool:
        """Wait in turn, until all that was used is earned; False if too many do."""
        if not self._resting.acquire(blocking=False):
            return False
        with self._turn:
            time.sleep(self._budget.spend(0.0))
        self._resting.release()
        return True

    def _send(self, connection: Connection, request: Request | None, response: Response) -> None:
        """Raises OSError, of time too."""
        body = b"" if request is not None and request.method == "HEAD" else response.body
        with self._changed:
            connection.since, connection.unsent = time.monotonic(), len(body)
            writing = sorted((one for one in self._open if one.unsent), key=lambda one: one.since)
            while sum(one.unsent for one in writing) > MAX_UNSENT:
                self._cut(writing.pop(0))
        keep = request is not None and request.keep
        first = head(response.status, response.content_type, len(response.body), keep, int(response is _TOO_MANY))
        connection.sock.settimeout(WRITE_S)
        connection.sock.sendall(first, socket.MSG_MORE if body else 0)
        connection.sock.sendall(body)
        connection.unsent = 0
