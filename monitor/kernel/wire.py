"""Decoding of the records that the BPF programs write (bpf/wire.h): one `struct` format each, which a test checks."""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

#: si_code of a signal that the kernel itself sent: the OOM killer, or a BPF program.
SI_KERNEL = 128
PAGE = mmap.PAGESIZE

#: struct event: see bpf/wire.h
EVENT = struct.Struct("=QQQqqQqIIIIII")
#: struct oom_event
OOM = struct.Struct("=QQQQQQqqQqqqqQIIIIIIIiiI16s16s")
#: ... as the fields of `OomEvent`, and its flags.
_OOM_FIELDS = (
    *("ts_ns", "victim_cgroup", "invoker_cgroup", "oom_cgroup", "oom_usage", "oom_limit", "oom_inactive_file"),
    *("oom_active_file", "total_vm", "anon_rss", "file_rss", "shmem_rss", "swap", "pgtables", "kind", "flags"),
    *("victim_pid", "victim_tid", "invoker_pid", "invoker_tid", "uid", "oom_score_adj", "si_code", "domain"),
    *("victim_comm", "invoker_comm"),
)
_IN_PAGES = _OOM_FIELDS[4:13]  # usage to swap
#: struct proc_event: a process that appeared in a watched pod, by fork, by exec, or moved in.
PROC = struct.Struct("=QQIIII")
#: struct victim
VICTIM = struct.Struct("=QQQQ")
#: struct eviction
EVICTION = struct.Struct("=QQQQQQQQQ")

CROSS, STEP, SIGNAL = 1, 2, 3
OOM_MARK, OOM_KILL, OOM_EXIT, OOM_RECLAIM = 1, 2, 3, 4
OOM_EXITING, OOM_MEMSW, OOM_BY_ITSELF = 1, 2, 4
_OOM_KINDS = {OOM_MARK: "mark", OOM_KILL: "kill", OOM_EXIT: "exit", OOM_RECLAIM: "reclaim"}

_RECORDS = ("cross", "step", "signal", "oom", "kill", "exit", "proc", "reclaim")
#: enum count, in order
COUNTS = (
    "evaluated",
    *(f"{what}_{record}" for record in _RECORDS for what in ("emitted", "lost")),
    *("swept", "sweep_restarted", "uncounted"),
)


#: A crossing, a step or a signal: what `EVENT` unpacks.
Event = tuple[int, ...]


class OomEvent(NamedTuple):
    """One step of an OOM kill: ``mark`` (oom:mark_victim), ``kill`` (SIGKILL generated), ``exit`` (last thread left);
    or ``reclaim`` (the invoker has to free memory of ``oom_cgroup`` before there is any), sampled.

    Sizes in bytes, times CLOCK_MONOTONIC ns. RSS parts come from the kernel's approximate per-process counters.
    ``oom_cgroup`` is the id of the memory cgroup whose limit was hit, 0 for the machine ("global"); its file cache is
    known where it is a watched domain.
    A process that was not killed has ``left``: only its identity and ``pgtables`` are known.
    ``exiting``: the task was marked while already dying; the kernel killed nothing.
    What is not known without BPF is 0, "" or None. From ``pod`` on: what the hot process adds to the kernel's record
    before it sends it to the helper (`monitor.link.messages`).
    """

    kind: str
    ts_ns: int
    victim_pid: int = 0
    victim_tid: int = 0
    victim_comm: str = ""
    victim_cgroup: int = 0
    domain: int | None = None
    uid: int = 0
    oom_score_adj: int = 0
    anon_rss: int = 0
    file_rss: int = 0
    shmem_rss: int = 0
    swap: int = 0
    total_vm: int = 0
    pgtables: int = 0
    invoker_pid: int = 0
    invoker_tid: int = 0
    invoker_comm: str = ""
    invoker_cgroup: int = 0
    oom_cgroup: int = 0
    oom_usage: int = 0
    oom_limit: int = 0
    oom_inactive_file: int | None = None
    oom_active_file: int | None = None
    memsw: bool = False
    exiting: bool = False
    si_code: int = 0
    pod: str | None = None  # uid of the pod that the victim is in
    pod_name: str | None = None  # namespace/name of it
    while_away: bool = False  # no daemon read the records when it was written
    order: Sequence[Sequence[Any]] = ()  # of a mark: as in `decision`
    missing: Sequence[str] = ()  # without BPF: what could not be known of it
    source: str = ""  # without BPF and without the log: the file of the counter that counted it
    resent: bool = False  # as in `Crossing`

    @classmethod
    def decode(cls, data: bytes) -> OomEvent:
        """Raises struct.error (too short) or KeyError (unknown kind)."""
        values: dict[str, Any] = dict(zip(_OOM_FIELDS, OOM.unpack_from(data), strict=True))
        flags, kind = values.pop("flags"), _OOM_KINDS[values["kind"]]
        values |= {name: values[name] * PAGE for name in _IN_PAGES}
        values |= {name: None for name in ("oom_inactive_file", "oom_active_file") if values[name] < 0}
        values |= {name: _comm(values[name]) for name in ("victim_comm", "invoker_comm")}
        values["kind"] = "left" if flags & OOM_BY_ITSELF else kind
        values["domain"] = values["domain"] - 1 if values["domain"] else None
        return cls(**values, memsw=bool(flags & OOM_MEMSW), exiting=bool(flags & OOM_EXITING))


def _comm(raw: bytes) -> str:
    return printable(raw.split(b"\0", 1)[0])


#: A backslash of the name itself, where it would be read as the beginning of an escape that `printable` writes.
_LIKE_AN_ESCAPE = re.compile(rb"\\(?=x(?:[01][0-9a-f]|5c|7f|[89a-f][0-9a-f])|u[0-9a-f]{4}|U[0-9a-f]{8})")


def printable(name: bytes) -> str:
    """The name of a process or a cgroup, which its owner may make of any bytes: control characters (``\\x1b``), bytes
    that are no UTF-8 (``\\xff``) and characters that turn text around (``\\u202e``) as escapes, so that it is no other
    line or field, and does nothing to a terminal. Two names never give one text (``\\x5c`` is a backslash that would
    make them); systemd's own ``\\x2d`` stays as it is.
    """
    text = _LIKE_AN_ESCAPE.sub(rb"\\x5c", name).decode("utf-8", "backslashreplace")
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(char: str) -> str:
    number = ord(char)
    if number < 0x80:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"  # U+0085 is not the byte 0x85
