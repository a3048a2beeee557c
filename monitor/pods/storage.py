"""What a pod takes of the node's disks and process ids, in the shape of the Summary API (`monitor.policy.stats`).

On a Kubernetes node the directories are the kubelet's: container logs below /var/log/pods, volumes below its root
directory, the writable layer in the overlay that a container's processes have as their root. Other directories are not
counted, and no annotation names any: the author of a pod could hide usage with it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from monitor.errors import CannotError, MonitorError
from monitor.kernel import cgroup_procs, cgroupfs
from monitor.kernel.disks import DEADLINE_S, NOTHING, Disks, Usage, tree_usage
from monitor.pods.model import FoundPod
from monitor.policy.stats import PodStats

#: Volumes the kubelet makes on the node itself. The others may be a network file system, which could hang.
_LOCAL_PLUGINS = ("empty-dir", "configmap", "git-repo", "secret", "projected", "downward-api")
#: Those whose files count against the pod, if they are on disk.
_EPHEMERAL_PLUGINS = frozenset({"empty-dir", "configmap", "git-repo"})

#: A pod is not measured again sooner: the kubelet does so once a minute; while a disk is short, more often.
QUIET_S = 60.0
URGENT_S = 10.0
#: Nor before this many times as long as the last measurement took: at most a tenth of the time goes into one pod.
_REST = 10.0


class Roots(NamedTuple):
    """Where the kubelet keeps the pods' logs, and its directory with a subdirectory for each pod's uid."""

    logs: Path = Path("/var/log/pods")
    pods: Path = Path("/var/lib/kubelet/pods")

    @classmethod
    def of(cls, disks: Disks) -> Roots:
        """The kubelet's pods are in its directory, if that is what was given for the node's disk."""
        below = disks.nodefs / "pods"
        return cls(pods=below) if below.is_dir() else cls()


@dataclass(frozen=True)
class Measured:
    """What was found in ``took_s``, until ``at_s`` (`time.monotonic`). ``problems``: one line each, with the remedy."""

    stats: PodStats
    took_s: float
    at_s: float
    problems: tuple[str, ...] = ()

    def due_s(self, urgent: bool) -> float:
        """When to measure again (`time.monotonic`)."""
        return self.at_s + max(URGENT_S if urgent else QUIET_S, _REST * self.took_s)


def process_count(found: FoundPod) -> int:
    """Processes (not threads) in the pod's containers, or in its cgroup where none has one. Raises MonitorError."""
    pids: set[int] = set()
    for path in found.containers.values() or (found.cgroup,):
        pids.update(cgroup_procs.processes(path))
    return len(pids)


def process_stats(found: FoundPod) -> PodStats:
    """The number of processes alone: all that ranking for process ids needs. Raises MonitorError."""
    return PodStats({"podRef": {"uid": found.pod.uid}, "process_stats": {"process_count": process_count(found)}})


def measure(found: FoundPod, roots: Roots | None = None, stop: Callable[[], bool] = lambda: False) -> Measured:
    """Measure a pod; ``stop()`` ends it early. Takes as long as its directories are large."""
    began = time.monotonic()
    look = _Look(found, roots or Roots(), stop, began + DEADLINE_S)
    stats = look.stats()
    now = time.monotonic()
    return Measured(stats, now - began, now, tuple(look.problems))


