"""HTTP on an already bound socket: `http.server`, with bounds.

It serves numbers to scrapers and probes. Clients that connect and send nothing, send it slowly, do not read answers
or ask for too much cost a bounded number of connections, bytes and seconds, and the oldest connection is closed for a
new one: so a probe is answered beside any number of them. A connection has one request, and no byte after its head is
parsed: a body cannot be taken for a second request. All requests together cost at most 2 % of a CPU: 1 % is rendering
(`RENDER_SHARE`), 1 % everything else (`CLIENT_SHARE`), because helper and hot may share a CPU quota.
"""

from __future__ import annotations

import contextlib
import errno
import io
import math
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from socketserver import BaseServer
from typing import Any, NamedTuple

#: Requests that wait for the routes of one `Shared`.
MAX_WAITING = 32
#: Seconds for which a rendering is served again. A scraper asks every 15 to 60 s.
FRESH_S = 1.0
#: The part of a CPU that renderings take, all together, and that of connections and requests (0.1 ms each). The sum is
#: 2 %, because helper and hot may share a quota.
RENDER_SHARE = 0.01
CLIENT_SHARE = 0.01
#: CPU time that clients can save up, seconds: 500 requests at once.
BURST_S = 0.05
#: A debt that takes longer than this to earn is waived: an emulated CPU takes 5 to 15 ms to wake up.
LONGEST_S = 2.0


class Response(NamedTuple):
    status: int
    content_type: str
    body: bytes


#: A route gets the Accept header: "" or `OPENMETRICS`.
Route = Callable[[str], Response]
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def text(status: int, body: str) -> Response:
    """A plain text answer; a newline is added."""
    return Response(status, "text/plain; charset=utf-8", body.encode() + b"\n")


