"""The user of the process at the other end of a TCP connection within this machine.

/proc/net/tcp{,6} has both ends of such a connection, each with its inode's uid: the filesystem uid of the process that
accepted it. A root program that lets others choose its port (setuid), a process that root gave its accepted socket to,
and a container with uid 0 on the host's network are root's by this. A container's root in a user namespace is not.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum

from monitor.kube.errors import CertificateError

#: A socket that the server has not accepted yet is looked for again after so long, twice as long each time: the tables
#: of 10,000 sockets take 10 ms. One that is nowhere is looked for this long. Seconds.
_AGAIN_S, _NOWHERE_S = 0.01, 0.5
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_MAPPED = b"\0" * 10 + b"\xff\xff"
_SYN_RECEIVED = "03"


class Peer(Enum):
    """Which user may serve: any; root, if it is on this machine (a certificate says the rest); root on this machine."""

    ANYBODY = 0
    ROOT_IF_HERE = 1
    ROOT = 2


def check_peer(sock: socket.socket, peer: Peer, address: str, slices: Iterator[float]) -> None:
    """Raises CertificateError where another user serves ``address``. ``slices``: seconds to wait, again and again; it
    raises what ends that where no process accepts.
    """
    if peer is Peer.ANYBODY:
        return
    if peer is Peer.ROOT and _in_other_network():
        raise _refused(address, "outrace runs in another network namespace than process 1")
    nowhere, again_s = time.monotonic() + (_NOWHERE_S if peer is Peer.ROOT else 0.0), _AGAIN_S
    for left_s in slices:
        uid, accepted = _owner(sock)
        if uid is None and time.monotonic() >= nowhere:
            if peer is Peer.ROOT:
                raise _refused(address, "no process of this machine serves it")
            return
        if uid not in (None, 0, os.geteuid()):
            raise _refused(address, f"user {uid} serves it")
        if accepted:
            return
        time.sleep(min(left_s, again_s))
        again_s *= 2


def _refused(address: str, why: str) -> CertificateError:
    return CertificateError(f"{address}: {why}: a kubelet is root's", "find out which process has that port (ss -tlnp)")


def _owner(sock: socket.socket) -> tuple[int | None, bool]:
    """The uid of the other end, None where there is no such end here, and whether it was accepted: before, it has no
    inode, and on older kernels a uid of 0.
    """
    pairs = [f" {a} {b} " for a, b in zip(_written(sock.getpeername()), _written(sock.getsockname()), strict=True)]
    for table in _TABLES:
        with suppress(OSError), open(table) as lines:
            for line in lines:
                if any(pair in line for pair in pairs) and len(fields := line.split()) > 9:
                    # With TCP_DEFER_ACCEPT a server leaves a connection in SYN_RECV until data comes: nothing is sent.
                    if fields[3] == _SYN_RECEIVED:
                        return 0, False
                    return int(fields[7]), fields[9] != "0"
    return None, False


def _written(address: tuple[str, int]) -> Iterator[str]:
    """An address as these tables write it; of IPv4 also as a socket of IPv6 has it."""
    host, port = address[0].partition("%")[0], address[1]
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    for raw in (packed,) if len(packed) == 16 else (packed, _MAPPED + packed):
        words = (raw[at : at + 4] for at in range(0, len(raw), 4))
        yield "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{port:04X}"


def _in_other_network() -> bool:
    """Whether this network is not the machine's, as far as process 1 may be looked at."""
    with suppress(OSError):
        return os.stat("/proc/1/ns/net").st_ino != os.stat("/proc/self/ns/net").st_ino
    return False
