"""HTTP requests over connections that are kept: one server, credentials that rotate, an error for all that goes wrong.

A kept connection is looked at before it is used: what the server closed meanwhile (an API server does after 90 s) costs
a new connection, not a request. One that breaks before a byte of the answer came is tried once more, anew, unless that
could create something twice.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from monitor import __version__
from monitor.documents import one_line
from monitor.kube.auth import Credential
from monitor.kube.cluster import ClusterConfig
from monitor.kube.errors import ApiError, CertificateError, ResponseTooLarge, TimedOut, TransportError, api_error
from monitor.kube.stream import Patience, Stream, open_stream
from monitor.kube.tls import Pem, Stamp

#: Idle connections that are kept: two threads send requests now and then, watches have their own.
_KEPT = 2
_CHUNK = 1 << 16
_MAX_ERROR = 64 << 10


@dataclass(frozen=True)
class Request:
    """``target`` is path and query, encoded. ``body`` is JSON of the type ``content_type``. ``on_sent`` is called when
    the kernel has all of it, each time that it is sent.
    """

    method: str
    target: str
    body: bytes | None = None
    content_type: str = "application/json"
    on_sent: Callable[[], object] | None = None

    def encoded(self, host: str, token: str) -> bytes:
        """Head and body, for one write: a patch is then one TLS record."""
        lines = [
            f"{self.method} {self.target} HTTP/1.1",
            f"Host: {host}",
            f"User-Agent: outrace/{__version__}",
            "Accept: application/json",
            "Accept-Encoding: identity",
        ]
        if token:
            lines.append(f"Authorization: Bearer {token}")
        if self.body is not None:
            lines += [f"Content-Type: {self.content_type}", f"Content-Length: {len(self.body)}"]
        return "\r\n".join([*lines, "", ""]).encode("ascii") + (self.body or b"")


class Answer:
    """An answer whose body has not been read yet."""

    def __init__(self, response: http.client.HTTPResponse, address: str) -> None:
        self._response = response
        self._address = address
        self.status = response.status

    def header(self, name: str) -> str:
        return self._response.getheader(name) or ""

    @property
    def reusable(self) -> bool:
        """Whether it was read to its end, and the connection stays."""
        done = self._response.length == 0 or (self._response.chunked and self._response.isclosed())
        return bool(done) and not self._response.will_close

    def chunks(self) -> Iterator[bytes]:
        """The body as it comes in. Raises TransportError where it is cut off."""
        response = self._response
        while True:
            try:
                # read1 does not say that bytes are missing at the end, where their number was announced.
                left = None if response.chunked else response.length
                data = b"" if left == 0 else response.read1(min(_CHUNK, left or _CHUNK))
            except (OSError, http.client.HTTPException, TimedOut) as error:
                raise failure(self._address, error) from error
            if not data:
                if left:
                    raise TransportError(f"{self._address}: the answer was cut off: {left} bytes are missing")
                return
            yield data

    def read(self, max_bytes: int) -> bytes:
        """The whole body. Raises ResponseTooLarge, TransportError."""
        data = bytearray()
        for chunk in self.chunks():
            data += chunk
            if len(data) > max_bytes:
                raise ResponseTooLarge(f"{self._address}: an answer of more than {max_bytes} bytes")
        return bytes(data)


class Transport:
    """Connections to one server; every method may be called from any thread."""

    def __init__(self, config: ClusterConfig, stop: threading.Event, connect_s: float = 5.0) -> None:
        self.config = config
        self.stop = stop
        self.address = str(config.server)
        self._connect_s = connect_s
        self._lock = threading.Lock()
        self._idle: list[Stream] = []
        self._context: tuple[object, ssl.SSLContext] | None = None

    @contextlib.contextmanager
    def ask(
        self,
        request: Request,
        what: str,
        rule: str = "",
        total_s: float | None = None,
        silence_s: float | None = None,
        head_s: float | None = None,
    ) -> Iterator[Answer]:
        """Send a request; its answer, for the time of the ``with`` block. ``what`` is what it does, for errors.

        ``total_s`` bounds it to the last byte of the answer, ``silence_s`` the wait for each byte, ``head_s`` that for
        the status. At a 401 credentials are read again, and if they changed the request is sent once more. ``rule`` is
        the right that the error of a 403 names. Raises ApiError for all but 2xx, every other KubeError, ConfigError.
        """
        patience = Patience(self.stop, head_s or total_s, silence_s)
        credential = self.config.credentials.current()
        stream, answer = self._send(request, credential, patience)
        try:
            if answer.status == 401 and (again := self.config.credentials.refresh()) != credential:
                stream.close()
                stream, answer = self._send(request, again, patience)
            if head_s is not None:
                stream.patience = Patience(self.stop, total_s, silence_s)
            if not 200 <= answer.status < 300:
                raise refusal(answer, what, rule)
            yield answer
        finally:
            if answer.reusable:
                self._keep(stream)
            else:
                stream.close()

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for stream in idle:
            stream.close()

    def _send(self, request: Request, credential: Credential, patience: Patience) -> tuple[Stream, Answer]:
        """Send, and read the head of the answer. Raises TransportError, Cancelled."""
        server = self.config.server
        host = f"[{server.host}]" if ":" in server.host else server.host
        encoded = request.encoded(f"{host}:{server.port}", credential.token)
        while True:
            stream = self._take(credential, patience)
            sent = False
            try:
                stream.patience = patience
                stream.sendall(encoded)
                sent = True
                if request.on_sent is not None:
                    request.on_sent()
                response = http.client.HTTPResponse(stream, method=request.method)  # type: ignore[arg-type]
                response.begin()
            except (OSError, http.client.HTTPException, TimedOut) as error:
                stream.close()
                # OSError: not one byte came back. (RemoteDisconnected is a ConnectionResetError and a BadStatusLine.)
                unanswered = isinstance(error, OSError)
                if not (stream.used and unanswered) or (sent and request.method == "POST"):
                    raise failure(self.address, error) from error
                self.close()  # the server was restarted: the others are dead as well
            except BaseException:
                stream.close()
                raise
            else:
                stream.used = True
                return stream, Answer(response, self.address)

    def _take(self, credential: Credential, patience: Patience) -> Stream:
        """A connection that is idle and good, or a new one."""
        identity = (credential.certificate, self.config.tls.stamps())
        while True:
            with self._lock:
                stream = self._idle.pop() if self._idle else None
            if stream is None:
                return self._open(identity, patience)
            if stream.identity == identity and not stream.stale():
                return stream
            stream.close()

    def _keep(self, stream: Stream) -> None:
        with self._lock:
            if len(self._idle) < _KEPT and not self.stop.is_set():
                self._idle.append(stream)
                return
        stream.close()

    def _open(self, identity: tuple[tuple[Pem, Pem] | None, tuple[Stamp | None, ...]], patience: Patience) -> Stream:
        server, tls = self.config.server, self.config.tls
        patience = patience.within(self._connect_s)
        stream: Stream | None = None
        try:
            stream = open_stream(server.host, server.port, patience)
            stream.check_peer(self.config.peer)
            if server.https:
                shown = stream.start_tls(self._context_for(identity), tls.server_name or server.host)
                tls.check_pinned(shown, self.address)
        except BaseException as error:
            if stream is not None:
                stream.close()
            if isinstance(error, OSError | TimedOut):
                raise failure(self.address, error) from error
            raise
        stream.identity = identity
        return stream

    def _context_for(self, identity: tuple[tuple[Pem, Pem] | None, tuple[Stamp | None, ...]]) -> ssl.SSLContext:
        """Made anew when a file was rotated: it takes 1 ms, and 20 with the system's CAs."""
        with self._lock:
            if self._context is None or self._context[0] != identity:
                self._context = (identity, self.config.tls.context(identity[0]))
            return self._context[1]


def refusal(answer: Answer, what: str, rule: str) -> ApiError:
    """The error of an answer that is no 2xx, with what helps."""
    try:
        body = answer.read(_MAX_ERROR)
    except (TransportError, ResponseTooLarge):
        body = b""  # the status says enough
    text = body.decode(errors="replace")
    try:
        status = json.loads(text)
    except (ValueError, RecursionError):
        status = None
    after = answer.header("Retry-After")
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
    if isinstance(error, TimedOut):
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
