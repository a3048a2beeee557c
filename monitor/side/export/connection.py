"""A client's connection to `monitor.side.export.http`, and what it may cost."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from monitor.side.export.http_head import Request

#: Connections open at the same time. One scraper needs one; each costs 10 KB here and 130 KB of socket buffers at most.
MAX_CONNECTIONS = 64
#: Bytes of answers that clients have not taken yet, of all connections together. The metrics of 500 pods are 0.5 MB.
MAX_UNSENT = 8 << 20
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
#: Seconds that a request waits while the CPU time of all is used up, before it is refused: a client that repeats its
#: request as fast as it is refused would take more than the answer does.
BUSY_S = 1.0
#: Connections accepted between two looks at the others; events handled between two at the CPU time they took.
BATCH = 16
TIMEOUTS = {"head": HEAD_S, "idle": IDLE_S, "write": WRITE_S, "drain": DRAIN_S, "busy": BUSY_S}
#: States whose connections are closed to make room; those whose route is at work are not.
CLOSABLE = ("busy", "drain", "idle", "head", "write")


@dataclass(eq=False, slots=True)
class Connection:
    """A client. ``state``: "head" (a request is coming), "idle", "wait" (for its route), "busy" (for CPU time),
    "write", "drain".
    """

    sock: socket.socket
    state: str = ""
    since: float = 0.0  # monotonic seconds
    inbox: bytearray = field(default_factory=bytearray)
    outbox: list[memoryview] = field(default_factory=list)
    request: Request | None = None  # that is being answered
    closed: bool = False

    def __post_init__(self) -> None:
        """Raises OSError."""
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        if self.sock.family != socket.AF_UNIX:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def unsent(self) -> int:
        return sum(map(len, self.outbox))

    def write(self) -> None:
        """Send what the client takes without waiting. Raises OSError."""
        outbox = self.outbox
        while outbox:
            try:
                sent = self.sock.sendmsg(outbox)
            except BlockingIOError:
                return
            while outbox and sent >= len(outbox[0]):
                sent -= len(outbox.pop(0))
            if outbox:
                outbox[0] = outbox[0][sent:]

    @property
    def is_own(self) -> bool:
        """Whether the client is on this machine: at a loopback address, or at the address it connected to, which the
        kernel gives a connection to an own address. (A packet from outside with such a source is a martian.)
        """
        if self.sock.family == socket.AF_UNIX:
            return True
        names = self.sock.getpeername(), self.sock.getsockname()
        peer, own = (str(name[0]).removeprefix("::ffff:") for name in names)
        return peer == own or peer == "::1" or peer.startswith("127.")
