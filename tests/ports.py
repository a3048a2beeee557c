"""Ports of the loopback that a test hands out, kept from everybody else meanwhile."""

import socket
import weakref


def reserved(owner: object) -> int:
    """A port that the kernel gives to no other socket as long as ``owner`` lives. Connections to it are refused until
    a program listens there: both sockets have SO_REUSEADDR, and this one never listens.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    weakref.finalize(owner, held.close)
    return int(held.getsockname()[1])
