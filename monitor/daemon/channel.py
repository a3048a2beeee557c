"""The socket between the hot process and the side: one JSON object per packet (see docs/architecture.md for the types).

The hot end never waits: a message that does not fit is dropped and the caller told, so it can be counted. The side's
end may block, because the side may.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

#: A packet larger than this is refused by the sender (a pod with containers is ~600 bytes; a `state` ~3 KB).
MAX_PACKET = 128 * 1024
_BUFFER = 4 * 1024 * 1024


def pair() -> tuple[socket.socket, socket.socket]:
    """A connected pair: (hot end, non-blocking; side end, blocking)."""
    hot, side = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    hot.setblocking(False)
    for end in (hot, side):
        # SO_SNDBUFFORCE needs CAP_NET_ADMIN; where it is missing the ordinary limit (net.core.wmem_max) applies.
        try:
            end.setsockopt(socket.SOL_SOCKET, 32, _BUFFER)  # SO_SNDBUFFORCE
        except OSError:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    return hot, side


def send(sock: socket.socket, message: dict[str, Any]) -> bool:
    """Send one message; False if the other end is full or gone (the message is lost, nothing waited)."""
    try:
        sock.send(json.dumps(message, separators=(",", ":")).encode())
    except (BlockingIOError, BrokenPipeError, ConnectionError, OSError):
        return False
    return True


def receive(sock: socket.socket) -> dict[str, Any] | None:
    """Wait for one message (if the socket blocks); None when the other end is closed."""
    data = sock.recv(MAX_PACKET)
    if not data:
        return None
    message: dict[str, Any] = json.loads(data)
    return message


def drain(sock: socket.socket, limit: int = 64) -> Iterator[dict[str, Any] | None]:
    """Up to ``limit`` waiting messages of a non-blocking socket; yields None once if the other end closed."""
    for _ in range(limit):
        try:
            data = sock.recv(MAX_PACKET)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            yield None
            return
        yield json.loads(data)
