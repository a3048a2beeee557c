"""The small workers of the benches (`monitor.lab.worker` runs them)."""

from __future__ import annotations

import gc
import mmap
import os
import random
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from monitor.kernel import cgroupfs
from monitor.kernel.domains import DomainTable, ceiling_pages
from monitor.kernel.pins import Pins, Ring
from monitor.kernel.sched import protect
from monitor.kernel.sweeping import Sweeper
from monitor.kernel.wire import CROSS, EVENT
from monitor.lab.worker import MIB, join, read_order, ready, stdin_is_ready, write_line


def faults(cgroup: str, mib: int, cpu: int) -> None:
    """Page faults, for `bench overhead`: for each line `N` all of ``mib`` of 4K pages are touched N times on ``cpu``
    and given back in between, a byte per page by a loop in C; answers `took NS`, its CPU time.
    """
    os.sched_setaffinity(0, {cpu})
    memory = mmap.mmap(-1, mib * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    first_bytes = memoryview(memory)[:: mmap.PAGESIZE]
    ones = b"\1" * len(first_bytes)

    def touch(passes: int) -> None:
        for _ in range(passes):
            first_bytes[:] = ones
            memory.madvise(mmap.MADV_DONTNEED)

    ready(cgroup)
    for line in sys.stdin:
        # One pass before the clock starts: what attaching itself disturbs (patched kernel text, caches) is not counted.
        touch(1)
        began = time.process_time_ns()
        touch(int(line))
        write_line("took", time.process_time_ns() - began)


def neighbour(cgroup: str, kind: str) -> None:
    """Takes the CPU from the monitor, by ``kind``: `compile` compiles Python source at nice 19, a process for each
    file; `churn` forks processes that end, which also takes the lock that reading cgroup.procs of cgroup v1 waits for.
    """
    compiles = kind == "compile"
    source = Path(os.__file__).read_text() if compiles else ""
    os.nice(19 if compiles else 0)
    ready(cgroup)
    while not stdin_is_ready():
        pid = os.fork()
        if not pid:
            try:
                compile(source, "source.py", "exec", dont_inherit=True) if compiles else None
            finally:
                os._exit(0)
        os.waitpid(pid, 0)


def files(cgroup: str, kind: str, path: str, mib: int) -> None:
    """Works on a file of ``mib`` at ``path``, by ``kind``: `map` touches its pages at random, `stream` reads it from
    beginning to end, `write` writes it, again and again, and answers each line with `counted N`: pages since the
    last. A line `drop` has what is mapped read from the disk again. `once` has read it when it is ready, and ends at a
    line. A file to read is made if it is not there: 1000 MiB took up to two minutes on an emulated disk.
    """
    join(cgroup)
    size = mib * MIB
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    for at in range(os.fstat(fd).st_size, size if kind != "write" else 0, MIB):
        os.pwrite(fd, bytes(MIB), at)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE  # its speed is that of files that are in memory
    mapped = mmap.mmap(fd, size, flags=flags, prot=mmap.PROT_READ) if kind == "map" else None
    chance, count, at = random.Random(1), 0, 0
    if kind == "once":
        while os.read(fd, MIB):
            pass
        ready()
        read_order()
        return
    ready()
    while True:
        if stdin_is_ready():
            if not (order := read_order()):
                return
            if order == "drop" and mapped is not None:
                mapped.madvise(mmap.MADV_DONTNEED)  # what is mapped stays in memory
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            write_line("counted", count)
            count = 0
        if mapped is not None:
            for _ in range(64):
                mapped[chance.randrange(size >> 12) << 12]
            count += 64
        else:
            done = len(os.pread(fd, MIB, at)) if kind == "stream" else os.pwrite(fd, bytes(MIB), at)
            at, count = (at + MIB) % size, count + (done >> 12)


def poller(cgroup: str, kill: list[int], margin: int, interval_us: int, phase_us: int) -> None:
    """The baseline of `bench race`: reads the counters of ``cgroup`` every ``interval_us``, from ``phase_us`` after the
    line `go`, and kills the pids of ``kill`` when less than ``margin`` bytes are available. It has everything the
    monitor has but the events: real-time priority, victims known before.
    """
    hierarchy, victims = cgroupfs.detect(), [os.pidfd_open(pid) for pid in kill]
    with suppress(OSError):  # the monitor under test gets the same refusal
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    ready()
    os.read(0, 64)
    due, killed = time.monotonic() + phase_us / 1e6, False
    while not stdin_is_ready(max(0.0, due - time.monotonic())):
        due = max(due + interval_us / 1e6, time.monotonic())
        available = cgroupfs.read_cgroup(hierarchy, Path(cgroup)).available
        if available is not None and available < margin and not killed:
            killed = True
            for fd in victims:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)


def floor(cgroup: str, pins: str, available_below: int) -> None:
    """The floor under every latency of the monitor: the least that Python does between a crossing and a SIGKILL.

    It reads the ring of the BPF programs in ``pins``, knows one ``cgroup`` with one threshold (``available_below``
    bytes), and has the pidfd of the process to kill open: no pods, no policy, no ranking, nothing to report. It has the
    monitor's real-time priority, locked memory, and no garbage collection. A line `aim PID` is answered by `aimed`, and
    the next crossing by `killed CROSSED SEEN KILLED` (CLOCK_MONOTONIC ns: the kernel's time of the crossing, when its
    record was read, when the signal was sent).
    """
    pinned, node = Pins(pins), Path(cgroup)
    table = DomainTable(pinned)
    table.reset()
    index = table.add(cgroupfs.cgroup_id(node))
    Sweeper(pinned, table).run()
    ceilings = [ceiling_pages(cgroupfs.limit(node) or 0, available_below)]
    aimed_at: list[int] = []

    def on_record(data: bytes) -> None:
        record = EVENT.unpack_from(data)
        if record[7] == CROSS and aimed_at:
            seen_ns = time.monotonic_ns()
            signal.pidfd_send_signal(aimed_at[0], signal.SIGKILL)
            write_line("killed", record[0], seen_ns, time.monotonic_ns())
            os.close(aimed_at.pop())

    ring = Ring(pinned, "events", on_record)
    ring.consume()  # what an earlier reader left
    for name in pinned.pressure:
        pinned.attach(name)
    epoll = select.epoll()
    epoll.register(ring.fileno(), select.EPOLLIN)
    epoll.register(0, select.EPOLLIN)
    protect()
    gc.disable()
    ready()
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
