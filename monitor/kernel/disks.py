"""Disks and process ids of the node: how much is left, what a directory takes, which disk is which.

Bytes and inodes as cAdvisor counts them, because the kubelet's thresholds are compared with its numbers.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from monitor.errors import CannotError, ConfigError, MonitorError

#: The kubelet's root directory, and where the usual container runtimes keep images and writable layers.
KUBELET = Path("/var/lib/kubelet")
RUNTIMES = (Path("/var/lib/containerd"), Path("/var/lib/containers/storage"), Path("/var/lib/docker"))

#: What one walk may take. Python looks at 200,000 to 400,000 entries a second while they are cached.
DEADLINE_S = 20.0
MOST_ENTRIES = 1_000_000
#: Hard-linked inodes and directories yet to be visited that a walk keeps in mind: 100 bytes each, 5 MB.
_MOST_REMEMBERED = 50_000
#: Each level of directories keeps one descriptor open; the usual limit of a process is 1024.
_DEEPEST = 256
#: Entries between two looks at the clock and the stop flag.
_STRIDE = 256
#: st_blocks counts these, whatever the block size of the file system (stat(2)).
_BLOCK = 512
#: The directory is gone, or became something else (a link: ELOOP) since it was listed: not ours to count any more.
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE)


class FileSystem(NamedTuple):
    """Space in bytes and inodes of a file system; the inodes are None where it has no fixed number (btrfs says 0 of 0).
    ``available`` is what a process without privileges can still take.
    """

    available: int
    capacity: int
    inodes_free: int | None
    inodes: int | None


class Usage(NamedTuple):
    """What a directory takes: bytes on disk, and inodes with its own. Not ``complete``: at least this much."""

    bytes: int
    inodes: int
    complete: bool = True

    def __add__(self, other: object) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        return Usage(self.bytes + other.bytes, self.inodes + other.inodes, self.complete and other.complete)


NOTHING = Usage(0, 0)


class Disks(NamedTuple):
    """The directories whose file systems the disk signals speak of.

    ``layout_image_fs``: images, and the writable layers with them, have a file system of their own (see
    `monitor.policy.layout.DiskLayout`).
    """

    nodefs: Path
    imagefs: Path
    layout_image_fs: bool = False


def file_system(path: str | Path) -> FileSystem:
    """The file system that ``path`` is on. MonitorError if the kernel does not say. May hang on a dead NFS server."""
    try:
        found = os.statvfs(path)
    except OSError as e:
        raise MonitorError(f"cannot measure the file system of {path}: {e.strerror}") from e
    known = found.f_files > 0
    return FileSystem(
        available=found.f_bavail * found.f_frsize,
        capacity=found.f_blocks * found.f_frsize,
        inodes_free=found.f_ffree if known else None,
        inodes=found.f_files if known else None,
    )


def pid_counts(proc: str | Path = "/proc") -> tuple[int, int]:
    """(most tasks the kernel allows, tasks there are). Tasks are threads too, as in the kubelet's `pid.available`."""
    try:
        most = min(int(Path(proc, "sys/kernel", name).read_text()) for name in ("pid_max", "threads-max"))
        # "0.20 0.18 0.12 1/80 11206": tasks that run, of all tasks (proc(5))
        return most, int(Path(proc, "loadavg").read_text().split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError) as e:
        raise CannotError(f"cannot count the tasks of this machine in {proc}: {e}", "mount procfs at /proc") from e


def find_disks(nodefs: str | Path | None = None, imagefs: str | Path | None = None) -> Disks:
    """The disks of this node: what is given (``--nodefs``, ``--imagefs``), else where kubelet and runtimes keep their
    files, if the caller may look there (into podman's only root may). Raises ConfigError naming the option for a path
    that does not exist.
    """
    node = Path(nodefs or next(filter(os.path.isdir, (KUBELET,)), "/"))
    image = Path(imagefs or next(filter(os.path.isdir, RUNTIMES), node))
    on_node, on_image = _device("--nodefs", node), _device("--imagefs", image)
    return Disks(node, image, layout_image_fs=on_image != on_node)


