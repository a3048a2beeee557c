"""HTTP on an already bound socket: one thread per connection, a bounded number of them, each with a time limit.

It serves numbers to scrapers. A client that hangs costs a slot, never the main loop; when all slots are taken, new
connections are answered 503 at once and the oldest stale connection is cut, so sixteen dead clients cannot lock out the
seventeenth.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

#: Connections served at the same time; one scraper needs one.
MAX_CONNECTIONS = 16
#: Seconds one read or write of a connection may take.
IO_TIMEOUT_S = 5.0
#: A connection older than this many seconds may be cut to make room.
STALE_S = 10.0

_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"


class Response(NamedTuple):
    """What a route answers."""

    status: int
    content_type: str
    body: bytes


#: A route gets the Accept header ("" if there is none).
Route = Callable[[str], Response]


def text(status: int, body: str) -> Response:
    """A plain text answer; a newline is added."""
    return Response(status, "text/plain; charset=utf-8", body.encode() + b"\n")


class Server(ThreadingHTTPServer):
    """Serves ``routes`` on ``listener``; ``on_error(message)`` hears of a route that failed."""

    daemon_threads = True

    def __init__(
        self, listener: socket.socket, routes: Mapping[str, Route], on_error: Callable[[str], None] = lambda _: None
    ) -> None:
        # Not HTTPServer.server_bind: it is bound already, and that method asks DNS for the host's name.
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_name, self.server_port = listener.getsockname()[:2]
        self.routes = routes
        self.on_error = on_error
        self.refused = 0
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, float] = {}  # connection -> when it was accepted (monotonic seconds)

    def start(self, poll_s: float = 3600.0) -> threading.Thread:
        """Serve from a thread of its own until the process ends, or until ``shutdown()``, heard within ``poll_s``."""
        # No poll interval worth speaking of: waking twice a second for nothing would be most of an idle side's CPU
        # time.
        thread = threading.Thread(target=self.serve_forever, args=(poll_s,), name="http", daemon=True)
        thread.start()
        return thread

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.refused += 1
            self._cut_oldest()
            request.setblocking(False)
            with contextlib.suppress(OSError):  # the client that cannot even take the refusal gets a closed connection
                request.send(_BUSY)
            self.shutdown_request(request)
            return
        with self._lock:
            self._open[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except RuntimeError as error:  # no thread can be started
            self._release(request)
            self.on_error(f"http: {error}")
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._release(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client went away in the middle, which is its right: socketserver would print a traceback."""

    def _release(self, request: socket.socket) -> None:
        with self._lock:
            self._open.pop(request, None)
        self._slots.release()

    def _cut_oldest(self) -> None:
        with self._lock:
            if not self._open:
                return
            oldest, accepted = min(self._open.items(), key=lambda item: item[1])
            if time.monotonic() - accepted > STALE_S:
                with contextlib.suppress(OSError):  # it just closed by itself
                    oldest.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "outrace"
    sys_version = ""
    timeout = IO_TIMEOUT_S
    wbufsize = -1  # one packet for head and body
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        route = self.server.routes.get(urlsplit(self.path).path)
        if route is None:
            response = text(404, f"not here; try {' '.join(self.server.routes)}")
        else:
            try:
                response = route(self.headers.get("Accept", ""))
            except Exception as error:  # noqa: BLE001 - one bad answer must not end the connection's thread in silence
                self.server.on_error(f"{self.path}: {type(error).__name__}: {error}")
                response = text(500, "internal error; see the log")
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        # A GET with a body: nobody reads it here, so what follows on the connection could not be told from a request.
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has there
        """Scrapes are not news."""
