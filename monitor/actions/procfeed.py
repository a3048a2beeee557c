"""News of processes that appear in pods: the ring of the BPF programs, or the kernel's process connector without BPF.

The BPF programs filter in the kernel and say which pod; the connector tells every fork and exec of the machine, and
where it happened has to be looked up. Both only feed `monitor.actions.oomadj`.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
import socket
import struct
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from monitor.actions.oomadj import Logger, OomScores
from monitor.errors import CannotError, MonitorError

if TYPE_CHECKING:
    from monitor.kernel.pins import Pins

#: netlink header (16), connector header (20), then what, cpu, timestamp and the first two words of the event:
#: <linux/netlink.h>, <linux/connector.h>, <linux/cn_proc.h>
_PROC_EVENT = struct.Struct("=36xIIQIIII")
_FORK, _EXEC = 0x1, 0x2
#: Datagrams taken at once before the main loop turns again.
_BATCH = 512


class ProcessFeed(Protocol):
    """Readable when there is news; `consume` hands it on."""

    def fileno(self) -> int: ...

    def consume(self) -> int: ...

    def close(self) -> None: ...


class BpfFeed:
    """fork, exec and attach of processes in watched pods; attached as long as this object is open."""

    def __init__(self, pins: Pins, scores: OomScores) -> None:
        from monitor.kernel.pins import PROCS, Ring
        from monitor.kernel.wire import ProcEvent

        def on_record(data: bytes) -> None:
            event = ProcEvent.decode(data)
            scores.on_process(event.pid, event.cgroup_id)

        self._links: list[int] = []
        self._ring = Ring(pins, "procs", on_record)
        try:
            for name in PROCS:
                self._links.append(pins.attach(name))
        except MonitorError:
            self.close()
            raise

    def fileno(self) -> int:
        return self._ring.fileno()

    def consume(self) -> int:
        """Take every waiting record; how many there were."""
        return self._ring.consume()

    def close(self) -> None:
        """Detach the programs."""
        for link in self._links:
            os.close(link)
        self._links.clear()
        self._ring.close()


def _proc_event_socket() -> Any:
    """pyroute2's class for the process connector, without the rest of pyroute2.

    Its package imports all of itself, 100 modules for every kind of netlink: 41 ms of CPU (a second where the CPU is
    emulated) and 10 MB. An empty package in its place for the moment of the import finds the same files.
    """
    wanted = "pyroute2.netlink.connector.cn_proc"
    found = None if "pyroute2" in sys.modules else importlib.util.find_spec("pyroute2")
    if found is not None:
        hollow = ModuleType("pyroute2")
        hollow.__spec__, hollow.__path__ = found, list(found.submodule_search_locations or ())
        sys.modules["pyroute2"] = hollow
        try:
            return importlib.import_module(wanted).ProcEventSocket
        except (ImportError, AttributeError):  # in another release this part may need more of the package
            for name in [name for name in sys.modules if name.startswith("pyroute2.")]:
                del sys.modules[name]
        finally:
            del sys.modules["pyroute2"]
    return importlib.import_module(wanted).ProcEventSocket


class ConnectorFeed:
    """fork and exec of every process on the machine, through the process connector (CONFIG_PROC_EVENTS).

    ``on_overflow()`` is called when events were lost (ENOBUFS): only a look at everything helps then.
    """

    def __init__(self, on_process: Callable[[int], None], on_overflow: Callable[[], None]) -> None:
        self._on_process = on_process
        self._on_overflow = on_overflow
        self._subscription = _proc_event_socket()()
        try:
            self._subscription.bind()
            self._subscription.control(listen=True)
        except (OSError, KeyError) as error:  # KeyError: pyroute2 tries other addresses where bind() is forbidden
            self._subscription.close()
            why = "it may not be listened to" if isinstance(error, KeyError) else error
            raise CannotError(
                f"the process connector cannot be used: {why}", "run as root in the initial pid and user namespace"
            ) from None
        # Read directly: pyroute2 decodes into dictionaries, too slow for every fork of a machine.
        self._socket = socket.socket(fileno=os.dup(self._subscription.fileno()))
        self._socket.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def consume(self) -> int:
        """Take the waiting events (at most 512 datagrams); how many concerned a new process."""
        taken = 0
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
                taken += 1
                self._on_process(pid)
        return taken

    def close(self) -> None:
        """Close both descriptors, which unsubscribes; asking for it waits for an answer that need not come."""
        self._socket.close()
        self._subscription.close()


def new_process(datagram: bytes) -> int | None:
    """The process a connector datagram is about: a fork (not of a thread) or an exec; None for the rest."""
    if len(datagram) < _PROC_EVENT.size:
        return None
    what, _cpu, _when, first, second, child, child_process = _PROC_EVENT.unpack_from(datagram)
    if what == _FORK and child == child_process:
        return int(child)
    if what == _EXEC:
        return int(second) if first else None
    return None


def open_feed(pins: Pins | None, scores: OomScores, log: Logger) -> ProcessFeed:
    """The BPF feed, or the connector where there is no BPF. Raises MonitorError if neither works."""
    if pins is not None:
        try:
            return BpfFeed(pins, scores)
        except MonitorError as error:
            log("warning", "new processes are watched through the process connector", problem=str(error))
    return ConnectorFeed(scores.on_foreign_process, scores.audit_all)