def _device(option: str, path: Path) -> int:
    try:
        return os.stat(path).st_dev
    except OSError as e:
        raise ConfigError(f"{option} {path}: {e.strerror}", "name a directory that exists on that disk") from None


def tree_usage(
    path: str | Path,
    *,
    deadline_s: float = DEADLINE_S,
    most_entries: int = MOST_ENTRIES,
    stop: Callable[[], bool] = lambda: False,
) -> Usage | None:
    """What everything below ``path`` takes, itself included; None if there is none. MonitorError if it is unreadable.

    As cAdvisor and the kubelet count: blocks on disk (so holes are free), a file with several names once, other file
    systems not at all. Symbolic links are never followed, also while the tree changes. What vanishes meanwhile is left
    out. Not ``complete`` when it ended early (after ``deadline_s`` seconds or ``most_entries`` entries, or when
    ``stop()``), below 256 levels, and where something could not be read.
    """
    walk = _Walk(time.monotonic() + deadline_s, most_entries, stop)
    try:
        walk.root(os.fspath(path))
    except OSError as e:
        if e.errno in _GONE and not walk.inodes:
            return None
        raise MonitorError(f"cannot count the files below {path}: {e.strerror}") from e
    finally:
        for fd, _ in walk.levels:
            os.close(fd)
    return Usage(walk.blocks * _BLOCK, walk.inodes, walk.complete)


@dataclass(slots=True)
class _Walk:
    """Depth first, each directory opened through its parent's descriptor: no path is looked up twice."""

    deadline: float
    left: int  # entries
    stop: Callable[[], bool]
    blocks: int = 0
    inodes: int = 0
    complete: bool = True
    device: int = 0
    linked: set[int] = field(default_factory=set)
    levels: list[tuple[int, list[str]]] = field(default_factory=list)  # descriptor, directories yet to be visited
    waiting: int = 0  # directories in all levels

    def root(self, path: str) -> None:
        status = os.lstat(path)
        self.device = status.st_dev
        self._count(status)
        if not stat.S_ISDIR(status.st_mode) or not self._enter(os.open(path, _DIRECTORY)):
            return
        while self.levels:
            fd, names = self.levels[-1]
            if not names:
                os.close(fd)
                self.levels.pop()
                continue
            name = names.pop()
            self.waiting -= 1
            if len(self.levels) >= _DEEPEST:
                self.complete = False
                continue
            try:
                child = os.open(name, _DIRECTORY, dir_fd=fd)
            except OSError as e:
                self.complete &= e.errno in _GONE  # what cannot be read is no reason not to count the rest
                continue
            if not self._enter(child):
                return

    def _enter(self, fd: int) -> bool:
        """Count what is in the directory and put it on the stack; False when the walk must end."""
        names: list[str] = []
        self.levels.append((fd, names))
        if os.fstat(fd).st_dev != self.device:
            return True  # something was mounted on it since it was listed
        with closing(os.scandir(fd)) as entries:
            for entry in entries:
                is_turn = self.left % _STRIDE == 0
                if self.left <= 0 or (is_turn and (self.stop() or time.monotonic() >= self.deadline)):
                    self.complete = False
                    return False
                self.left -= 1
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError as e:
                    self.complete &= e.errno in _GONE
                    continue
                if status.st_dev != self.device:
                    continue
                self._count(status)
                if stat.S_ISDIR(status.st_mode):
                    if self.waiting + len(self.linked) >= _MOST_REMEMBERED:
                        self.complete = False
                        continue
                    names.append(entry.name)
                    self.waiting += 1
        return True

    def _count(self, status: os.stat_result) -> None:
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            if status.st_ino in self.linked:
                return
            if self.waiting + len(self.linked) < _MOST_REMEMBERED:
                self.linked.add(status.st_ino)
            else:
                self.complete = False
                return
        self.blocks += status.st_blocks
        self.inodes += 1


#: O_NOFOLLOW: the name was a directory when it was listed; if it is a link by now, it is not ours.
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
