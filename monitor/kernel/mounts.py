"""The two filesystems the kernel side needs, bpffs for pins and tracefs for tracepoints: mounted when missing."""

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
    source: str
    path: Path
    purpose: str
    options: str = ""

    @property
    def command(self) -> str:
        options = f"-o {self.options} " if self.options else ""
        return f"mount -t {self.fstype} {options}{self.source} {self.path}"


#: With systemd's mode: by default every user may make directories in it.
BPFFS = Mount("bpf", "bpf", Path("/sys/fs/bpf"), "pinned BPF programs and maps", "mode=0700")
TRACEFS = Mount("tracefs", "tracefs", Path("/sys/kernel/tracing"), "tracepoints")


def is_mounted(mount: Mount, table: str | Path = MOUNTS) -> bool:
    """Whether a filesystem of the right type is what ``mount.path`` shows now (the last one mounted there)."""
    return {point: kind for point, kind, _ in mount_table(table)}.get(mount.path) == mount.fstype


def missing() -> list[Mount]:
    """Which of the two are not mounted."""
    return [mount for mount in (BPFFS, TRACEFS) if not is_mounted(mount)]


def ensure() -> list[Mount]:
    """Mount what is missing and return it; CannotError with the exact command when the kernel refuses."""
    mounted = missing()
    for mount in mounted:
        _mount(mount)
    return mounted


def _mount(mount: Mount) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    source, path, kind = mount.source.encode(), os.fsencode(mount.path), mount.fstype.encode()
    result = libc.mount(source, path, kind, ctypes.c_ulong(0), mount.options.encode() or None)
    if result != 0:
        reason = os.strerror(ctypes.get_errno())
        raise CannotError(
            f"{mount.fstype} is not mounted at {mount.path} ({mount.purpose}), and mounting it failed: {reason}",
            f"run as root: {mount.command}",
        )
