"""The socket between the hot process and the side: one message (`monitor.link.messages`) per packet.

A packet is a JSON object: `t` is the type, the other keys are the fields. The hot end never waits: a message that does
not fit is dropped, and the caller can count it. The side's end may block, because the side may. Both ends run the same
code (`monitor.link.upgrade`), and no other process has an end: what is received is a message.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

from monitor.errors import MonitorError
from monitor.kernel.troubles import TROUBLES
from monitor.link.messages import NAMES, TYPES, Message

#: A packet larger than this is refused by the sender (a pod with containers is ~600 bytes; a `state` ~3 KB).
MAX_PACKET = 128 * 1024
_BUFFER = 4 * 1024 * 1024
_json = json.JSONEncoder(separators=(",", ":"), check_circular=False)


class TooLarge(MonitorError):
    """A message larger than `MAX_PACKET`."""


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


def encode(message: Message) -> bytes:
    """The packet of one message. Raises TooLarge."""
    kind = NAMES[type(message)]
    packet = _json.encode({**message._asdict(), "t": kind}).encode()
    if len(packet) > MAX_PACKET:
        raise TooLarge(f"its {kind} message has {len(packet)} bytes, more than the {MAX_PACKET} of a packet")
    return packet


def decode(packet: bytes) -> Message:
    """The message in a packet."""
    fields = json.loads(packet)
    cls: Any = TYPES[fields.pop("t")]
    message: Message = cls(**fields)
    return message


def send(sock: socket.socket, message: Message) -> bool:
    """Send one message; False if it is too large or the other end full or gone (it is lost, nothing waited)."""
    try:
        return send_packet(sock, encode(message))
    except TooLarge:
        return False


def send_packet(sock: socket.socket, packet: bytes) -> bool:
    try:
        sock.send(packet)
    except OSError:
        return False
    return True


def drain(sock: socket.socket, limit: int = 64) -> Iterator[Message | None]:
    """Up to ``limit`` messages that wait already; yields None once if the other end closed. Never waits."""
    for _ in range(limit):
        try:
            packet = sock.recv(MAX_PACKET, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionError:
            packet = b""
        except OSError as error:  # ENOMEM: it is still there at the next turn
            TROUBLES.note("channel", error)
            return
        yield decode(packet) if packet else None
        if not packet:
            return
