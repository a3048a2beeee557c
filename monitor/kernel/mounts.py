"""What the start needs of the kernel: bpffs for pins, mounted when missing; the machine's cgroup namespace (a container
on cgroup v2 gets one of its own from its runtime).
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from monitor.errors import CannotError
from monitor.kernel.cgroupfs import MOUNTS, mount_table
from monitor.kernel.pins import BPFFS

#: With systemd's mode: by default every user may make directories in it.
_OPTIONS = "mode=0700"
MOUNT_BPFFS = f"mount -t bpf -o {_OPTIONS} bpf {BPFFS}"


def is_mounted(table: str | Path = MOUNTS) -> bool:
    """Whether bpffs is what its path shows now (the last one mounted there)."""
    return {point: kind for point, kind, _ in mount_table(table)}.get(BPFFS) == "bpf"


def ensure() -> None:
    """Mount bpffs where it is missing; CannotError with the exact command when the kernel refuses."""
    if is_mounted():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"bpf", os.fsencode(BPFFS), b"bpf", ctypes.c_ulong(0), _OPTIONS.encode()) != 0:
        reason = os.strerror(ctypes.get_errno())
        problem = f"bpf is not mounted at {BPFFS} (pinned BPF programs and maps), and mounting it failed: {reason}"
        raise CannotError(problem, f"run as root: {MOUNT_BPFFS}")


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
