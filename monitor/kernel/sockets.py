"""What waits in the TCP sockets of processes: connections that nobody has accepted, bytes that nobody has read.

From /proc/PID/net/tcp and tcp6 of each network namespace, for the sockets that the processes have open: a pod on the
host's network has them among those of the node. Its column rx_queue is, of a listening socket, how many connections
wait to be accepted, else bytes (Documentation/networking/proc_net_tcp.rst). UDP and Unix sockets are not counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

#: Processes, descriptors of them, and sockets of a namespace that are looked at: 10,000 lines take 20 ms.
_MOST_PIDS, _MOST_FDS, _MOST_SOCKETS = 64, 4096, 20_000
_LISTEN = "0A"


class Waiting(NamedTuple):
    """``connections`` to be accepted, ``unread`` bytes of others; of that many sockets."""

    connections: int
    unread: int
    sockets: int


def waiting(pids: Iterable[int]) -> Waiting | None:
    """What waits for these processes; None where nobody of them is left. At least so much of more than the bounds."""
    namespaces: dict[str, int] = {}
    inodes: set[str] = set()
    for pid in islice(pids, _MOST_PIDS):
        with suppress(OSError):  # it ended, or may not be read
            namespaces.setdefault(os.readlink(f"/proc/{pid}/ns/net"), pid)
            for fd in islice(os.listdir(f"/proc/{pid}/fd"), max(0, _MOST_FDS - len(inodes))):
                with suppress(OSError):
                    target = os.readlink(f"/proc/{pid}/fd/{fd}")
                    if target.startswith("socket:["):
                        inodes.add(target[8:-1])
    if not namespaces:
        return None
    connections = unread = sockets = 0
    for pid in namespaces.values():
        for state, rx, inode in (row for name in ("tcp", "tcp6") for row in _rows(f"/proc/{pid}/net/{name}")):
            if inode in inodes:
                sockets += 1
                connections += rx if state == _LISTEN else 0
                unread += 0 if state == _LISTEN else rx
    return Waiting(connections, unread, sockets)


def _rows(path: str) -> Iterator[tuple[str, int, str]]:
    """State, rx_queue and inode of each socket; none where there is no such protocol."""
    with suppress(OSError), open(path) as file:
        for line in islice(file, 1, _MOST_SOCKETS):
            fields = line.split()
            if len(fields) > 9 and ":" in fields[4]:
                yield fields[3], int(fields[4].partition(":")[2], 16), fields[9]