@dataclass
class _Look:
    """One look at one pod."""

    found: FoundPod
    roots: Roots
    stop: Callable[[], bool]
    end_s: float  # of all its directories together (`time.monotonic`): each pod is measured before one is evicted
    problems: list[str] = field(default_factory=list)

    def stats(self) -> PodStats:
        pod = self.found.pod
        names = (*(c.name for c in (*pod.containers, *pod.init_containers)), *self.found.containers)
        containers: dict[str, dict[str, Usage]] = {name: {} for name in names}
        ephemeral = self._logs(containers)
        for name, cgroup in self.found.containers.items():
            try:
                path = upper_directory(cgroup)
            except MonitorError as error:
                self._problem(f"writable layer of {name}: {error}")
                continue
            if path is not None and (layer := self._usage(path)) is not None:
                containers[name]["rootfs"] = layer
                ephemeral += layer
        volumes: dict[str, Usage] = {}  # the kubelet's names are unique in a pod
        for name, path, counts in self._volumes():
            usage = self._usage(path)
            if usage is not None:
                volumes[name] = usage
                ephemeral += usage if counts else NOTHING
        raw: dict[str, Any] = {
            "podRef": {"uid": pod.uid, "namespace": pod.namespace, "name": pod.name},
            "containers": [
                {"name": name} | {part: _figures(usage) for part, usage in parts.items()}
                for name, parts in containers.items()
            ],
            "volume": [{"name": name, **_figures(usage)} for name, usage in volumes.items()],
            "ephemeral-storage": _figures(ephemeral),
        }
        try:
            raw["process_stats"] = {"process_count": process_count(self.found)}
        except MonitorError as error:
            self._problem(str(error))
        return PodStats(raw)

    def _usage(self, path: Path) -> Usage | None:
        try:
            left_s = max(0.0, self.end_s - time.monotonic())
            usage = tree_usage(path, deadline_s=left_s, stop=self.stop)
        except MonitorError as error:
            self._problem(f"{error}; what it holds is not counted")
            return None
        if usage is not None and not usage.complete:
            self._problem(f"{path} has more files than can be counted in one go; it counts as those")
        return usage

    def _problem(self, text: str) -> None:
        pod = self.found.pod
        self.problems.append(f"pod {pod.namespace}/{pod.name}: {text}")

    def _entries(self, directory: Path) -> list[os.DirEntry[str]]:
        """What is in a directory, by name; nothing if it is not there (any more)."""
        try:
            with os.scandir(directory) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                self._problem(f"cannot list {directory}: {error.strerror}; what it holds is not counted")
            return []

    def _logs(self, containers: dict[str, dict[str, Usage]]) -> Usage:
        """Each container's logs, into ``containers``; all of them with the files beside them, as a sum."""
        total = NOTHING
        pod = self.found.pod
        for entry in self._entries(self.roots.logs / f"{pod.namespace}_{pod.name}_{pod.uid}"):
            if entry.is_dir(follow_symlinks=False):
                usage = self._usage(Path(entry.path))
                if usage is not None:
                    containers.setdefault(entry.name, {})["logs"] = usage
                    total += usage
            else:
                total += self._usage(Path(entry.path)) or NOTHING
        return total

    def _volumes(self) -> Iterator[tuple[str, Path, bool]]:
        """(name, directory, whether it counts against the pod's limit) of each volume that can be found.

        No hostPath: it may be all of /, and the kubelet does not measure it either.
        """
        pod = self.found.pod
        named = {volume.name: volume for volume in pod.volumes}
        base = self.roots.pods / pod.uid / "volumes"
        for plugin in _LOCAL_PLUGINS:
            for entry in self._entries(base / f"kubernetes.io~{plugin}"):
                if not entry.is_dir(follow_symlinks=False):
                    continue
                known = named.get(entry.name)
                # One in memory (medium: Memory) is a mount of its own. It is measured for its sizeLimit only.
                on_disk = known.local if known is not None else not os.path.ismount(entry.path)
                yield entry.name, Path(entry.path), plugin in _EPHEMERAL_PLUGINS and on_disk


def _figures(usage: Usage) -> dict[str, int]:
    return {"usedBytes": usage.bytes, "inodesUsed": usage.inodes}


# ---- the writable layer of a container

#: Processes of a container that may end one after the other while its root is looked for.
_TRIES = 8
#: Characters of a container's mountinfo: a runtime makes some 50 mounts. A user in a namespace of its own makes 100,000
#: (fs.mount-max) with paths of 4 KiB, of which each byte may be written as four: as a list they took 2 GB.
_MOST_MOUNTS = 1 << 20


def upper_directory(cgroup: Path, proc: Path = Path("/proc")) -> Path | None:
    """The upper directory of the overlay at the root of a container's processes; None without one. Raises MonitorError.

    The path is the runtime's, valid on the node itself. Any user mounts an overlay in a user namespace and names any
    path: it counts only if it is mounted here too.
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
    """(device, type, options) mounted on / by a mountinfo; None: its process is gone, or beyond ``most`` characters."""
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
    """Mount point, device, type and options of ``36 35 98:0 /mnt1 / rw master:1 - ext3 /dev/root rw`` (proc(5))."""
    before, _, after = line.rstrip("\n").partition(" - ")
    where, what = before.split(" "), after.split(" ")
    return where[4], where[2], what[0], what[2]
