"""A threaded HTTP(S) server whose answers may be as bad as real ones: the base of the fake API server and kubelet."""

import contextlib
import http.server
import json
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.kube.fake_store import Refused
from tests.ports import reserved


@dataclass
class Asked:
    """A request."""

    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: bytes = b""
    connection: int = 0  # the how many-th connection of the server it came on
    client_name: str = ""  # of its certificate

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def watching(self) -> bool:
        return self.query.get("watch") == "true"


class Reply:
    """What a handler answers with."""

    def __init__(self, handler: "_Handler") -> None:
        self._handler = handler
        self.server = handler.server

    def json(self, code: int, made: object, headers: Mapping[str, str] | None = None) -> None:
        self.body(code, json.dumps(made).encode(), headers)

    def body(self, code: int, data: bytes, headers: Mapping[str, str] | None = None, length: int | None = None) -> None:
        """``length``: what is announced, where that is not the truth."""
        self.head(code, {"Content-Length": str(len(data) if length is None else length), **(headers or {})})
        self.raw(data)

    def status(self, code: int, reason: str, message: str, details: object = None, **headers: str) -> None:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        self.json(code, status_object(code, reason, message, details), names)

    def head(self, code: int, headers: Mapping[str, str]) -> None:
        handler = self._handler
        handler.send_response_only(code)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()

    def chunked(self, code: int = 200) -> None:
        self.head(code, {"Transfer-Encoding": "chunked"})

    def chunk(self, data: bytes) -> None:
        """The last one is empty."""
        self.raw(b"%x\r\n%s\r\n" % (len(data), data))

    def raw(self, data: bytes) -> None:
        self._handler.wfile.write(data)
        self._handler.wfile.flush()

    def cut(self, how: int = socket.SHUT_RDWR) -> None:
        """End the connection now; SHUT_WR: half of it."""
        self._handler.close_connection = True
        with contextlib.suppress(OSError):
            self._handler.connection.shutdown(how)

    def wait(self, seconds: float) -> bool:
        """Sleep; True when the server ends meanwhile."""
        return self.server.fake.ended.wait(seconds)


def status_object(code: int, reason: str, message: str, details: object = None) -> dict[str, Any]:
    made = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    return {**made, "reason": reason, "code": code} | ({"details": details} if details else {})


@dataclass
class Fault:
    """Answers ``times`` requests that match instead of the server. ``do`` returns False to let it answer after all."""

    do: Callable[[Asked, Reply], object]
    times: int = 1
    method: str = ""
    path: str = ""  # a part of it
    watching: bool | None = None
    met: int = field(default=0, init=False)

    def takes(self, asked: Asked) -> bool:
        fits = self.method in ("", asked.method) and self.path in asked.path
        return fits and self.met < self.times and self.watching in (None, asked.watching)


class FakeServer:
    """Begins to listen at once, on a port that it keeps. ``tokens``: those that may ask; None: all."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.context = context
        self.port = reserved(self)
        self.tokens: set[str] | None = None
        self.faults: list[Fault] = []
        self.asked: list[Asked] = []
        self.connections = 0
        self.ended = threading.Event()
        self._open: dict[socket.socket, int] = {}
        self._lock = threading.Lock()
        self._http: _Http | None = None
        self.listen()

    @property
    def url(self) -> str:
        return f"{'https' if self.context else 'http'}://127.0.0.1:{self.port}"

    def listen(self) -> None:
        """Listen (again): on the port it had."""
        self.ended = threading.Event()
        self._http = _Http(self)
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def refuse(self) -> None:
        """Close all connections and refuse new ones until `listen`."""
        self.ended.set()
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http = None
        self.drop_connections()

    close = refuse

    def drop_connections(self) -> None:
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def fail(self, do: Callable[[Asked, Reply], object], times: int = 1, **match: Any) -> Fault:
        self.faults.append(Fault(do, times, **match))
        return self.faults[-1]

    def seen(self, method: str = "", path: str = "") -> list[Asked]:
        """The requests of a method with a part in their path."""
        return [one for one in list(self.asked) if method in ("", one.method) and path in one.path]

    def answer(self, asked: Asked, reply: Reply) -> None:
        """Raises Refused."""
        raise NotImplementedError

    def begin(self, asked: Asked, reply: Reply) -> None:
        with self._lock:
            self.asked.append(asked)
            fault = next((one for one in self.faults if one.takes(asked)), None)
            if fault is not None:
                fault.met += 1
        if fault is not None and fault.do(asked, reply) is not False:
            return
        bearer = asked.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.tokens is not None and bearer not in self.tokens and not asked.client_name:
            reply.status(401, "Unauthorized", "Unauthorized")
            return
        try:
            self.answer(asked, reply)
        except Refused as refused:
            reply.status(*refused.args)

    def opened(self, sock: socket.socket) -> None:
        """Before its thread begins: `refuse` leaves none behind."""
        with self._lock:
            self.connections += 1
            self._open[sock] = self.connections

    def number(self, sock: socket.socket) -> int:
        with self._lock:
            return self._open[sock]

    def closed(self, sock: socket.socket) -> None:
        with self._lock:
            self._open.pop(sock, None)


class _Http(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, fake: FakeServer) -> None:
        self.fake = fake
        super().__init__(("127.0.0.1", fake.port), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        sock, address = super().get_request()
        try:
            sock.getpeername()  # wrap_socket leaks the socket of a client that has hung up (CPython 3.11)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.fake.context is not None:  # shakes hands in the connection's thread
                sock = self.fake.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except OSError:
            sock.close()
            raise
        self.fake.opened(sock)
        return sock, address

    def handle_error(self, *_: object) -> None:
        pass  # a client that hangs up or does not trust us is what is tested


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.number = self.server.fake.number(self.connection)

    def finish(self) -> None:
        self.server.fake.closed(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, *_: object) -> None:
        pass

    def _go(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        query = dict(parse_qsl(parts.query))
        asked = Asked(
            self.command, unquote(parts.path), query, dict(self.headers), body, self.number, self._client_name()
        )
        with contextlib.suppress(OSError):
            self.server.fake.begin(asked, Reply(self))

    def _client_name(self) -> str:
        shown = self.connection.getpeercert() if isinstance(self.connection, ssl.SSLSocket) else None
        return next(
            (value for rdn in (shown or {}).get("subject", ()) for key, value in rdn if key == "commonName"), ""
        )

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _go
