"""A TCP or TLS connection whose every wait ends: by data, by a deadline, by silence, or by a stop event.

`http.client` reads it through `makefile` and writes with `sendall`, as it does with a socket.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import queue
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from monitor.kube.errors import Cancelled, TimedOut
from monitor.kube.peer import Peer, check_peer

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_T = TypeVar("_T")

#: A stop event is noticed within this many seconds.
SLICE_S = 0.5
_BUFFER = 1 << 16
#: A peer that is gone without a word is noticed after 60 s of silence, and 10 s after something was sent to it.
_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000),
)


class Patience:
    """How long a call may wait: until ``deadline`` (monotonic), never more than ``silence_s`` for one byte, or until
    ``stop``.
    """

    def __init__(self, stop: threading.Event, total_s: float | None = None, silence_s: float | None = None) -> None:
        self._stop = stop
        self._total_s = total_s
        self._deadline = None if total_s is None else time.monotonic() + total_s
        self._silence_s = silence_s

    def within(self, total_s: float) -> Patience:
        """The same stop event and silence, with a deadline of its own that is not later than this one."""
        left = total_s if self._deadline is None else min(total_s, self._deadline - time.monotonic())
        return Patience(self._stop, left, self._silence_s)

    def wait(self, sock: socket.socket, events: int) -> None:
        """Until the socket is ready for ``events`` of poll(2). Raises Cancelled, TimedOut."""
        poll = select.poll()
        poll.register(sock, events)
        for left_s in self.slices():
            if poll.poll(1000 * left_s):
                return

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


class Stream:
    """An open connection. ``patience`` is set anew before each request; ``identity`` is what would make another one
    necessary: certificates, their files; ``used``: whether there was an answer on it.
    """

    def __init__(self, sock: socket.socket, patience: Patience) -> None:
        self._sock = sock
        self.patience = patience
        self.identity: object = None
        self.used = False

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._ready(self._sock.send, view[:_BUFFER], events=select.POLLOUT) :]

    def recv_into(self, buffer: WriteableBuffer) -> int:
        return self._ready(self._sock.recv_into, buffer)

    def makefile(self, mode: str = "rb", *_: object) -> io.BufferedReader:
        assert mode == "rb"
        return io.BufferedReader(_Raw(self), _BUFFER)

    def stale(self) -> bool:
        """Whether the server closed it, or sent bytes without a request, while it was idle.

        One byte is read: with TLS, readable may also be a session ticket, which comes after the handshake.
        """
        try:
            self._sock.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.close()

    def check_peer(self, peer: Peer) -> None:
        """Raises CertificateError where another one serves than may; before a byte is sent."""
        check_peer(self._sock, peer, self.patience.slices())

    def start_tls(self, context: ssl.SSLContext, server_name: str) -> bytes:
        """Shake hands; the certificate that the server showed, DER. Raises ssl.SSLError, OSError."""
        # Of a peer that has hung up already, wrap_socket leaks the socket (CPython 3.11: recv in SSLSocket._create).
        self._sock.getpeername()
        sock = context.wrap_socket(self._sock, server_hostname=server_name, do_handshake_on_connect=False)
        self._sock = sock
        self._ready(sock.do_handshake)
        return sock.getpeercert(binary_form=True) or b""

    def _ready(self, call: Callable[..., _T], *args: Any, events: int = select.POLLIN) -> _T:
        """The result of a call on the non-blocking socket, however often it has to wait."""
        while True:
            try:
                return call(*args)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                if isinstance(error, ssl.SSLError):  # TLS may have to read in order to write
                    events = select.POLLIN if isinstance(error, ssl.SSLWantReadError) else select.POLLOUT
            self.patience.wait(self._sock, events)


class _Raw(io.RawIOBase):
    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        return self._stream.recv_into(buffer)


def open_stream(host: str, port: int, patience: Patience) -> Stream:
    """A connection to the first address of ``host`` that takes one. Raises OSError, Cancelled, TimedOut."""
    error: OSError = OSError(errno.EADDRNOTAVAIL, f"{host} has no address")
    for family, kind, protocol, _, address in _addresses(host, port, patience):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            for level, option, value in _OPTIONS:
                sock.setsockopt(level, option, value)
            if sock.connect_ex(address) == errno.EINPROGRESS:
                patience.wait(sock, select.POLLOUT)
            if number := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(number, os.strerror(number))
            sock.getpeername()  # raises what connect_ex returned where that was no EINPROGRESS
        except OSError as failed:
            error = failed
            sock.close()
        except BaseException:
            sock.close()
            raise
        else:
            return Stream(sock, patience)
    raise error


def _addresses(host: str, port: int, patience: Patience) -> list[Any]:
    """What getaddrinfo says. It cannot be interrupted: a name is looked up in a thread that may be left behind."""
    with contextlib.suppress(socket.gaierror, UnicodeError):  # IDNA
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    answer: queue.SimpleQueue[list[Any] | OSError] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            answer.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            answer.put(error)
        except UnicodeError as error:
            answer.put(OSError(errno.EINVAL, f"{host}: {error}"))

    threading.Thread(target=look_up, name=f"resolve {host}", daemon=True).start()
    for left_s in patience.slices():
        with contextlib.suppress(queue.Empty):
            found = answer.get(timeout=left_s)
            if isinstance(found, OSError):
                raise found
            return found
    raise AssertionError("slices end by raising")
