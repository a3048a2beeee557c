"""The floor under every latency of the monitor: the least that Python does between a crossing and a SIGKILL.

Keys: pins=DIR cgroup=DIR available_below=BYTES. One process that reads the ring of
the same BPF programs, knows one cgroup with one threshold, and has the pidfd of the process to kill open: no
pods, no policy, no ranking, nothing to report. It has what the monitor has: real-time priority, locked memory, no
garbage collection.

It prints `ready`; each line `aim PID` on stdin is answered by `aimed`, and the next crossing by `killed CROSSED
SEEN KILLED` (CLOCK_MONOTONIC nanoseconds: the kernel's time of the crossing, when its record was read, when the
signal was sent). It ends when stdin is closed.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import time
from pathlib import Path

from monitor.kernel import cgroupfs
from monitor.kernel.domains import DomainTable, ceiling_pages
from monitor.kernel.pins import Pins, Ring
from monitor.kernel.sched import protect
from monitor.kernel.sweeping import Sweeper
from monitor.kernel.wire import CROSS, EVENT
from monitor.lab.worker import Options, read_order, write_line


class Floor:
    def __init__(self, pins: Pins, cgroup: Path, available_below: int) -> None:
        self._table = DomainTable(pins)
        self._table.reset()
        sweeper = Sweeper(pins, self._table)
        self._index = self._table.add(cgroupfs.cgroup_id(cgroup))
        sweeper.run()
        self._ceilings = [ceiling_pages(cgroupfs.limit(cgroup) or 0, available_below)]
        self._pidfd = -1
        self.ring = Ring(pins, "events", self._on_record)
        self.ring.consume()  # what an earlier reader left
        self._links = [pins.attach(name) for name in pins.pressure]

    def aim(self, pid: int) -> None:
        self._pidfd = os.pidfd_open(pid)
        self._table.set_ceilings(self._index, self._ceilings)

    def _on_record(self, data: bytes) -> None:
        record = EVENT.unpack_from(data)
        if record[7] != CROSS or self._pidfd < 0:
            return
        seen_ns = time.monotonic_ns()
        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        write_line("killed", record[0], seen_ns, time.monotonic_ns())
        os.close(self._pidfd)
        self._pidfd = -1


def floor(options: Options) -> None:
    one = Floor(Pins(options["pins"]), Path(options["cgroup"]), int(options["available_below"]))
    epoll = select.epoll()
    epoll.register(one.ring.fileno(), select.EPOLLIN)
    epoll.register(0, select.EPOLLIN)
    protect()
    gc.disable()
    write_line("ready")
    while True:
        for fd, _ in epoll.poll():
            if fd != 0:
                one.ring.consume()
                continue
            if not (order := read_order()):
                return
            one.aim(int(order.split()[1]))
            write_line("aimed")
