"""Processes that appear in pods: from the ring of the BPF programs, or from the kernel's process connector without BPF.

The BPF programs filter in the kernel and name the pod; the connector reports every fork and exec of the machine, and
the reader looks up where it happened. Both only feed `monitor.actions.oomadj`.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from monitor.actions.oomadj import OomScores
from monitor.errors import CannotError, MonitorError

if TYPE_CHECKING:
    from monitor.kernel.pins import Pins

#: netlink header (16), connector header (20), then what, cpu, timestamp and the first two words of the event:
#: <linux/netlink.h>, <linux/connector.h>, <linux/cn_proc.h>
_PROC_EVENT = struct.Struct("=36xIIQIIII")
_FORK, _EXEC = 0x1, 0x2
_NETLINK_CONNECTOR = 11
#: The request: netlink header (length, NLMSG_DONE, flags, seq, pid), connector header (CN_IDX_PROC, CN_VAL_PROC, seq,
#: ack, length, flags), PROC_CN_MCAST_LISTEN.
_LISTEN = struct.Struct("=IHHIIIIIIHHI")
#: Its answer: the ack of the connector header, what (PROC_EVENT_NONE), and an errno.
_ANSWER = struct.Struct("=28xI4xI12xI")
#: The kernel answers before send() returns (cn_rx_skb calls cn_proc_mcast_ctl), if it does.
_ANSWER_S = 1.0
_REMEDY = (
    "run it as root with CAP_NET_ADMIN in the initial pid, user and network namespaces, with AF_NETLINK allowed "
    "(seccomp; systemd: RestrictAddressFamilies=), on a kernel with CONFIG_CONNECTOR=y and CONFIG_PROC_EVENTS=y"
)
#: Records or datagrams taken at once before the main loop turns again: some 60 us each.
_BATCH = 256


class BpfFeed:
    """fork, exec and attach of processes in watched pods; attached as long as this object is open."""

    def __init__(self, pins: Pins, scores: OomScores) -> None:
        from monitor.kernel.pins import PROCS, Ring
        from monitor.kernel.wire import PROC

        def on_record(event: tuple[int, ...]) -> None:
            _when, cgroup_id, _kind, pid, *_ = event
            scores.on_process(pid, cgroup_id)

        self._ring = Ring(pins, "procs", on_record, PROC.unpack_from)
        with ExitStack() as opened:
            opened.callback(self._ring.close)
            for name in PROCS:
                opened.callback(os.close, pins.attach(name))
            self.close = opened.pop_all().close  #: detach the programs

    def fileno(self) -> int:
        return self._ring.fileno()

    def consume(self) -> None:
        """Take the waiting records (at most 256; the ring stays readable for the rest)."""
        self._ring.consume(_BATCH)


class ConnectorFeed:
    """fork and exec of every process on the machine, through the process connector (CONFIG_PROC_EVENTS).

    ``on_overflow()`` is called when events were lost (ENOBUFS): only a look at everything helps then. The constructor
    raises CannotError, after a second at most.
    """

    def __init__(self, on_process: Callable[[int], None], on_overflow: Callable[[], None]) -> None:
        self._on_process, self._on_overflow = on_process, on_overflow
        opened = ExitStack()
        try:
            # Where this is refused, pyroute2's constructor leaves an event loop behind.
            socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_CONNECTOR).close()
            from pyroute2.netlink.connector.cn_proc import ProcEventSocket  # 18 MiB: only where there is no BPF

            subscription = opened.enter_context(closing(ProcEventSocket()))
            subscription.bind()
            # Read directly: pyroute2 decodes into dictionaries, too slow for every fork of a machine.
            self._socket = opened.enter_context(socket.socket(fileno=os.dup(subscription.fileno())))
            _subscribe(self._socket)
        except (ImportError, OSError, KeyError) as error:
            opened.close()
            why, remedy = getattr(error, "strerror", "") or str(error), _REMEDY
            if isinstance(error, ImportError):
                remedy = "pip install pyroute2"
            elif isinstance(error, KeyError):  # pyroute2 tries other addresses where bind() is forbidden
                why = "it may not be listened to"
            raise CannotError(f"the process connector cannot be used: {why}", remedy) from None
        self._socket.setblocking(False)
        #: Closing both descriptors unsubscribes; asking for it waits for an answer that need not come.
        self.close = opened.close

    def fileno(self) -> int:
        return self._socket.fileno()

    def consume(self) -> None:
        """Take the waiting events (at most 256 datagrams)."""
        for _ in range(_BATCH):
            try:
                data = self._socket.recv(4096)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise MonitorError(f"the process connector failed: {error.strerror}") from error
                self._on_overflow()
                continue
            pid = new_process(data)
            if pid is not None:
                self._on_process(pid)


def _subscribe(sock: socket.socket) -> None:
    """Have the events sent to this bound socket. Raises OSError.

    (`ProcEventSocket.control` waits for the answer for ever. Without CONFIG_PROC_EVENTS there is none, nor outside of
    the initial pid and user namespaces: cn_proc_mcast_ctl.)
    """
    mine = os.getpid()
    sock.send(_LISTEN.pack(_LISTEN.size, 3, 0, 0, 0, 1, 1, 0, mine, 4, 0, 1))
    deadline = time.monotonic() + _ANSWER_S
    while (left := deadline - time.monotonic()) > 0:
        sock.settimeout(left)
        try:
            data = sock.recv(4096)
        except TimeoutError:
            break
        except OSError as error:
            if error.errno != errno.ENOBUFS:  # events were lost, of a time before anything was watched
                raise
            continue
        if len(data) < _ANSWER.size:
            continue
        ack, what, problem = _ANSWER.unpack_from(data)
        if what == 0 and ack == mine + 1:  # not an event, nor the answer to another listener
            if problem:
                raise OSError(problem, os.strerror(problem))
            return
    raise OSError(errno.ETIMEDOUT, f"no answer within {_ANSWER_S:g} s")


def new_process(datagram: bytes) -> int | None:
    """The process a connector datagram is about: a fork (not of a thread) or an exec; None for the rest."""
    if len(datagram) < _PROC_EVENT.size:
        return None
    what, _cpu, _when, first, second, child, child_process = _PROC_EVENT.unpack_from(datagram)
    if what == _FORK:
        return int(child) if child == child_process else None
    return int(second) if what == _EXEC and first else None


#: Readable when there are records; `consume` hands them on.
ProcessFeed = BpfFeed | ConnectorFeed


def open_feed(pins: Pins | None, scores: OomScores) -> ProcessFeed:
    """The BPF feed, or the connector where there is no BPF. Raises MonitorError."""
    return ConnectorFeed(scores.on_foreign_process, scores.look_at_all_soon) if pins is None else BpfFeed(pins, scores)
