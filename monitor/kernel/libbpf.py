"""Calls of BPF by ctypes: libbpf 1, and `perf_event_open` for a kprobe, which libbpf has for its own objects alone."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from functools import cache
from pathlib import Path
from typing import Any

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


_INT, _U32, _TEXT, _POINTER = ctypes.c_int, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_void_p
#: Function -> result, arguments.
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ring_buffer__new": (_POINTER, _INT, RING_CALLBACK, _POINTER, _POINTER),
    "ring_buffer__consume": (_INT, _POINTER),
    "ring_buffer__free": (None, _POINTER),
    "bpf_map_update_elem": (_INT, _INT, _POINTER, _POINTER, ctypes.c_uint64),
    "bpf_map_lookup_elem": (_INT, _INT, _POINTER, _POINTER),
    "bpf_map_delete_elem": (_INT, _INT, _POINTER),
    "bpf_obj_get": (_INT, _TEXT),
    "bpf_obj_pin": (_INT, _INT, _TEXT),
    "bpf_raw_tracepoint_open": (_INT, _TEXT, _INT),
    "bpf_prog_load": (_INT, _INT, _TEXT, _TEXT, _TEXT, ctypes.c_size_t, _POINTER),
    "btf__parse_raw": (_POINTER, _TEXT),
    "btf__free": (None, _POINTER),
    "btf__type_cnt": (_INT, _POINTER),
    "btf__type_by_id": (_POINTER, _POINTER, _U32),
    "btf__name_by_offset": (_TEXT, _POINTER, _U32),
    "btf__find_by_name_kind": (_INT, _POINTER, _TEXT, _U32),
}


@cache
def libbpf() -> ctypes.CDLL:
    """The library, loaded once. Raises CannotError with the remedy when it is missing."""
    try:
        lib = ctypes.CDLL("libbpf.so.1", use_errno=True)
    except OSError:
        raise CannotError("libbpf is not installed", "apt-get install libbpf1") from None
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def failure(what: str, number: int | None = None, remedy: str = "") -> MonitorError:
    """The error for an errno, by default that of libbpf's last call."""
    number = ctypes.get_errno() if number is None else number
    text = f"{what}: {os.strerror(number)}"
    if number in (errno.EPERM, errno.EACCES):
        return CannotError(text, PRIVILEGES)
    remedy = remedy or "`outrace unload` and start again; or another hook (`--hooks`)"
    return MonitorError(text, remedy_of(number, remedy))


#: System call numbers of perf_event_open.
_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
#: struct perf_event_attr up to config2 (PERF_ATTR_SIZE_VER1).
_EVENT = struct.Struct("=II QQ QQQ II QQ")
_EVENT_IOC_SET_BPF, _EVENT_IOC_ENABLE = 0x40042408, 0x2400
_FLAG_FD_CLOEXEC = 8
PRIVILEGES = "run as root with CAP_BPF and CAP_PERFMON"
_PROG_TYPE_RAW_TRACEPOINT = 17
#: r0 = 0; exit
_NOTHING = bytes.fromhex("b7000000000000009500000000000000")
KPROBE_PMU = Path("/sys/bus/event_source/devices/kprobe/type")


def load_problem() -> str:
    """Why this process may load no program that traces ("" if it may), found out by loading one that does nothing:
    compiling those that do something takes a second.
    """
    fd = libbpf().bpf_prog_load(_PROG_TYPE_RAW_TRACEPOINT, b"nothing", b"GPL", _NOTHING, len(_NOTHING) // 8, None)
    if fd < 0:
        return os.strerror(ctypes.get_errno())
    os.close(fd)
    return ""


def attach_kprobe(function: str, prog: int) -> int:
    """Run ``prog`` whenever a kernel function is entered, until the descriptor is closed. Raises MonitorError."""
    call = _PERF_EVENT_OPEN.get(os.uname().machine)
    if call is None:
        raise CannotError(f"kprobe is not supported on {os.uname().machine}", "use another of --hooks")
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
    arguments = map(ctypes.c_long, (-1, 0, -1, _FLAG_FD_CLOEXEC))
    fd: int = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(call), buffer, *arguments)
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
