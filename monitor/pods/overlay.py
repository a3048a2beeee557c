"""The writable layer of a container: the upper directory of the overlay that its processes have as their root."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from monitor.errors import CannotError
from monitor.kernel import cgroup_procs, cgroupfs

#: Processes of a container that may end one after the other while its root is looked for.
_TRIES = 8


def upper_directory(cgroup: Path, proc: Path = Path("/proc")) -> Path | None:
    """The upper directory of the overlay that the processes of a container have as their root; None without one.

    The path is the container runtime's, valid where outrace sees the same files: on the node itself. In a user
    namespace of his own anybody mounts an overlay and names any path: that one counts only if it is mounted here too,
    as the runtime's is. Raises MonitorError.
    """
    own = _root_mount(proc / "self" / "mountinfo")
    for pid in cgroup_procs.processes(cgroup)[:_TRIES]:
        found = _root_mount(proc / str(pid) / "mountinfo")
        if found is None:
            continue  # it ended
        device, kind, options = found
        # Processes outside any container have the root of this one, which may be an overlay itself.
        if kind != "overlay" or own is None or device == own[0]:
            return None
        if not _is_the_runtimes(device, proc, pid):
            continue
        for option in options.split(","):
            key, _, value = option.partition("=")
            if key == "upperdir":
                path = Path(cgroupfs.unescape(value))
                return path if path.is_absolute() and _is_directory(path) else None
        return None  # read-only: a container without a writable layer
    return None


def _is_the_runtimes(device: str, proc: Path, pid: int) -> bool:
    """Whether who mounted this device was in no user namespace of his own."""

    def users(who: str) -> str:
        try:
            return os.readlink(proc / who / "ns" / "user")
        except OSError:
            return ""

    if users(str(pid)) == users("self"):
        return True
    try:
        with open(proc / "self" / "mountinfo", errors="surrogateescape") as file:
            return any(line.split(" ", 3)[2] == device for line in file)
    except FileNotFoundError:
        return False


def _root_mount(path: Path) -> tuple[str, str, str] | None:
    """(device, type, options of the file system) mounted on / according to a mountinfo; None if its process is gone."""
    found: tuple[str, str, str] | None = None
    try:
        with open(path, errors="surrogateescape") as file:
            for line in file:
                # 36 35 98:0 /mnt1 / rw,noatime master:1 - ext3 /dev/root rw,errors=continue (proc(5))
                before, _, after = line.rstrip("\n").partition(" - ")
                where, what = before.split(" "), after.split(" ")
                if where[4] == "/":
                    found = (where[2], what[0], what[2])  # the last one lies on top
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError as e:
        raise CannotError(f"cannot read {path}: {e.strerror}", "give outrace CAP_SYS_PTRACE") from e
    return found


def _is_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False  # of another mount namespace: not to be seen from here
