"""HTTP on an already bound socket: one thread that never waits for a client, and one for each route (`RouteWorker`).

It serves numbers to scrapers and probes. Clients that connect and send nothing, send it slowly, do not read answers
or ask for too much cost a bounded number of connections, bytes and seconds, and the oldest of them goes when a new one
comes: so a probe is answered beside any number of them.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from typing import Any

from monitor.side.export.connection import (
    ACCEPTS,
    DEAF_S,
    EXPENDABLE,
    MAX_CONNECTIONS,
    MAX_UNSENT,
    SEND_BUFFER,
    TIMEOUTS,
    Connection,
)
from monitor.side.export.http_head import MAX_HEAD, BadRequestError, head, parse
from monitor.side.export.route import MAX_WAITING, Response, Route, RouteWorker, text

__all__ = ["MAX_CONNECTIONS", "MAX_WAITING", "Response", "Route", "Server", "text"]


class Server:
    """Serves ``routes`` on ``listener``, which it owns; ``on_error(message)`` is called when a route failed.

    ``by_accept`` are the paths whose answer depends on the Accept header. `refused` counts requests that were answered
    503 because too many waited, `cut` the connections closed for being slow, or to make room.
    """

    def __init__(
        self,
        listener: socket.socket,
        routes: Mapping[str, Route],
        on_error: Callable[[str], None] = lambda _: None,
        by_accept: Collection[str] = (),
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._max_connections = max_connections
        self._workers = {
            path: RouteWorker(path, route, self._answered, on_error, path in by_accept)
            for path, route in routes.items()
        }
        self._on_error = on_error
        self.refused = 0
        self.cut = 0
        self._answers: deque[tuple[Connection, Response]] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._epoll.register(listener, select.EPOLLIN)
        self._deaf_until = 0.0
        self._open: dict[int, Connection] = {}
        # Every state has one time limit, so the oldest of a state is the first of its queue.
        self._queues: dict[str, OrderedDict[int, Connection]] = {state: OrderedDict() for state in (*TIMEOUTS, "wait")}
        self.unsent = 0  # bytes of answers that clients have not taken yet
        self._ending = False
        self._thread: threading.Thread | None = None

    def start(self) -> threading.Thread:
        """Serve from a thread of its own until the process ends, or until `close`."""
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()
        return self._thread

    def close(self) -> None:
        self._ending = True
        os.eventfd_write(self._wake_fd, 1)
        if self._thread is not None:
            self._thread.join()

    @property
    def waiting(self) -> int:
        return len(self._queues["wait"])

    @property
    def connections(self) -> int:
        return len(self._open)

    # the loop

    def _run(self) -> None:
        while not self._ending:
            for fd, _ in self._epoll.poll(self._timeout()):
                if fd == self._wake_fd:
                    self._pass_answers()
                elif fd == self._listener.fileno():
                    self._accept()
                elif (connection := self._open.get(fd)) is not None:
                    self._guarded(connection, self._turn, connection)
            self._expire(time.monotonic())
        for worker in self._workers.values():
            worker.close()
        for connection in list(self._open.values()):
            self._close(connection)
        self._epoll.close()
        self._listener.close()

    def _timeout(self) -> float | None:
        """Seconds until the next time limit; None (nothing is to be done until something comes) uses no CPU."""
        due = [self._deaf_until] if self._deaf_until else []
        for state, limit in TIMEOUTS.items():
            first = next(iter(self._queues[state].values()), None)
            if first is not None:
                due.append(first.since + limit)
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _expire(self, now: float) -> None:
        for state, limit in TIMEOUTS.items():
            queue = self._queues[state]
            while (first := next(iter(queue.values()), None)) is not None and first.since + limit <= now:
                self.cut += state != "drain"
                self._close(first)
        if self._deaf_until and self._deaf_until <= now:
            self._deaf_until = 0.0
            self._epoll.register(self._listener, select.EPOLLIN)

    def _turn(self, connection: Connection) -> None:
        """Something can be done on this connection, or it has ended."""
        if connection.state == "write":
            self._write(connection)
            self._serve(connection)
        elif connection.state == "wait":  # nothing is waited for but its end
            self._close(connection)
        else:
            self._read(connection)

    def _guarded(self, connection: Connection, step: Callable[..., None], *arguments: Any) -> None:
        """One connection's trouble is never that of the others."""
        try:
            step(*arguments)
        except OSError:
            self._close(connection)  # the client went away in the middle, which is its right
        except Exception as error:  # noqa: BLE001 - the thread is everybody's
            self._close(connection)
            self._on_error(f"{type(error).__name__}: {error}")

    # connections

    def _accept(self) -> None:
        for attempt in range(ACCEPTS):
            try:
                sock, _address = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue
            except OSError as error:  # no descriptors, no memory; accept(2) reports them even while nobody connects
                if attempt:
                    return
                if not self._make_room():
                    self._on_error(f"accept: {error.strerror}")
                    self._epoll.unregister(self._listener)
                    self._deaf_until = time.monotonic() + DEAF_S
                    return
                continue
            if len(self._open) >= self._max_connections and not self._make_room():
                self.refused += 1
                sock.close()
                continue
            self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._epoll.register(sock, 0)
        except OSError:  # it went away again, or the kernel has no memory for another one
            sock.close()
            return
        connection = Connection(sock)
        self._open[sock.fileno()] = connection
        self._enter(connection, "head")

    def _make_room(self) -> bool:
        """Close the connection that has been of least use for longest; False if all wait for an answer of ours."""
        oldest = [next(iter(self._queues[state].values()), None) for state in EXPENDABLE]
        found = min((one for one in oldest if one is not None), key=lambda one: one.since, default=None)
        if found is None:
            return False
        self.cut += 1
        self._close(found)
        return True

    def _enter(self, connection: Connection, state: str) -> None:
        fd = connection.sock.fileno()
        if connection.state:
            self._queues[connection.state].pop(fd, None)
        connection.state = state
        connection.since = time.monotonic()
        self._queues[state][fd] = connection
        self._epoll.modify(fd, {"write": select.EPOLLOUT, "wait": 0}.get(state, select.EPOLLIN))

    def _close(self, connection: Connection) -> None:
        if connection.closed:
            return
        connection.closed = True
        fd = connection.sock.fileno()
        self._queues[connection.state].pop(fd, None)
        del self._open[fd]
        self.unsent -= sum(map(len, connection.outbox))
        connection.outbox.clear()
        connection.sock.close()  # epoll forgets it

    # requests

    def _read(self, connection: Connection) -> None:
        try:
            data = connection.sock.recv(MAX_HEAD if connection.state == "drain" else MAX_HEAD - len(connection.inbox))
        except BlockingIOError:
            return
        if not data:
            self._close(connection)
        elif connection.state != "drain":
            connection.inbox += data
            if connection.state == "idle":
                self._enter(connection, "head")  # its time begins with its first byte and does not begin anew
            self._serve(connection)

    def _serve(self, connection: Connection) -> None:
        """Answer the requests that are complete, one after the other, as far as none of them has to wait."""
        while connection.state in ("head", "idle") and not connection.closed:
            try:
                request = parse(connection.inbox)
            except BadRequestError as bad:
                connection.request = None
                self._send(connection, text(bad.status, bad.status.phrase))
                return
            if request is None:
                return
            del connection.inbox[: request.size]
            connection.request = request
            worker = self._workers.get(request.path)
            if worker is None:
                self._send(connection, text(404, f"not here; try {' '.join(self._workers)}"))
            elif worker.ask(connection, request.accept):
                self._enter(connection, "wait")
            else:
                self.refused += 1
                self._send(connection, text(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests wait"), retry_s=1)

    # answers

    def _answered(self, connection: Connection, response: Response) -> None:
        """Called by the threads of the routes."""
        self._answers.append((connection, response))
        os.eventfd_write(self._wake_fd, 1)

    def _pass_answers(self) -> None:
        os.eventfd_read(self._wake_fd)
        while self._answers:
            connection, response = self._answers.popleft()
            if not connection.closed:
                self._guarded(connection, self._answer, connection, response)

    def _answer(self, connection: Connection, response: Response) -> None:
        self._send(connection, response)
        self._serve(connection)

    def _send(self, connection: Connection, response: Response, retry_s: int = 0) -> None:
        request = connection.request
        keep = request is not None and request.keep
        first = head(response.status, response.content_type, len(response.body), keep, retry_s)
        body = b"" if request is not None and request.method == "HEAD" else response.body
        connection.outbox = [memoryview(part) for part in (first, body) if part]
        self.unsent += len(first) + len(body)
        self._enter(connection, "write")
        self._write(connection)
        while self.unsent > MAX_UNSENT:
            self.cut += 1
            self._close(next(iter(self._queues["write"].values())))

    def _write(self, connection: Connection) -> None:
        outbox = connection.outbox
        while outbox:
            try:
                sent = connection.sock.sendmsg(outbox)
            except BlockingIOError:
                return
            self.unsent -= sent
            while outbox and sent >= len(outbox[0]):
                sent -= len(outbox.pop(0))
            if outbox:
                outbox[0] = outbox[0][sent:]
        if connection.request is None or not connection.request.keep:
            connection.sock.shutdown(socket.SHUT_WR)
            self._enter(connection, "drain")
            return
        self._enter(connection, "head" if connection.inbox else "idle")
