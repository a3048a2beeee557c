"""A client's connection to `monitor.side.export.http`, and what it may cost."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from monitor.side.export.http_head import Request

#: Connections open at the same time. One scraper needs one; each costs 10 KB here and 130 KB of socket buffers at most.
MAX_CONNECTIONS = 256
#: Bytes of answers that clients have not taken yet, of all connections together.
MAX_UNSENT = 16 << 20
#: The socket buffer of each connection (the kernel doubles it); left alone it grows to 4 MiB for a client that reads
#: nothing.
SEND_BUFFER = 64 << 10
#: Seconds until the head of a request is complete, from the connection or from its first byte on.
HEAD_S = 5.0
#: Seconds a connection may be kept open without a request. Prometheus asks again after 15 to 60.
IDLE_S = 90.0
#: Seconds until the answer is taken.
WRITE_S = 10.0
#: After a refusal what still comes is read and thrown away for so long (seconds), because closing with unread data
#: would reset the connection, and the client would not see why.
DRAIN_S = 1.0
#: Pause after accept(2) failed for want of descriptors or memory, seconds.
DEAF_S = 1.0
#: Connections accepted between two looks at the others.
ACCEPTS = 64
TIMEOUTS = {"head": HEAD_S, "idle": IDLE_S, "write": WRITE_S, "drain": DRAIN_S}
#: States whose connections are closed to make room; those whose route is at work are not.
EXPENDABLE = ("drain", "idle", "head", "write")


@dataclass(eq=False, slots=True)
class Connection:
    """A client. ``state``: "head" (a request is coming), "idle", "wait" (for its route), "write", "drain"."""

    sock: socket.socket
    state: str = ""
    since: float = 0.0  # monotonic seconds
    inbox: bytearray = field(default_factory=bytearray)
    outbox: list[memoryview] = field(default_factory=list)
    request: Request | None = None  # that is being answered
    closed: bool = False
