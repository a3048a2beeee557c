"""libbpf by ctypes: the library, the types of its calls, and its errors as ours."""

from __future__ import annotations

import ctypes
import errno
import os

from monitor.errors import CannotError, MonitorError, remedy_of

RING_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class RunOpts(ctypes.Structure):
    """struct bpf_test_run_opts (libbpf 0.2 and later; a newer libbpf reads only `sz` bytes)."""

    _fields_ = [
        ("sz", ctypes.c_size_t),
        ("data_in", ctypes.c_void_p),
        ("data_out", ctypes.c_void_p),
        ("data_size_in", ctypes.c_uint32),
        ("data_size_out", ctypes.c_uint32),
        ("ctx_in", ctypes.c_void_p),
        ("ctx_out", ctypes.c_void_p),
        ("ctx_size_in", ctypes.c_uint32),
        ("ctx_size_out", ctypes.c_uint32),
        ("retval", ctypes.c_uint32),
        ("repeat", ctypes.c_int),
        ("duration", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("cpu", ctypes.c_uint32),
        ("batch_size", ctypes.c_uint32),
    ]


def _load_libbpf() -> ctypes.CDLL:
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


_lib: ctypes.CDLL | None = None


def libbpf() -> ctypes.CDLL:
    """The library, loaded once. Raises CannotError with the remedy when it is missing."""
    global _lib
    if _lib is None:
        _lib = _load_libbpf()
    return _lib


def failure(what: str) -> MonitorError:
    """The error for the errno of libbpf's last call."""
    number = ctypes.get_errno()
    text = f"{what}: {os.strerror(number)}"
    if number in (errno.EPERM, errno.EACCES):
        return CannotError(text, "run as root with CAP_BPF and CAP_PERFMON")
    if number == errno.EBUSY:  # a program of fentry is attached once
        return MonitorError(text, "stop the outrace that runs on the same state directory")
    return MonitorError(text, remedy_of(number, "`outrace unload` and start again; or `--hooks` with a lower rung"))
