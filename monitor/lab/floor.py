"""The floor under every latency of the monitor: the least that Python does between a crossing and a SIGKILL.

Keys: pins=DIR cgroup=DIR available_below=BYTES. It reads the ring of the same BPF programs, knows one cgroup with one
threshold, and has the pidfd of the process to kill open: no pods, no policy, no ranking, nothing to report. It has the
monitor's real-time priority, locked memory, and no garbage collection.

A line `aim PID` is answered by `aimed`, and the next crossing by `killed CROSSED SEEN KILLED` (CLOCK_MONOTONIC ns: the
kernel's time of the crossing, when its record was read, when the signal was sent).
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


def floor(options: Options) -> None:
    pins, cgroup = Pins(options["pins"]), Path(options["cgroup"])
    table = DomainTable(pins)
    table.reset()
    index = table.add(cgroupfs.cgroup_id(cgroup))
    Sweeper(pins, table).run()
    ceilings = [ceiling_pages(cgroupfs.limit(cgroup) or 0, int(options["available_below"]))]
    aimed_at: list[int] = []

    def on_record(data: bytes) -> None:
        record = EVENT.unpack_from(data)
        if record[7] == CROSS and aimed_at:
            seen_ns = time.monotonic_ns()
            signal.pidfd_send_signal(aimed_at[0], signal.SIGKILL)
            write_line("killed", record[0], seen_ns, time.monotonic_ns())
            os.close(aimed_at.pop())

    ring = Ring(pins, "events", on_record)
    ring.consume()  # what an earlier reader left
    for name in pins.pressure:
        pins.attach(name)
    epoll = select.epoll()
    epoll.register(ring.fileno(), select.EPOLLIN)
    epoll.register(0, select.EPOLLIN)
    protect()
    gc.disable()
    write_line("ready")
    while True:
        for fd, _ in epoll.poll():
            if fd != 0:
                ring.consume()
            elif order := read_order():
                aimed_at.append(os.pidfd_open(int(order.split()[1])))
                table.set_ceilings(index, ceilings)
                write_line("aimed")
            else:
                return
