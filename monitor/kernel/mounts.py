"""What the start needs of the kernel: bpffs for pins and tracefs for tracepoints, mounted when missing; the
machine's cgroup namespace (a container on cgroup v2 gets one of its own from its runtime).
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from monitor.errors import CannotError
from monitor.kernel.cgroupfs import MOUNTS, mount_table


@dataclass(frozen=True)
class Mount:
    """A filesystem that must be mounted at ``path``."""

    fstype: str
    path: Path
    purpose: str
    options: str = ""

    @property
    def command(self) -> str:
        options = f"-o {self.options} " if self.options else ""
        return f"mount -t {self.fstype} {options}{self.fstype} {self.path}"


#: With systemd's mode: by default every user may make directories in it.
BPFFS = Mount("bpf", Path("/sys/fs/bpf"), "pinned BPF programs and maps", "mode=0700")
TRACEFS = Mount("tracefs", Path("/sys/kernel/tracing"), "tracepoints")


def is_mounted(mount: Mount, table: str | Path = MOUNTS) -> bool:
    """Whether a filesystem of the right type is what ``mount.path`` shows now (the last one mounted there)."""
    return {point: kind for point, kind, _ in mount_table(table)}.get(mount.path) == mount.fstype


def ensure() -> list[Mount]:
    """Mount what is missing and return it; CannotError with the exact command when the kernel refuses."""
    missing = [mount for mount in (BPFFS, TRACEFS) if not is_mounted(mount)]
    for mount in missing:
        _mount(mount)
    return missing


def _mount(mount: Mount) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    kind, path = mount.fstype.encode(), os.fsencode(mount.path)
    if libc.mount(kind, path, kind, ctypes.c_ulong(0), mount.options.encode() or None) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise CannotError(
            f"{mount.fstype} is not mounted at {mount.path} ({mount.purpose}), and mounting it failed: {reason}",
            f"run as root: {mount.command}",
        )


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
