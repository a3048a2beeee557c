"""HTTP requests over connections that are kept: one server, credentials that rotate, an error for all that goes wrong.

Every wait ends: by data, by a deadline, by silence, or by a stop event. A kept connection is looked at before it is
used: what the server closed meanwhile (an API server does after 90 s) costs a new connection, not a request. One that
breaks before a byte of the answer came is tried once more, anew, unless that could create something twice.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from monitor import __version__
from monitor.documents import one_line
from monitor.kube.cluster import ClusterConfig, Stamps
from monitor.kube.errors import (
    ApiError,
    Cancelled,
    CertificateError,
    ResponseTooLarge,
    TimedOut,
    TransportError,
    api_error,
)

_T = TypeVar("_T")

#: Seconds for a request, to the last byte of its answer. The API server itself gives up after 60.
TIMEOUT_S = 10.0
#: A stop event is noticed within this many seconds.
SLICE_S = 0.5
#: Idle connections that are kept: two threads send requests now and then, watches have their own.
_KEPT = 2
_CHUNK = 1 << 16
_MAX_ERROR = 64 << 10


class Patience:
    """How long a call may wait: ``total_s`` from now, never more than ``silence_s`` for one byte, or until ``stop``."""

    def __init__(self, stop: threading.Event, total_s: float | None = None, silence_s: float | None = None) -> None:
        self._stop = stop
        self._total_s = total_s
        self._deadline = None if total_s is None else time.monotonic() + total_s
        self._silence_s = silence_s

    def within(self, total_s: float) -> Patience:
        """The same stop event and silence, with a deadline of its own that is not later than this one."""
        left = total_s if self._deadline is None else min(total_s, self._deadline - time.monotonic())
        return Patience(self._stop, left, self._silence_s)

    def slices(self) -> Iterator[float]:
        """Seconds to wait, again and again. Raises Cancelled, TimedOut when that is over."""
        began = time.monotonic()
        while True:
            if self._stop.is_set():
                raise Cancelled("stopped while waiting for an answer")
            now, left_s = time.monotonic(), SLICE_S
            if self._deadline is not None:
                if now >= self._deadline:
                    raise TimedOut(f"no complete answer within {self._total_s:.3g} s")
                left_s = min(left_s, self._deadline - now)
            if self._silence_s is not None:
                if now >= began + self._silence_s:
                    raise TimedOut(f"nothing came for {self._silence_s:.3g} s")
                left_s = min(left_s, began + self._silence_s - now)
            yield left_s


class Plain(socket.socket):
    """A socket for `http.client`, whose waits are those of ``patience``."""

    patience: Patience

    def recv_into(self, *args: Any) -> int:
        return self.waited(super().recv_into, *args)

    def sendall(self, data: Any, *_: Any) -> None:
        view = memoryview(data)
        while view:
            view = view[self.waited(super().send, view[:_CHUNK]) :]

    def waited(self, call: Callable[..., _T], *args: Any) -> _T:
        """The result of a call on the socket, which is continued after each slice of waiting."""
        for left_s in self.patience.slices():
            self.settimeout(left_s)
            try:
                return call(*args)
            except TimeoutError as error:
                if error.errno is not None:  # ETIMEDOUT: the kernel has given the connection up
                    raise
        raise AssertionError("slices end by raising")

    def stale(self) -> bool:
        """Whether the server closed it, or sent bytes without a request, while it was idle.

        One byte is read: with TLS, readable may also be a session ticket, which comes after the handshake.
        """
        try:
            self.settimeout(0.0)
            self.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True
        return True


class Tls(Plain, ssl.SSLSocket):
    """The same with TLS."""


def connect(host: str, port: int, patience: Patience, timeout_s: float) -> Plain:
    """A connection to the first address of ``host`` that takes one. Raises OSError, UnicodeError, Cancelled, TimedOut.

    A thread makes it, because looking up a name cannot be interrupted. One that is left behind ends after ``timeout_s``
    for each address.
    """
    made: Future[socket.socket] = Future()

    def run() -> None:
        try:
            made.set_result(socket.create_connection((host, port), timeout_s))
        except (OSError, UnicodeError) as error:  # UnicodeError: IDNA
            made.set_exception(error)

    try:
        threading.Thread(target=run, name=f"connect {host}", daemon=True).start()
    except RuntimeError:  # no thread can be started: a pod makes processes without end, say
        run()
    try:
        for left_s in patience.slices():
            if wait([made], left_s).done:
                break
    except (Cancelled, TimedOut):
        made.add_done_callback(_close)
        raise
    sock = Plain(fileno=made.result().detach())
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.patience = patience
    return sock


def _close(late: Future[socket.socket]) -> None:
    if late.exception() is None:
        late.result().close()


def shake_hands(sock: Plain, context: ssl.SSLContext, server_name: str) -> Tls:
    """With TLS. Raises ssl.SSLError, OSError."""
    # Of a peer that has hung up already, wrap_socket leaks the socket (CPython 3.11: recv in SSLSocket._create).
    sock.getpeername()
    context.sslsocket_class = Tls
    made = context.wrap_socket(sock, server_hostname=server_name, do_handshake_on_connect=False)
    assert isinstance(made, Tls)
    made.patience = sock.patience
    try:
        made.waited(made.do_handshake)
    except BaseException:
        made.close()
        raise
    return made


class Answer(http.client.HTTPResponse):
    """An answer whose body has not been read yet. ``address``: of its server; ``complete``: it was read to its end."""

    address = ""
    complete = False

    def chunks(self) -> Iterator[bytes]:
        """The body as it comes in. Raises TransportError where it is cut off."""
        while True:
            try:
                # read1 does not say that bytes are missing at the end, where their number was announced.
                left = None if self.chunked else self.length
                data = b"" if left == 0 else self.read1(min(_CHUNK, left or _CHUNK))
            except (OSError, http.client.HTTPException, TimedOut) as error:
                raise failure(self.address, error) from error
            if not data:
                if left:
                    raise TransportError(f"{self.address}: the answer was cut off: {left} bytes are missing")
                self.complete = True
                self.close()
                return
            yield data

    def all(self, max_bytes: int) -> bytes:
        """The whole body. Raises ResponseTooLarge, TransportError."""
        data = bytearray()
        for chunk in self.chunks():
            data += chunk
            if len(data) > max_bytes:
                raise ResponseTooLarge(f"{self.address}: an answer of more than {max_bytes} bytes")
        return bytes(data)


class Connection(http.client.HTTPConnection):
    """An open one. ``used``: whether there was an answer on it; ``stamps``: of the files that its TLS was made of."""

    response_class = Answer
    auto_open = 0
    used = False

    def __init__(self, host: str, port: int, sock: Plain, stamps: Stamps) -> None:
        super().__init__(host, port)
        self.sock = self.waiting = sock
        self.stamps = stamps


class Transport:
    """Connections to one server; every method may be called from any thread, and ``stop`` ends it within 0.5 s.

    ``timeout_s``: of a request that has no time of its own; ``connect_s`` of it for a new connection.
    """

    def __init__(
        self,
        config: ClusterConfig,
        stop: threading.Event | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        connect_s: float = 5.0,
    ) -> None:
        self.config = config
        self.stop = stop or threading.Event()
        self.address = str(config.server)
        self._timeout_s, self._connect_s = timeout_s, connect_s
        self._idle: queue.LifoQueue[Connection] = queue.LifoQueue(_KEPT)
        self._context: tuple[Stamps, ssl.SSLContext] | None = None

    @contextlib.contextmanager
    def ask(
        self,
        method: str,
        target: str,
        what: str,
        rule: str = "",
        total_s: float | None = None,
        silence_s: float | None = None,
        *,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> Iterator[Answer]:
        """Send a request; its answer, for the time of the ``with`` block. ``what`` is what it does, for errors.
        ``target`` is path and query, encoded.

        ``total_s`` bounds it to the last byte of the answer. With ``silence_s`` that bounds the wait for each byte, and
        the status has the usual time. At a 401 credentials are read again, and if they changed the request is sent once
        more. ``rule`` is the right that the error of a 403 names. Raises ApiError for all but 2xx, every other
        KubeError, ConfigError.
        """
        headers = {"User-Agent": f"outrace/{__version__}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type
        request = method, self.config.server.prefix + target, body, headers
        usual_s, total_s = self._timeout_s, total_s or self._timeout_s
        patience = Patience(self.stop, total_s if silence_s is None else usual_s, silence_s)
        token = self.config.credentials.current()
        made, answer = self._send(request, token, patience)
        try:
            if answer.status == 401 and (again := self.config.credentials.refresh()) != token:
                made.close()
                answer.close()
                made, answer = self._send(request, again, patience)
            if silence_s is not None:
                made.waiting.patience = Patience(self.stop, total_s, silence_s)
            if not 200 <= answer.status < 300:
                raise refusal(answer, what, rule)
            yield answer
        finally:
            answer.close()
            self._keep(made, answer.complete)

    def close(self) -> None:
        while (one := self._taken()) is not None:
            one.close()

    def _taken(self) -> Connection | None:
        with contextlib.suppress(queue.Empty):
            return self._idle.get_nowait()
        return None

    def _send(
        self, request: tuple[str, str, bytes | None, dict[str, str]], token: str, patience: Patience
    ) -> tuple[Connection, Answer]:
        """Send, and read the head of the answer. Raises TransportError, Cancelled."""
        method, target, body, headers = request
        if token:
            headers = {**headers, "Authorization": f"{self.config.credentials.scheme} {token}"}
        while True:
            made = self._take(patience)
            sent = False
            try:
                made.waiting.patience = patience
                made.request(method, target, body, headers)
                sent = True
                answer = made.getresponse()
            except (OSError, http.client.HTTPException, TimedOut) as error:
                made.close()
                # OSError: not one byte came back. (RemoteDisconnected is a ConnectionResetError and a BadStatusLine.)
                if not (made.used and isinstance(error, OSError)) or (sent and method == "POST"):
                    raise failure(self.address, error) from error
                self.close()  # the server was restarted: the others are dead as well
            except BaseException:
                made.close()
                raise
            else:
                assert isinstance(answer, Answer)
                made.used, answer.address = True, self.address
                return made, answer

    def _take(self, patience: Patience) -> Connection:
        """A connection that is idle and good, or a new one, as after the rotation of a file."""
        stamps = self.config.tls.stamps()
        while (made := self._taken()) is not None:
            if made.stamps == stamps and not made.waiting.stale():
                return made
            made.close()
        return self._open(stamps, patience.within(self._connect_s))

    def _keep(self, made: Connection, complete: bool) -> None:
        # A connection that is to be closed has no socket any more.
        if complete and made.sock is not None and not self.stop.is_set():
            with contextlib.suppress(queue.Full):
                self._idle.put_nowait(made)
                return
        made.close()

    def _open(self, stamps: Stamps, patience: Patience) -> Connection:
        server, tls = self.config.server, self.config.tls
        sock: Plain | None = None
        try:
            sock = connect(server.host, server.port, patience, self._connect_s)
            if server.https:
                made = self._context
                if made is None or made[0] != stamps:  # or a file was rotated: 1 ms, and 20 with the system's CAs
                    made = self._context = (stamps, tls.context())
                sock = shake_hands(sock, made[1], tls.server_name or server.host)
                tls.check_pinned(sock.getpeercert(binary_form=True) or b"", self.address)
        except BaseException as error:
            if sock is not None:
                sock.close()
            if isinstance(error, OSError | UnicodeError | TimedOut):
                raise failure(self.address, error) from error
            raise
        return Connection(server.host, server.port, sock, stamps)


def refusal(answer: Answer, what: str, rule: str) -> ApiError:
    """The error of an answer that is no 2xx, with what helps."""
    try:
        body = answer.all(_MAX_ERROR)
    except (TransportError, ResponseTooLarge):
        body = b""  # the status says enough
    text = body.decode(errors="replace")
    try:
        status = json.loads(text)
    except (ValueError, RecursionError):
        status = None
    after = answer.headers.get("Retry-After", "")
    seconds = float(after) if after.isascii() and after.isdigit() and len(after) < 7 else None
    remedy = ""
    if answer.status == 401:
        remedy = "give a token or client certificate that is valid"
    elif answer.status == 403 and rule and (" cannot " in text or "verb=" in text):
        # What RBAC says, and the kubelet; quotas and admission say otherwise.
        remedy = f"add to the Role or ClusterRole: {rule}"
    elif 300 <= answer.status < 400:
        remedy = "redirects are not followed: name the address it points to"
    return api_error(what, answer.status, status, remedy=remedy, retry_after_s=seconds, text=text)


def failure(address: str, error: Exception) -> TransportError:
    """A TransportError of what a socket, TLS or http.client raised."""
    if isinstance(error, TimedOut | TimeoutError):
        return TimedOut(f"{address}: {error}")
    if isinstance(error, ssl.SSLCertVerificationError):
        return CertificateError(
            f"{address}: the server's certificate is not trusted: {error.verify_message}",
            "give the CA that signed it, or the name that is in it",
        )
    if isinstance(error, http.client.IncompleteRead):
        return TransportError(f"{address}: the answer was cut off")
    why = getattr(error, "strerror", None) or one_line(error)
    return TransportError(f"{address}: {why}")
