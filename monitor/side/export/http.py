"""HTTP on an already bound socket: one thread that never waits for a client, one that renders what is kept
(`Copies`), and one for each probe (`RouteWorker`).

It serves numbers to scrapers and probes. Clients that connect and send nothing, send it slowly, do not read answers
or ask for too much cost a bounded number of connections, bytes and seconds, and the oldest connection is closed for a
new one: so a probe is answered beside any number of them. All requests together cost at most 2 % of a CPU: 1 % is
rendering (`RENDER_SHARE`), 1 % everything else (`CLIENT_SHARE`), because side and hot may share a CPU quota.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from monitor.side.export.http_head import (
    BATCH,
    CLOSABLE,
    DEAF_S,
    MAX_CONNECTIONS,
    MAX_HEAD,
    MAX_UNSENT,
    TIMEOUTS,
    BadRequestError,
    Connection,
    Request,
    head,
    parse,
)
from monitor.side.export.route import CLIENT_SHARE, Budget, Copies, Response, Route, RouteWorker, form, text

__all__ = ["MAX_CONNECTIONS", "Response", "Route", "Server", "text"]

#: The line that refuses a client of another host.
_NOT_FOR_OTHERS = "only for this machine; outrace run --expose-metrics opens it to other hosts and pods"


class Server:
    """Serves on ``listener``, which it owns; ``on_error(message)`` is called when a route failed.

    ``probes`` are answered anew, however busy the server is; ``copies`` from a copy (`Copies`) and, unless
    ``exposed``, only to clients of this machine. ``share`` is `CLIENT_SHARE`. `refused` counts requests that were
    answered 503 because too many waited or took too much CPU time, `cut` the connections closed for being slow, or to
    make room.
    """

    def __init__(
        self,
        listener: socket.socket,
        probes: Mapping[str, Route],
        on_error: Callable[[str], None] = lambda _: None,
        copies: Mapping[str, Route] | None = None,
        exposed: bool = True,
        max_connections: int = MAX_CONNECTIONS,
        share: float = CLIENT_SHARE,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._max_connections = max_connections
        self._exposed = exposed
        self._probes, self._copied = dict(probes), dict(copies or {})
        self._copies = Copies()
        self._workers = {
            path: RouteWorker(path, lambda key: self._probes[key[0]](key[1]), self._answered, on_error)
            for path in probes
        }
        renderer = RouteWorker(
            "render", lambda key: self._copies.render(key, self._copied[key[0]]), self._answered, on_error
        )
        self._workers |= dict.fromkeys(self._copied, renderer)
        self._budget = Budget(share, cpu=cpu, longest_s=DEAF_S)
        self._on_error = on_error
        self.refused = 0
        self.cut = 0
        self._answers: deque[tuple[Connection, Response, float]] = deque()
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
            for fd, _ in self._epoll.poll(self._timeout(), BATCH):
                if fd == self._wake_fd:
                    self._pass_answers()
                elif fd == self._listener.fileno():
                    self._accept()
                elif (connection := self._open.get(fd)) is not None:
                    self._guarded(connection, self._turn, connection)
            self._expire(time.monotonic())
            if (debt_s := self._budget.debt_s()) > 0 and not self._ending:
                time.sleep(debt_s)  # clients wait in the kernel, which is cheap
                self._budget.rested()
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
                if state == "busy":
                    self._guarded(first, self._answer_late, first)
                else:
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
        elif connection.state in ("wait", "busy"):  # nothing is waited for but its end
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
        for attempt in range(BATCH):
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
            connection = Connection(sock)
            self._epoll.register(sock, 0)
        except OSError:  # it went away again, or the kernel has no memory for another one
            sock.close()
            return
        self._open[sock.fileno()] = connection
        self._enter(connection, "head")

    def _make_room(self) -> bool:
        """Close the connection that has been of least use for longest; False if all wait for an answer of ours."""
        oldest = [next(iter(self._queues[state].values()), None) for state in CLOSABLE]
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
        self._epoll.modify(fd, {"write": select.EPOLLOUT, "wait": 0, "busy": 0}.get(state, select.EPOLLIN))

    def _close(self, connection: Connection) -> None:
        if connection.closed:
            return
        connection.closed = True
        fd = connection.sock.fileno()
        self._queues[connection.state].pop(fd, None)
        del self._open[fd]
        self.unsent -= connection.unsent
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
            self._answer_to(connection, request)

    def _answer_to(self, connection: Connection, request: Request) -> None:
        key = (request.path, form(request.accept) if request.path in self._copied else "")
        is_probe = request.path in self._probes
        if self._budget.debt_s() > 0:
            if not is_probe:
                self._enter(connection, "busy")
                return
            connection.request = request._replace(keep=False)  # another one has to wait for its connection
        if request.path not in self._workers:
            self._send(connection, text(404, f"not here; try {' '.join(self._workers)}"))
        elif not (is_probe or self._exposed or connection.is_own):
            self._send(connection, text(HTTPStatus.FORBIDDEN, _NOT_FOR_OTHERS))
        elif not is_probe and (kept := self._copies.fresh(key)) is not None:
            self._send(connection, kept)
        elif self._workers[request.path].ask(connection, key):
            self._enter(connection, "wait")
        else:
            self._refuse(connection)

    def _answer_late(self, connection: Connection) -> None:
        """Its request has waited for CPU time; there is some now, or it is refused."""
        assert connection.request is not None
        connection.request = connection.request._replace(keep=False)
        if self._budget.debt_s() > 0:
            self._refuse(connection)
        else:
            self._answer_to(connection, connection.request)

    def _refuse(self, connection: Connection) -> None:
        self.refused += 1
        self._send(connection, text(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests wait"), retry_s=1)

    # answers

    def _answered(self, connection: Connection, response: Response, cpu_s: float) -> None:
        """Called by the threads of the routes."""
        self._answers.append((connection, response, cpu_s))
        os.eventfd_write(self._wake_fd, 1)

    def _pass_answers(self) -> None:
        os.eventfd_read(self._wake_fd)
        while self._answers:
            connection, response, cpu_s = self._answers.popleft()
            if connection.request is None or connection.request.path not in self._copied:
                self._budget.spend(cpu_s)  # renderings have a budget of their own
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
        before = connection.unsent
        try:
            connection.write()
        finally:
            self.unsent -= before - connection.unsent
        if connection.outbox:
            return
        if connection.request is None or not connection.request.keep:
            connection.sock.shutdown(socket.SHUT_WR)
            self._enter(connection, "drain")
            return
        self._enter(connection, "head" if connection.inbox else "idle")
