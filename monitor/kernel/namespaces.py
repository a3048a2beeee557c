"""The cgroup namespace of the machine: a container on cgroup v2 gets one of its own from its runtime."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from monitor.errors import CannotError

_CLONE_NEWCGROUP = 0x0200_0000


def join_machine_cgroups(init: Path = Path("/proc/1")) -> bool:
    """Have /proc/PID/cgroup name cgroups as the machine does; whether that took a change of namespace (setns(2)).

    From a namespace below the cgroups of processes outside begin with ``/..``, and no pod would be found. ``init`` is a
    process in the machine's: 1, with the machine's pids (``hostPID``). CannotError where it cannot be joined.
    """
    paths = [line.split(":", 2)[2] for line in (init / "cgroup").read_text(errors="surrogateescape").splitlines()]
    if not any(path == "/.." or path.startswith("/../") for path in paths):
        return False
    remedy = (
        "give it CAP_SYS_ADMIN and CAP_SYS_PTRACE (capabilities.add), or start it there (docker run --cgroupns host)"
    )
    try:
        fd = os.open(init / "ns/cgroup", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CannotError(f"the machine's cgroup namespace: {init}/ns/cgroup: {error.strerror}", remedy) from error
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(fd, _CLONE_NEWCGROUP) != 0:
            raise CannotError(f"the machine's cgroup namespace: {os.strerror(ctypes.get_errno())}", remedy)
    finally:
        os.close(fd)
    return True
