"""What only one process can have, and a service waits for: the lock of a state directory, the socket of `--listen`."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable
from typing import TypeVar

from monitor.errors import InUseError, MonitorError
from monitor.hot.sd_notify import Service
from monitor.side.export.log import Log

T = TypeVar("T")

#: The side of a daemon that was killed lets go of it within this time, seconds.
PATIENCE_S = 5.0
#: Less than `TimeoutStartSec=` of the unit by what compiling the programs takes on a very slow machine.
LOCK_PATIENCE_S = 60.0
_LOOK_S = 0.5

#: Backlog of the listening socket: more than one scraper is rare, a storm of clients must not fill it before the side
#: has its turn (a probe would try again after a second).
_BACKLOG = 1024


def in_turn(
    take: Callable[[], T],
    log: Log,
    patience_s: float = LOCK_PATIENCE_S,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """What ``take`` takes, when the other process has let go of it. Raises InUseError where it does not in time.

    On a terminal the command fails at once. systemd starts a service that ends again after 1 s, for ever: after a crash
    the node is not watched meanwhile, so `RestartSec=` cannot be longer, and a start a second fills the journal. So a
    service waits here, with one line, and starts as soon as it can.
    """
    service = Service()
    try:
        until, told = now() + patience_s, False
        while True:
            try:
                return take()
            except InUseError as error:
                if not service.is_there or now() >= until:
                    raise
                if not told:
                    log.warning("waiting for what another process has", problem=str(error), at_most_s=patience_s)
                    service.waiting(f"waiting: {error.message}")
                told = True
            sleep(_LOOK_S)
    finally:
        service.close()


def bind(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises MonitorError if the address cannot be had."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:  # a part of a host's name has at most 63 characters
        why = error.strerror if isinstance(error, socket.gaierror) else "not the name of a host"
        raise MonitorError(f"--listen {host}:{port}: {why}", "name an address of this machine") from None
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raised = InUseError if error.errno == errno.EADDRINUSE else MonitorError
        remedy = f"stop what has it (ss -tlnp 'sport = {port}'), or name another with --listen HOST:PORT"
        raise raised(f"--listen {host}:{port}: {error.strerror}", remedy) from None
    return listener


def bind_or_other(host: str, port: int, log: Log, patience_s: float = PATIENCE_S) -> socket.socket:
    """The same; where another process has that port and keeps it, a port that the kernel chooses, and a unix socket
    without a name in the file system where users hold all of those (28,232 by default). Any user may listen before the
    daemon does: that must not leave the node unwatched.
    """
    try:
        return in_turn(lambda: bind(host, port), log, patience_s)
    except InUseError as error:
        problem = {"problem": error.message, "remedy": error.remedy}
        try:
            listener = bind(host, 0)
        except InUseError:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind("")
            listener.listen(_BACKLOG)
        log.error("served on another port", **problem, listen="{}:{}".format(*address_of(listener)))
        return listener


def address_of(listener: socket.socket) -> tuple[str, int]:
    """Host and port of a listening socket; ("nowhere", 0) of a unix socket."""
    if listener.family == socket.AF_UNIX:
        return "nowhere", 0
    host, port = listener.getsockname()[:2]
    return str(host), int(port)
