"""What the loader pinned under bpffs, opened through libbpf: programs, maps, rings.

No bcc here: 10 MB RSS instead of 130.

A *pin directory* holds ``prog_NAME``, ``map_NAME`` and ``link_NAME``. Links that are pinned keep their program attached
while no daemon runs (the OOM chain); the fine-grained programs are attached by the process that needs them and detach
by themselves when it ends, because their link is a plain file descriptor.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from monitor.errors import MonitorError
from monitor.kernel.libbpf import RING_CALLBACK, RunOpts, attach_kprobe, failure, libbpf
from monitor.kernel.wire import COUNTS

BPFFS = Path("/sys/fs/bpf")
ROOT = BPFFS / "outrace"

#: program -> raw tracepoint
TRACEPOINTS = {
    "on_lruvec_stat": "mod_memcg_lruvec_state",
    "on_memcg_stat": "mod_memcg_state",
    "on_mark_victim": "mark_victim",
    "on_signal_generate": "signal_generate",
    "on_process_exit": "sched_process_exit",
    "on_memcg_reclaim": "mm_vmscan_memcg_reclaim_begin",
    "on_direct_reclaim": "mm_vmscan_direct_reclaim_begin",
    "on_fork": "sched_process_fork",
    "on_exec": "sched_process_exec",
    "on_attach": "cgroup_attach_task",
}
#: The fine-grained programs: attached near a threshold only. One hook's are loaded (monitor/kernel/charging.py).
TRACEPOINT, KPROBE = "memcg-tracepoint", "kprobe"
HOOKS = {TRACEPOINT: ("on_lruvec_stat", "on_memcg_stat"), KPROBE: ("on_charge", "on_uncharge")}
PRESSURE = HOOKS[TRACEPOINT]
#: What the kprobes' programs are attached to. On every kernel from 5.4 to 7.3 both are global and nowhere inlined.
FUNCTIONS = {"on_charge": "page_counter_try_charge", "on_uncharge": "page_counter_uncharge"}
#: Attached always, also while the daemon restarts.
OOM = ("on_mark_victim", "on_signal_generate", "on_process_exit", "on_memcg_reclaim", "on_direct_reclaim")
#: Attached by the side: processes that appear in pods.
PROCS = ("on_fork", "on_exec", "on_attach")
#: Run by the daemon itself.
RUN = ("begin", "sweep", "commit", "reread", "touch")
MAPS = (
    *("domain_of", "domains", "crossings", "sweeps", "leaves", "victims", "evictions", "counts"),
    *("events", "steps", "ooms", "kills", "reclaims", "procs"),  # rings
)

#: More records than any ring of ours holds (11,000 steps).
ALL = 1 << 14
#: What the callback of a ring answers when the budget is spent.
_ENOUGH = -errno.EAGAIN


def pin(fd: int, path: Path) -> None:
    """Pin a map, program or link. Raises MonitorError."""
    if libbpf().bpf_obj_pin(fd, os.fsencode(path)) < 0:
        raise failure(f"cannot pin {path}")


class Map:
    """A pinned map by file descriptor; keys and values are bytes of the map's own sizes."""

    def __init__(self, fd: int, value_size: int = 8) -> None:
        self.fd = fd
        self.value_size = value_size

    def update(self, key: bytes, value: bytes) -> None:
        if libbpf().bpf_map_update_elem(self.fd, key, value, 0) < 0:
            raise failure("cannot write to a BPF map")

    def lookup(self, key: bytes) -> bytes | None:
        out = ctypes.create_string_buffer(self.value_size)
        return None if libbpf().bpf_map_lookup_elem(self.fd, key, out) < 0 else out.raw

    def delete(self, key: bytes) -> bool:
        return bool(libbpf().bpf_map_delete_elem(self.fd, key) >= 0)

    def batches(self, size: int) -> Iterator[tuple[list[int], list[int]]]:
        """All entries of a hash with 8-byte keys and values of 64-bit words, up to ``size`` at a time: keys, words. One
        that is changed meanwhile may be left out or come twice. Raises MonitorError.
        """
        keys, values = (ctypes.c_uint64 * size)(), (ctypes.c_uint64 * (size * self.value_size // 8))()
        at, number, first = ctypes.c_uint64(), ctypes.c_uint32(), True
        while True:
            number.value = size
            start = None if first else ctypes.byref(at)
            ended = libbpf().bpf_map_lookup_batch(
                self.fd, start, ctypes.byref(at), keys, values, ctypes.byref(number), None
            )
            if ended < 0 and ctypes.get_errno() != errno.ENOENT:  # which is the end
                raise failure("cannot read a BPF map")
            found = number.value
            yield keys[:found], values[: found * self.value_size // 8]
            if ended < 0:
                return
            first = False


class Program:
    """A pinned program that user space runs itself (BPF_PROG_RUN), with its buffers allocated once."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._args = (ctypes.c_uint64 * 12)()
        self._opts = RunOpts(sz=ctypes.sizeof(RunOpts), ctx_in=ctypes.addressof(self._args), ctx_size_in=12 * 8)
        self._ref = ctypes.byref(self._opts)

    def run(self, *args: int) -> int:
        """Run once with up to twelve 64-bit arguments; the program's 32-bit return value."""
        for i, value in enumerate(args):
            self._args[i] = value
        if libbpf().bpf_prog_test_run_opts(self.fd, self._ref) < 0:
            raise failure("cannot run a BPF program")
        return int(self._opts.retval)


class Pins:
    """One pin directory. Raises MonitorError if nothing is pinned there."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        if not self.directory.is_dir():
            raise MonitorError(f"no BPF programs are pinned at {directory}", "start `outrace run`, which loads them")

    @property
    def hook(self) -> str:
        """Which hook's programs are pinned here."""
        found = (hook for hook, programs in HOOKS.items() if (self.directory / f"prog_{programs[0]}").exists())
        if hook := next(found, ""):
            return hook
        raise MonitorError(f"no programs of any hook are pinned at {self.directory}", "`outrace unload`")

    @property
    def pressure(self) -> tuple[str, ...]:
        """The fine-grained programs pinned here."""
        return HOOKS[self.hook]

    def fd(self, name: str) -> int:
        """A new file descriptor (close-on-exec) of ``prog_X``, ``map_X`` or ``link_X``."""
        fd: int = libbpf().bpf_obj_get(os.fsencode(self.directory / name))
        if fd < 0:
            raise failure(f"cannot open {self.directory / name}")
        return fd

    def map(self, name: str, value_size: int = 8) -> Map:
        return Map(self.fd(f"map_{name}"), value_size)

    def program(self, name: str) -> Program:
        return Program(self.fd(f"prog_{name}"))

    def mmap(self, name: str, size: int) -> mmap.mmap:
        """The memory of an array map made with BPF_F_MMAPABLE."""
        fd = self.fd(f"map_{name}")
        try:
            return mmap.mmap(fd, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        finally:
            os.close(fd)

    def attach(self, name: str) -> int:
        """Attach program ``name``; closing the returned descriptor detaches it (208 and 92 us, measured)."""
        prog = self.fd(f"prog_{name}")
        try:
            return attach(name, prog)
        finally:
            os.close(prog)


def attach(name: str, prog: int) -> int:
    """The same for a program that is open as descriptor ``prog``. Raises MonitorError."""
    if name in FUNCTIONS:
        return attach_kprobe(FUNCTIONS[name], prog)
    link = libbpf().bpf_raw_tracepoint_open(TRACEPOINTS[name].encode(), prog)
    if link < 0:
        raise failure(f"cannot attach {name} to the tracepoint {TRACEPOINTS[name]}")
    return int(link)


class Ring:
    """A pinned ring buffer: put ``fileno()`` in an epoll and call ``consume()`` when it is readable. ``callback`` gets
    each record, as ``decode`` makes it of bytes. An exception in them must not travel through C: it is kept and raised
    by consume() afterwards.
    """

    def __init__(
        self, pins: Pins, name: str, callback: Callable[[Any], None], decode: Callable[[bytes], Any] = bytes
    ) -> None:
        self._fd = pins.fd(f"map_{name}")
        self._error: BaseException | None = None
        self._left = 0  # records that consume() may still hand on; 0 while it is not running
        self.more = False  # whether the last consume() ended with its budget: there may be more
        string_at = ctypes.string_at

        def on_record(_ctx: int | None, data: int, size: int) -> int:
            try:
                callback(decode(string_at(data, size)))
            except BaseException as error:  # noqa: BLE001  # see above: raised by consume()
                self._error = error
            self._left -= 1
            return 0 if self._left > 0 else _ENOUGH

        self._callback = RING_CALLBACK(on_record)
        self._lib = libbpf()
        self._ring = self._lib.ring_buffer__new(self._fd, self._callback, None, None)
        if not self._ring:
            raise failure(f"cannot map the ring {name}")

    def fileno(self) -> int:
        return self._fd

    def consume(self, most: int = ALL) -> int:
        """Hand at most ``most`` waiting records to the callback; how many there were. If that was the budget, `more`.

        ring_buffer__consume() alone ends when the ring is empty, so never for a reader slower than the writers. A
        callback that returns an error ends it on every libbpf (ring_buffer__consume_n came with 1.5). An epoll goes on
        to report the ring, unless it was read without having been reported. Inside the callback nothing is read.
        """
        if self._left > 0 or most <= 0:
            return 0
        self._left = most
        try:
            status: int = self._lib.ring_buffer__consume(self._ring)
        finally:
            taken, self._left = most - self._left, 0
        self.more = status == _ENOUGH
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if status < 0 and not self.more:
            raise MonitorError(f"a ring cannot be read: {os.strerror(-status)}", "report this")
        return taken

    def close(self) -> None:
        if self._ring:
            self._lib.ring_buffer__free(self._ring)
            self._ring = None
            os.close(self._fd)


class Counters:
    """The programs' own counters, summed over CPUs. The map is kept open: its pin may go while the programs work."""

    def __init__(self, pins: Pins) -> None:
        self._table = pins.map("counts", 8 * int(libbpf().libbpf_num_possible_cpus()))

    def close(self) -> None:
        os.close(self._table.fd)

    def now(self) -> dict[str, int]:
        """``emitted_*`` and ``lost_*`` per kind, ``evaluated``, ``swept``, and the others of `COUNTS`."""
        raw = {name: self._table.lookup(at.to_bytes(4, sys.byteorder)) for at, name in enumerate(COUNTS)}
        return {name: sum(memoryview(each).cast("Q")) if each else 0 for name, each in raw.items()}
