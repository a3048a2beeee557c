"""Calls of BPF by ctypes: libbpf, and two system calls that BCC and libbpf do not do alike in all their releases.

`bpf(BPF_PROG_LOAD)` for a program of type TRACING (BCC derives its target from the name of the function, by rules that
changed), and `perf_event_open` for a kprobe. Both are the kernel's own interface (include/uapi/linux/bpf.h,
perf_event.h), the same on every release that has them.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import struct
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


def failure(what: str) -> MonitorError:
    """The error for the errno of libbpf's last call."""
    number = ctypes.get_errno()
    text = f"{what}: {os.strerror(number)}"
    if number in (errno.EPERM, errno.EACCES):
        return CannotError(text, PRIVILEGES)
    if number == errno.EBUSY:  # a program of fentry is attached once
        return MonitorError(text, "stop the outrace that runs on the same state directory")
    return MonitorError(text, remedy_of(number, "`outrace unload` and start again; or another hook (`--hooks`)"))


#: System call numbers of bpf and perf_event_open.
_NUMBERS = {"x86_64": (321, 298), "aarch64": (280, 241)}
_BPF_PROG_LOAD, _BPF_RAW_TRACEPOINT_OPEN = 5, 17
_PROG_TYPE_RAW_TRACEPOINT = 17
_PROG_TYPE_TRACING = 26
_TRACE_FEXIT = 25
#: union bpf_attr of BPF_PROG_LOAD up to attach_btf_id, which is all a kernel of 5.5 or later has to know.
_LOAD = struct.Struct("=II QQ II QI I 16s II II QI I QI I")
#: struct perf_event_attr up to config2 (PERF_ATTR_SIZE_VER1).
_EVENT = struct.Struct("=II QQ QQQ II QQ")
_EVENT_IOC_SET_BPF, _EVENT_IOC_ENABLE = 0x40042408, 0x2400
_FLAG_FD_CLOEXEC = 8
_LOG_BYTES = 1 << 22
PRIVILEGES = "run as root with CAP_BPF and CAP_PERFMON"
#: r0 = 0; exit
_NOTHING = bytes.fromhex("b7000000000000009500000000000000")
KPROBE_PMU = Path("/sys/bus/event_source/devices/kprobe/type")


def _call(which: int, *arguments: object) -> int:
    numbers = _NUMBERS.get(os.uname().machine)
    if numbers is None:
        raise CannotError(f"fentry and kprobe are not supported on {os.uname().machine}", "use another of --hooks")
    libc = ctypes.CDLL(None, use_errno=True)
    result: int = libc.syscall(ctypes.c_long(numbers[which]), *arguments)
    return result


def fexit_problem(function: int) -> str:
    """Why this kernel refuses programs at the return of a function ("" if it takes them), by loading one that does
    nothing and attaching it twice, as is done whenever a threshold comes near. That needs Linux 5.13 with
    CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS; some machines have it and forbid it (seen with 6.18 of a hosted VM: EPERM).
    """
    try:
        prog = load_fexit("nothing", _NOTHING, function, loud=False)
    except MonitorError as error:
        return error.message.removeprefix("cannot load nothing: ")
    try:
        for turn in ("", " a second time, which takes Linux 5.13"):
            link = attach_fexit(prog)
            if link < 0:
                return f"it cannot be attached{turn} ({os.strerror(ctypes.get_errno())})"
            os.close(link)
    finally:
        os.close(prog)
    return ""


def attach_fexit(prog: int) -> int:
    """BPF_RAW_TRACEPOINT_OPEN without a name: a program of type TRACING knows since it was loaded where it belongs. A
    descriptor that detaches it when it is closed, or -1 with errno set.
    """
    return _bpf(_BPF_RAW_TRACEPOINT_OPEN, bytearray(struct.pack("=QII", 0, prog, 0)))


def _bpf(command: int, attr: bytearray) -> int:
    buffer = (ctypes.c_char * len(attr)).from_buffer(attr)
    return _call(0, ctypes.c_long(command), buffer, ctypes.c_long(len(attr)))


def load_problem() -> str:
    """Why this process may load no program that traces ("" if it may), found out by loading one that does nothing:
    compiling those that do something takes a second.
    """
    try:
        fd = _load(_PROG_TYPE_RAW_TRACEPOINT, _NOTHING, "nothing")
    except CannotError:
        return ""  # not known how to ask on this machine
    if fd < 0:
        return os.strerror(ctypes.get_errno())
    os.close(fd)
    return ""


def _load(
    kind: int, instructions: bytes, name: str, function: int = 0, log: ctypes.Array[ctypes.c_char] | None = None
) -> int:
    """BPF_PROG_LOAD; the descriptor, or -1 with errno set. ``function``: at whose return a TRACING program runs."""
    code = ctypes.create_string_buffer(instructions, len(instructions))
    licence = ctypes.create_string_buffer(b"GPL")
    attr = bytearray(_LOAD.size + 8)
    _LOAD.pack_into(
        attr, 0,
        kind, len(instructions) // 8, ctypes.addressof(code), ctypes.addressof(licence),
        int(log is not None), len(log) if log else 0, ctypes.addressof(log) if log else 0, 0, 0, name.encode()[:15],
        0, _TRACE_FEXIT if function else 0, 0, 0, 0, 0, 0, 0, 0, function,
    )  # fmt: skip
    for _ in range(2):
        fd = _bpf(_BPF_PROG_LOAD, attr)
        if fd >= 0 or ctypes.get_errno() != errno.EPERM or not _may_lock_more():
            break
    return fd


def _may_lock_more() -> bool:
    """Raise RLIMIT_MEMLOCK, which memory of BPF counts against before Linux 5.11; whether there is any use in that."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return False
    number = ctypes.get_errno()
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (OSError, ValueError):  # no CAP_SYS_RESOURCE
        ctypes.set_errno(number)
        return False
    return True


def load_fexit(name: str, instructions: bytes, function: int, *, loud: bool = True) -> int:
    """Load a program that runs when a kernel function returns; its descriptor. ``function`` is its number in BTF.
    Raises MonitorError with the last line of the verifier's log; all of it goes to descriptor 2 if ``loud``.
    """
    log = ctypes.create_string_buffer(_LOG_BYTES)
    for level in (0, 1):  # a log costs time, and one that does not fit makes the load fail
        fd = _load(_PROG_TYPE_TRACING, instructions, name, function, log if level else None)
        if fd >= 0:
            return fd
    number = ctypes.get_errno()
    output = log.value.decode(errors="replace")
    if loud:
        os.write(2, output.encode())
    last = output.strip().splitlines()[-1:] or [""]
    raise MonitorError(f"cannot load {name}: {os.strerror(number)}" + (f" ({last[0]})" if last[0] else ""))


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
    text = f"cannot attach a kprobe to {function}: {os.strerror(number)}"
    if number in (errno.EPERM, errno.EACCES):
        return CannotError(text, PRIVILEGES)
    if number == errno.EINVAL:
        return MonitorError(text, "see /sys/kernel/debug/kprobes/blacklist, and use another of --hooks")
    return MonitorError(text, remedy_of(number, "use another of --hooks; the kernel's log (dmesg) may say why"))