class Budget:
    """``share`` of a CPU for all threads that `spend` from it, of which `BURST_S` can be saved up."""

    def __init__(self, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._clock = clock
        self._earned_at = -math.inf
        self._lock = threading.Lock()

    def spend(self, cpu_s: float) -> float:
        """Seconds until the CPU time of all callers is earned: threads that sleep so long run one after the other."""
        with self._lock:
            now = self._clock()
            earned_at = max(self._earned_at, now - BURST_S / self._share) + cpu_s / self._share
            self._earned_at = min(earned_at, now + LONGEST_S)
            return max(0.0, self._earned_at - now)


@dataclass(eq=False)
class Shared:
    """Answers of ``routes`` (by path), made by one thread at a time; those that wait for the same answer get one.

    Making them takes at most ``share`` of a CPU. An answer is given for ``fresh_s`` seconds; with 0 only to requests
    that came before it was begun.
    """

    routes: Mapping[str, Route]
    on_error: Callable[[str], None]
    share: float = 1.0
    fresh_s: float = 0.0
    clock: Callable[[], float] = time.monotonic  # seconds, as the next
    cpu: Callable[[], float] = time.thread_time
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        self._due = -math.inf
        self._room = threading.Semaphore(MAX_WAITING)
        self._one = threading.Lock()
        self._made: dict[tuple[str, str], tuple[float, Response]] = {}

    @property
    def is_kept(self) -> bool:
        """Whether its answers are kept, and making them is paid for here."""
        return self.fresh_s > 0

    def ask(self, path: str, accept: str) -> Response | None:
        """From any thread; None if too many wait already."""
        # There are two formats: a client must not cause a rendering for each spelling of Accept.
        key = (path, OPENMETRICS if "application/openmetrics-text" in accept else "")
        since = self.clock() - self.fresh_s
        if (kept := self._kept(key, since)) is not None:
            return kept
        if not self._room.acquire(blocking=False):
            return None
        try:
            with self._one:
                return self._kept(key, since) or self._make(*key)
        finally:
            self._room.release()

    def _kept(self, key: tuple[str, str], since: float) -> Response | None:
        made_at, response = self._made.get(key, (-math.inf, None))
        return response if made_at >= since else None

    def _make(self, path: str, accept: str) -> Response:
        if (wait_s := self._due - self.clock()) > 0:
            self.sleep(wait_s)
        began, before = self.clock(), self.cpu()
        try:
            response = self.routes[path](accept)
        except Exception as error:  # noqa: BLE001 - one bad answer must not end the thread in silence
            self.on_error(f"{path}: {type(error).__name__}: {error}")
            response = text(500, "internal error; see the log")
        # The first one imports what renders: 0.1 s of CPU once, for which no client has to wait 10 s.
        if (path, accept) in self._made:
            self._due = self.clock() + (self.cpu() - before) * (1 / self.share - 1)
        self._made[path, accept] = began, response
        return response


#: Bytes of a request's whole head. A scraper sends 300.
MAX_HEAD = 8192
_END = re.compile(rb"\r?\n\r?\n")
#: Connections open at the same time. One scraper needs one; each costs 60 KB here and 130 KB of socket buffers at most.
MAX_CONNECTIONS = 64
#: The socket buffer of each connection (the kernel doubles it); left alone it grows to 4 MiB for a client that reads
#: nothing.
SEND_BUFFER = 64 << 10
#: Seconds until the head of a request is complete.
HEAD_S = 5.0
#: Seconds in which the client has to read the answer.
WRITE_S = 10.0
#: After an answer the server reads and drops data for so long (seconds), and so often, because closing with unread data
#: would reset the connection, and the client would not see the answer.
DRAIN_S, MOST_DRAINED = 1.0, 256
#: Connections that are accepted without a rest: the first costs four times as much as the others.
BATCH = 16
#: Pause after accept(2) failed for want of descriptors or memory, and how long a connection gets to end, seconds.
DEAF_S = 1.0
_WANT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
#: The line that refuses a client of another host.
_NOT_FOR_OTHERS = "only for this machine; outrace run --expose-metrics opens it to other hosts and pods"


def is_own(sock: socket.socket) -> bool:
    """Whether the client is on this machine: at a loopback address, or at the address it connected to, which the kernel
    gives a connection to an own address. (A packet from outside with such a source is a martian.)
    """
    if sock.family == socket.AF_UNIX:
        return True
    names = sock.getpeername(), sock.getsockname()
    peer, own = (str(name[0]).removeprefix("::ffff:") for name in names)
    return peer == own or peer == "::1" or peer.startswith("127.")


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server
    protocol_version = default_request_version = "HTTP/1.1"
    server_version, sys_version = "outrace", ""
    error_message_format, error_content_type = "%(message)s\n", "text/plain; charset=utf-8"
    rendered_s = 0.0  # CPU time that `Shared` paid for

    def log_message(self, *_: object) -> None:
        """Clients cause no lines."""

    def handle(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        try:
            self._serve()
        finally:
            self.server.budget.spend(self.server.cpu() - self.rendered_s)

    def _serve(self) -> None:
        """Raises OSError, of time too."""
        head = b""
        for data in self._received(HEAD_S):
            head += data
            if found := _END.search(head, 0, MAX_HEAD):
                break
            if len(head) >= MAX_HEAD:
                self.requestline = self.request_version = self.command = ""
                self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
                return self._drain()
        else:
            return None
        self.rfile = io.BytesIO(head[: found.end()])
        self.raw_requestline = self.rfile.readline()
        self.connection.settimeout(WRITE_S)
        if self.parse_request():
            if self.command in ("GET", "HEAD"):
                self._send(self._response())
            else:
                self.send_error(HTTPStatus.NOT_IMPLEMENTED)
        return self._drain()

    def _received(self, seconds: float) -> Iterator[bytes]:
        """What the client sends within that time. Raises OSError, of time too."""
        limit = time.monotonic() + seconds
        while True:
            self.connection.settimeout(max(limit - time.monotonic(), 1e-6))
            if not (data := self.connection.recv(MAX_HEAD)):
                return
            yield data

    def _drain(self) -> None:
        """End the connection so that the client reads what it was sent."""
        self.connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(TimeoutError):
            for _, _ in zip(range(MOST_DRAINED), self._received(DRAIN_S), strict=False):
                pass

    def _response(self) -> Response:
        server, path = self.server, self.path.partition("?")[0]
        shared = server.routes.get(path)
        if shared is None:
            return text(HTTPStatus.NOT_FOUND, f"not here; try {' '.join(server.routes)}")
        if shared.is_kept and not (server.exposed or is_own(self.connection)):
            return text(HTTPStatus.FORBIDDEN, _NOT_FOR_OTHERS)
        before = server.cpu()
        server.mark(self.connection, is_closable=False)
        response = shared.ask(path, self.headers.get("accept", ""))
        server.mark(self.connection, is_closable=True)
        if shared.is_kept:
            self.rendered_s = server.cpu() - before
        if response is None:
            server.refused += 1
            return text(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests wait")
        return response

    def _send(self, response: Response) -> None:
        self.send_response(HTTPStatus(response.status))
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)


class Server(ThreadingHTTPServer):
    """Serves on ``listener``, which it owns; ``on_error(message)`` is called when something failed that should not.

    Each path is answered by its `Shared`; those that are kept, unless ``exposed``, only to clients of this machine.
    ``share`` is `CLIENT_SHARE`. `refused` counts requests that were answered 503 because too many waited, and
    connections that were closed because all others waited; `cut` those closed for being slow, or to make room.
    """

    def __init__(
        self,
        listener: socket.socket,
        routes: Mapping[str, Shared],
        on_error: Callable[[str], None],
        exposed: bool = True,
        max_connections: int = MAX_CONNECTIONS,
        share: float = CLIENT_SHARE,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        BaseServer.__init__(self, listener.getsockname(), Handler)  # TCPServer would make a socket of its own
        self.socket, self.routes, self.on_error, self.exposed = listener, routes, on_error, exposed
        listener.setblocking(True)  # the helper before may have left it otherwise
        self.refused = self.cut = 0
        self.budget, self.cpu = Budget(share), cpu
        self._max_connections = max_connections
        self.open: set[socket.socket] = set()
        self._closable: dict[socket.socket, None] = {}  # of these, the oldest first: they wait for no answer of ours
        self._changed = threading.Condition()

    def start(self) -> None:
        """Serve from threads of its own until the process ends."""
        threading.Thread(target=self._run, name="http", daemon=True).start()

    def mark(self, sock: socket.socket, is_closable: bool) -> None:
        """Whether it may be closed for a new connection; it is the youngest of these then."""
        with self._changed:
            self._closable.pop(sock, None)
            if is_closable:
                self._closable[sock] = None

    def _run(self) -> None:
        paid_s = 0.0  # CPU time of this thread
        for number in count(1):
            self.handle_request()
            debt_s = self.budget.spend(self.cpu() - paid_s)
            if debt_s > 0 and number % BATCH == 0:
                time.sleep(debt_s)  # clients wait in the kernel, which is cheap
            paid_s = self.cpu()  # to wake up costs an emulated CPU more than a second of 1 % earns

    # called by `handle_request`, in this order; the last two by the thread of the connection

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _WANT and not self._make_room():
                self.on_error(f"accept: {error.strerror}")
                time.sleep(DEAF_S)
            raise

    def verify_request(self, _request: Any, _client_address: Any) -> bool:
        """Whether there is room for it."""
        found = len(self.open) < self._max_connections or self._make_room()
        self.refused += not found
        return found

    def process_request(self, request: Any, client_address: Any) -> None:
        self.open.add(request)
        self.mark(request, is_closable=True)
        super().process_request(request, client_address)

    def handle_error(self, _request: Any, _client_address: Any) -> None:
        error = sys.exception()
        if isinstance(error, TimeoutError):
            self.cut += 1
        elif not isinstance(error, OSError):  # the client closed the connection, as it may
            self.on_error(f"{type(error).__name__}: {error}")

    def close_request(self, request: Any) -> None:
        super().close_request(request)
        with self._changed:
            self.open.discard(request)
            self._closable.pop(request, None)
            self._changed.notify_all()

    def _make_room(self) -> bool:
        """Close the connection that has been idle for longest; False if all wait for an answer of ours."""
        with self._changed:
            oldest = next(iter(self._closable), None)
            if oldest is None:
                return False
            self._cut(oldest)
            return self._changed.wait_for(lambda: oldest not in self.open, DEAF_S)

    def _cut(self, sock: socket.socket) -> None:
        """Its thread sees at once that it has ended."""
        self.cut += 1
        del self._closable[sock]
        with contextlib.suppress(OSError):  # it has ended by itself
            sock.shutdown(socket.SHUT_RDWR)
