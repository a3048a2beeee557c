"""Makes system calls of the hot process fail: imported by every Python that finds this directory on its path.

SIGUSR1 has it read the plan, a JSON file named in OUTRACE_FAULT: ``call`` (a name below), ``errno``, ``times``, and
``procs`` (a cgroup.procs) or ``path`` where only calls about these fail. How often one failed stands in the file with
``.hits`` after its name.
Only Python's own calls can be reached like this; those of libbpf cannot.
"""

import builtins
import io
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

_plan: dict[str, Any] = {}
_hits = 0
_pid_of: dict[int, int] = {}  # pidfd -> pid
_open, _pwrite, _strerror = os.open, os.pwrite, os.strerror


def _load(*_: object) -> None:
    global _plan, _hits
    fd = _open(os.environ["OUTRACE_FAULT"], os.O_RDONLY)
    _plan, _hits = json.loads(_real_read(fd, 65536)), 0
    os.close(fd)
    _say()


def _say() -> None:
    fd = _open(os.environ["OUTRACE_FAULT"] + ".hits", os.O_WRONLY | os.O_CREAT, 0o600)
    _pwrite(fd, b"%9d\n" % _hits, 0)
    os.close(fd)


def _listed(procs: str) -> set[int]:
    fd = _open(procs, os.O_RDONLY)
    try:
        return set(map(int, _real_read(fd, 65536).split()))
    finally:
        os.close(fd)


def _fail(name: str, about: object) -> None:
    """Raise what is planned for this call, if anything is."""
    global _hits
    plan = _plan  # a signal may bring another one at any moment
    if plan.get("call") != name or _hits >= plan["times"]:
        return
    if "procs" in plan and about not in _listed(plan["procs"]):
        return
    if "path" in plan and plan["path"] not in str(about):
        return
    _hits += 1
    _say()
    raise OSError(plan["errno"], _strerror(plan["errno"]))


def _faulty(name: str, real: Callable[..., Any], about: Callable[..., object]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        _fail(name, about(*args))
        return real(*args, **kwargs)

    return call


def _first(*args: object) -> object:
    return args[0] if args else None


class _Poller:
    """Of `select.epoll` or `select.poll`."""

    def __init__(self, kind: str, real: Any) -> None:
        self._kind, self._real = kind, real

    def __getattr__(self, name: str) -> Any:
        return _faulty(f"{self._kind}.{name}", getattr(self._real, name), _first)


_real_read, _real_epoll, _real_poll, _real_pidfd_open = os.read, select.epoll, select.poll, os.pidfd_open


def _pidfd_open(pid: int, flags: int = 0) -> int:
    _fail("pidfd_open", pid)
    fd = _real_pidfd_open(pid, flags)
    _pid_of[fd] = pid
    return fd


def _install() -> None:
    for name in ("open", "read", "pread", "stat", "scandir", "getsid", "posix_spawn"):
        setattr(os, name, _faulty(name, getattr(os, name), _first))
    os.pidfd_open = _pidfd_open
    builtins.open = io.open = _faulty("open", builtins.open, _first)
    signal.pidfd_send_signal = _faulty("signal", signal.pidfd_send_signal, lambda fd, *_: _pid_of.get(fd))
    socket.socketpair = _faulty("socketpair", socket.socketpair, _first)
    for name in ("send", "recv"):
        setattr(socket.socket, name, _faulty(name, getattr(socket.socket, name), _first))
    select.epoll = lambda: _Poller("epoll", _real_epoll())  # type: ignore[misc, assignment]
    select.poll = lambda: _Poller("poll", _real_poll())
    signal.signal(signal.SIGUSR1, _load)


if sys.orig_argv[-1:] == ["monitor.hot.main"] and "OUTRACE_FAULT" in os.environ:
    _install()
