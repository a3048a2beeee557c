"""What the processes of a container show: a spec that is not known, the pod's sandbox, the writable layer.

A pod names its processes as it likes, so a name alone is no evidence. Evidence is what a pod cannot give itself: a low
oom_score_adj (CAP_SYS_RESOURCE), a cgroup of its own, and a parent outside the pod.
"""

from __future__ import annotations

import math
import os
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from monitor.errors import CannotError
from monitor.kernel import cgroup_procs, cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.procfs import Process

#: oom_score_adj the container runtime gives the one process of a pod's sandbox, and the name of its program.
PAUSE_ADJ = -998
_PAUSE = "pause"
#: The kubelet's value for Guaranteed pods and for system-node-critical ones, whatever their class. Nothing above it is
#: given to these, and nothing as low to others.
SPARED_ADJ = -997
#: oom_score_adj the kubelet gives the containers of a Burstable pod (kubelet-eviction policy: max(3, ...), never 1000).
_BURSTABLE_ADJ = range(3, 1000)
#: Names of a container's first process while the runtime sets it up: in the cgroup already, but with the runtime's
#: own oom_score_adj (under containerd just that -998).
_STARTING = ("runc", "crun", "youki")
#: A container calls itself so as long as it likes; no runtime takes so long (0.1 to 1 s, on a busy node some more).
STARTING_S = 10.0


class InferredSpec(NamedTuple):
    """``spared``: a process has the score of a Guaranteed or system-node-critical pod. ``request``: bytes, recovered
    from the score of a Burstable container; None if it cannot be.
    """

    sandbox: bool
    spared: bool = False
    request: int | None = None


def look(hierarchy: Hierarchy, qos: str, path: Path, mem_total: int, age_s: float) -> InferredSpec | None:
    """What the processes of the container cgroup ``path`` show; None while it is being started, or has none.
    ``mem_total``: bytes of the machine. ``age_s``: for how long the container has been known.
    """
    adjs: dict[int, int] = {}
    starting = False
    for pid in cgroup_procs.processes(path):
        with Process(pid) as process:
            adj = process.oom_score_adj()
            if adj is not None:
                adjs[pid] = adj
                starting = starting or (process.comm() or "").startswith(_STARTING)
    if not adjs or (starting and age_s < STARTING_S):
        return None
    if is_sandbox(hierarchy, path):
        return InferredSpec(sandbox=True)
    spared = any(adj <= SPARED_ADJ for adj in adjs.values())
    if qos != "Burstable":
        return InferredSpec(False, spared)
    # A process may raise its own value: so what most processes have, and of equals the highest.
    counted = Counter(adj for adj in adjs.values() if adj in _BURSTABLE_ADJ)
    if not counted:
        return InferredSpec(False, spared)
    best, _ = max(counted.items(), key=lambda item: (item[1], item[0]))
    return InferredSpec(False, spared, request_from_adj(best, mem_total))


def is_sandbox(hierarchy: Hierarchy, path: Path, *, any_score: bool = False) -> bool:
    """Whether the cgroup is that of a pod's sandbox: one process is alone in it, of a program called pause, started
    from outside the pod (by the runtime's shim), with the oom_score_adj that only a privileged process can give.

    ``any_score``: or another, as a runtime that may not lower it leaves it as it was.
    """
    pids = cgroup_procs.processes(path)
    if len(pids) != 1:
        return False
    with Process(pids[0]) as process:
        adj, exe = process.oom_score_adj(), process.exe()
        # Without CAP_SYS_PTRACE the program is not readable: then the name will do, with the score.
        named = process.comm() == _PAUSE and adj == PAUSE_ADJ if exe is None else Path(exe).name == _PAUSE
        if adj is None or not (any_score or adj == PAUSE_ADJ) or not named:
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

    The path is the container runtime's, valid where outrace sees the same files: on the node itself. In a user
    namespace of his own anybody mounts an overlay and names any path: that one counts only if it is mounted here too,
    as the runtime's is. Raises MonitorError.
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
        return path if path.is_absolute() and _is_directory(path) else None
    return None


def _is_the_runtimes(device: str, proc: Path, pid: int) -> bool:
    """Whether who mounted this device was in no user namespace of his own."""

    def users(who: str) -> str:
        try:
            return os.readlink(proc / who / "ns" / "user")
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


def _is_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False  # of another mount namespace: not to be seen from here
