"""What the processes of a container show: a request that is not known, the pod's sandbox, the writable layer.

A pod names its processes as it likes, so a name alone is no evidence of a sandbox. Evidence is what a pod cannot give
itself: a cgroup of its own, and a parent outside the pod.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from monitor.errors import CannotError
from monitor.kernel import cgroup_procs, cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.procfs import Process

#: The name of the program that a pod's sandbox runs, and the oom_score_adj that the container runtime gives it.
_PAUSE, PAUSE_ADJ = "pause", -998
#: oom_score_adj the kubelet gives the containers of a Burstable pod (kubelet-eviction policy: max(3, ...), never 1000).
_BURSTABLE_ADJ = range(3, 1000)


def burstable_request(path: Path, mem_total: int) -> int | None:
    """The memory request of a container of a Burstable pod, in bytes, recovered from its processes' oom_score_adj; None
    while none has the kubelet's. ``mem_total``: bytes of the machine.
    """
    adjs: Counter[int] = Counter()
    for pid in cgroup_procs.processes(path):
        with Process(pid) as process:
            adj = process.oom_score_adj()
        if adj is not None and adj in _BURSTABLE_ADJ:
            adjs[adj] += 1
    # A process may raise its own value: so what most processes have, and of equals the highest.
    best, _ = max(adjs.items(), key=lambda item: (item[1], item[0]), default=(0, 0))
    return request_from_adj(best, mem_total) if best else None


def is_sandbox(hierarchy: Hierarchy, path: Path) -> bool:
    """Whether the cgroup is that of a pod's sandbox: one process is alone in it, of a program called pause, started
    from outside the pod (by the runtime's shim). A runtime that may not lower its oom_score_adj leaves it as it was.
    """
    pids = cgroup_procs.processes(path)
    if len(pids) != 1:
        return False
    with Process(pids[0]) as process:
        adj, exe = process.oom_score_adj(), process.exe()
        # Without CAP_SYS_PTRACE the program is not readable: then the name will do, with the score.
        named = process.comm() == _PAUSE and adj == PAUSE_ADJ if exe is None else Path(exe).name == _PAUSE
        if adj is None or not named:
            return False
        parent = process.parent()
    if not parent:
        return parent == 0  # of another pid namespace
    with Process(parent) as shim:
        above = shim.memory_cgroup(hierarchy)
    return above is None or not above.is_relative_to(path.parent)


def request_from_adj(adj: int, capacity: int) -> int:
    """The smallest memory request (bytes) that gives a Burstable container ``adj``: the kubelet truncates
    1000 - 1000*request/capacity. Up to capacity/1000 too low; 999 stands for none too, 3 for almost everything.
    """
    return -(-(1000 - adj) * capacity // 1000)


#: Processes of a container that may end one after the other while its root is looked for.
_TRIES = 8
#: Characters of a container's mountinfo: a runtime makes some 50 mounts. A user in a namespace of its own makes 100,000
#: (fs.mount-max) with paths of 4 KiB, of which each byte may be written as four: as a list they took 2 GB.
_MOST_MOUNTS = 1 << 20


def upper_directory(cgroup: Path, proc: Path = Path("/proc")) -> Path | None:
    """The upper directory of the overlay that the processes of a container have as their root; None without one.

    The path is the container runtime's, valid where outrace sees the same files: on the node itself. Any user mounts an
    overlay in a user namespace of its own and names any path: such an overlay counts only if it is mounted here too, as
    the runtime's is. Raises MonitorError.
    """
    own = _root_mount(proc / "self" / "mountinfo")
    for pid in cgroup_procs.processes(cgroup)[:_TRIES]:
        found = _root_mount(proc / str(pid) / "mountinfo", _MOST_MOUNTS)
        if found is None:
            continue  # it ended, or made a namespace of its own
        device, kind, options = found
        # Processes outside any container have the root of this one, which may be an overlay itself.
        if kind != "overlay" or own is None or device == own[0]:
            return None
        if not _is_the_runtimes(device, proc, pid):
            continue
        upper = next((option for option in options.split(",") if option.startswith("upperdir=")), None)
        if upper is None:
            return None  # read-only: a container without a writable layer
        path = Path(cgroupfs.unescape(upper.partition("=")[2]))
        # Of another mount namespace it is not to be seen from here.
        return path if path.is_absolute() and os.path.isdir(path) and not os.path.islink(path) else None
    return None


def _is_the_runtimes(device: str, proc: Path, pid: int) -> bool:
    """Whether an overlay is the runtime's: a process with it is in our user namespace, or it is mounted here too."""

    def users(process: str) -> str:
        try:
            return os.readlink(proc / process / "ns" / "user")
        except OSError:
            return ""

    return users(str(pid)) == users("self") or any(
        _fields(line)[1] == device for line in _lines(proc / "self" / "mountinfo")
    )


def _root_mount(path: Path, most: float = math.inf) -> tuple[str, str, str] | None:
    """(device, type, options of the file system) mounted on / according to a mountinfo; None if its process is gone, or
    if the file has more than ``most`` characters. Raises MonitorError.
    """
    found, size = None, 0
    for line in _lines(path):
        size += len(line)
        if size > most:
            return None
        where, *rest = _fields(line)
        if where == "/":
            found = rest  # the last one lies on top
    return (found[0], found[1], found[2]) if found else None


def _lines(path: Path) -> Iterator[str]:
    """Of a mountinfo; none if its process is gone. Raises MonitorError."""
    try:
        with open(path, errors="surrogateescape") as file:
            yield from file
    except (FileNotFoundError, ProcessLookupError):
        return
    except PermissionError as e:
        raise CannotError(f"cannot read {path}: {e.strerror}", "give outrace CAP_SYS_PTRACE") from e


def _fields(line: str) -> tuple[str, str, str, str]:
    """Mount point, device, type and options in a line of a mountinfo, such as this of proc(5):
    ``36 35 98:0 /mnt1 / rw,noatime master:1 - ext3 /dev/root rw,errors=continue``.
    """
    before, _, after = line.rstrip("\n").partition(" - ")
    where, what = before.split(" "), after.split(" ")
    return where[4], where[2], what[0], what[2]
