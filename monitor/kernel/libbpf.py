"""Calls of BPF by ctypes: libbpf, and two system calls that it does not do alike in all its releases.

`bpf(BPF_PROG_LOAD)` to find out whether that is allowed, and `perf_event_open` for a kprobe. Both are the kernel's own
interface (include/uapi/linux/bpf.h, perf_event.h), the same on every release that has them.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import struct
from contextlib import suppress
from functools import cache
from pathlib import Path

from monitor.errors import CannotError, MonitorError, remedy_of

RING_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class RunOpts(ctypes.Structure):
    """struct bpf_test_run_opts (libbpf 0.2 and later; a newer libbpf reads only `sz` bytes)."""

    _fields_ = [
        ("sz", ctypes.c_size_t),
        *((name, ctypes.c_void_p) for name in ("data_in", "data_out")),
        *((name, ctypes.c_uint32) for name in ("data_size_in", "data_size_out")),
        *((name, ctypes.c_void_p) for name in ("ctx_in", "ctx_out")),
        *((name, ctypes.c_uint32) for name in ("ctx_size_in", "ctx_size_out", "retval")),
        *((name, ctypes.c_uint32) for name in ("repeat", "duration", "flags", "cpu", "batch_size")),
    ]


@cache
def libbpf() -> ctypes.CDLL:
    """The library, loaded once. Raises CannotError with the remedy when it is missing."""
    for name in ("libbpf.so.1", "libbpf.so.0"):
        try:
            lib = ctypes.CDLL(name, use_errno=True)
        except OSError:
            continue
        lib.ring_buffer__new.restype = ctypes.c_void_p
        lib.ring_buffer__new.argtypes = [ctypes.c_int, RING_CALLBACK, ctypes.c_void_p, ctypes.c_void_p]
        lib.ring_buffer__consume.argtypes = [ctypes.c_void_p]
        lib.ring_buffer__free.argtypes = [ctypes.c_void_p]
        lib.ring_buffer__free.restype = None
        lib.bpf_map_update_elem.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64]
        lib.bpf_map_lookup_elem.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        lib.bpf_map_delete_elem.argtypes = [ctypes.c_int, ctypes.c_void_p]
        lib.bpf_obj_get.argtypes = [ctypes.c_char_p]
        lib.bpf_obj_pin.argtypes = [ctypes.c_int, ctypes.c_char_p]
        lib.bpf_raw_tracepoint_open.argtypes = [ctypes.c_char_p, ctypes.c_int]
        return lib
    raise CannotError("libbpf is not installed", "apt-get install libbpf1 (Debian 12+) or libbpf0")


def failure(what: str, number: int | None = None, remedy: str = "") -> MonitorError:
    """The error for an errno, by default that of libbpf's last call."""
    number = ctypes.get_errno() if number is None else number
    text = f"{what}: {os.strerror(number)}"
    if number in (errno.EPERM, errno.EACCES):
        return CannotError(text, PRIVILEGES)
    remedy = remedy or "`outrace unload` and start again; or another hook (`--hooks`)"
    return MonitorError(text, remedy_of(number, remedy))


#: System call numbers of bpf and perf_event_open.
_NUMBERS = {"x86_64": (321, 298), "aarch64": (280, 241)}
_BPF_PROG_LOAD, _PROG_TYPE_RAW_TRACEPOINT = 5, 17
#: union bpf_attr of BPF_PROG_LOAD: type, instructions, licence, log, version, flags, name.
_LOAD = struct.Struct("=II QQ II QII 16s")
#: struct perf_event_attr up to config2 (PERF_ATTR_SIZE_VER1).
_EVENT = struct.Struct("=II QQ QQQ II QQ")
_EVENT_IOC_SET_BPF, _EVENT_IOC_ENABLE = 0x40042408, 0x2400
_FLAG_FD_CLOEXEC = 8
PRIVILEGES = "run as root with CAP_BPF and CAP_PERFMON"
#: r0 = 0; exit
_NOTHING = bytes.fromhex("b7000000000000009500000000000000")
KPROBE_PMU = Path("/sys/bus/event_source/devices/kprobe/type")


def _call(which: int, *arguments: object) -> int:
    numbers = _NUMBERS.get(os.uname().machine)
    if numbers is None:
        raise CannotError(f"kprobe is not supported on {os.uname().machine}", "use another of --hooks")
    libc = ctypes.CDLL(None, use_errno=True)
    result: int = libc.syscall(ctypes.c_long(numbers[which]), *arguments)
    return result


def load_problem() -> str:
    """Why this process may load no program that traces ("" if it may), found out by loading one that does nothing:
    compiling those that do something takes a second.
    """
    with suppress(OSError, ValueError):  # no CAP_SYS_RESOURCE; before Linux 5.11 memory of BPF counts against this
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    code, licence = ctypes.create_string_buffer(_NOTHING, len(_NOTHING)), ctypes.create_string_buffer(b"GPL")
    program = _PROG_TYPE_RAW_TRACEPOINT, len(_NOTHING) // 8, ctypes.addressof(code), ctypes.addressof(licence)
    attr = ctypes.create_string_buffer(_LOAD.pack(*program, 0, 0, 0, 0, 0, b"nothing"), _LOAD.size)
    try:
        fd = _call(0, ctypes.c_long(_BPF_PROG_LOAD), attr, ctypes.c_long(_LOAD.size))
    except CannotError:
        return ""  # not known how to ask on this machine
    if fd < 0:
        return os.strerror(ctypes.get_errno())
    os.close(fd)
    return ""


def attach_kprobe(function: str, prog: int) -> int:
    """Run ``prog`` whenever a kernel function is entered, until the descriptor is closed. Raises MonitorError."""
    try:
        kind = int(KPROBE_PMU.read_text())
    except FileNotFoundError:
        raise CannotError("this kernel has no kprobes", "run a kernel with CONFIG_KPROBES=y") from None
    except OSError as error:  # for example too many open files
        raise _kprobe_refused(function, error.errno or 0) from None
    name = ctypes.create_string_buffer(function.encode())
    attr = bytearray(_EVENT.pack(kind, _EVENT.size, 0, 1, 0, 0, 0, 1, 0, ctypes.addressof(name), 0))
    buffer = (ctypes.c_char * len(attr)).from_buffer(attr)
    # On CPU 0 for no process: the kernel runs the program on every CPU, and only the counting would be CPU 0's alone.
    fd = _call(1, buffer, ctypes.c_long(-1), ctypes.c_long(0), ctypes.c_long(-1), ctypes.c_long(_FLAG_FD_CLOEXEC))
    if fd < 0:
        raise _kprobe_refused(function, ctypes.get_errno())
    try:
        fcntl.ioctl(fd, _EVENT_IOC_SET_BPF, prog)
        fcntl.ioctl(fd, _EVENT_IOC_ENABLE, 0)
    except OSError as error:
        os.close(fd)
        raise _kprobe_refused(function, error.errno or 0) from None
    return fd


def _kprobe_refused(function: str, number: int) -> MonitorError:
    remedy = "use another of --hooks; the kernel's log (dmesg) may say why"
    if number == errno.EINVAL:
        remedy = "see /sys/kernel/debug/kprobes/blacklist, and use another of --hooks"
    return failure(f"cannot attach a kprobe to {function}", number, remedy)
