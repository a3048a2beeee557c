"""Which processes are in a cgroup and below it, and whether anybody is left there."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path

from monitor.kernel.cgroupfs import GONE, failure

#: The kernel refuses a path longer than 4,095 bytes (ENAMETOOLONG), but cgroups can be nested deeper than that: beyond
#: this length they are reached by a descriptor. (A name has 255 bytes at most.)
_LONG = 3000
#: Cgroups of one pod that a descriptor is kept of: a pod has a handful. One with more is walked.
_KEPT = 64
#: In one look, by the hot thread: cgroups, 15 us each. A pod may have thousands.
CGROUPS = 64
#: Cgroups that are listed in the time that one of them takes to read.
_LISTED = 16
_GONE = (*GONE, errno.ENOTDIR)


def pids_below(path: Path) -> set[int]:
    """Processes of a cgroup and of every cgroup below it; a cgroup that vanishes meanwhile has none. Raises OSError.
    Left out: those of another pid namespace (printed as 0), and threaded v2 cgroups, which their domain's file lists.
    """
    return {pid for _, pids in walk(path) for pid in pids}


def walk(path: Path) -> Generator[tuple[str, set[int]]]:
    """The same one cgroup at a time (15 us each, and a pod may have thousands): a path that is good until the next one,
    and its processes. For the moment of a kill: no objects, one descriptor at a time. One with many cgroups in it comes
    again without processes for each `_LISTED` of them, so that a caller that counts need not wait for a list. Raises
    OSError.
    """
    stack = [os.fspath(path)]
    anchors: list[tuple[int, int]] = []  # (descriptor, how long the stack is when nothing below it is left)
    try:
        while stack:
            directory = stack.pop()
            try:
                if len(directory) > _LONG:
                    anchors.append((os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), len(stack)))
                    directory = f"/proc/self/fd/{anchors[-1][0]}"
                pids = _pids_in(directory)
            except OSError as e:
                if e.errno not in _GONE:
                    raise
            else:
                yield directory, pids
                for _ in _listed(directory, stack):
                    yield directory, set()
            while anchors and len(stack) == anchors[-1][1]:
                os.close(anchors.pop()[0])
    finally:
        for descriptor, _ in anchors:
            os.close(descriptor)


def _listed(directory: str, stack: list[str]) -> Generator[None]:
    """Put the cgroups in it on the stack."""
    try:
        with os.scandir(directory) as entries:
            for number, entry in enumerate((e for e in entries if e.is_dir(follow_symlinks=False)), 1):
                stack.append(entry.path)
                if not number % _LISTED:
                    yield
    except OSError as e:
        if e.errno not in _GONE:
            raise


def pids_in(directory: str, kept: int | None = None) -> set[int]:
    """Processes of this one cgroup; none if it is gone. ``kept``: its cgroup.procs is open already. Raises OSError."""
    try:
        return _pids_in(directory) if kept is None else _read(kept)
    except OSError as e:
        if e.errno not in _GONE:
            raise
        return set()


class KeptProcesses:
    """The processes of one pod, on cgroup v2 without looking up a path again: every look-up and every list of a
    directory there waits for a task that makes or removes a cgroup (kernfs_rwsem), and that task for one that lists a
    directory and has to reclaim for it. On a machine without memory that is as long as the shortage.

    One thread uses it. Descriptors: two of the pod, one of each of its cgroups, `_KEPT` of these at most.
    """

    def __init__(self, path: Path, version: int) -> None:
        self._path, self._version = path, version
        self._events = self._stat = -1
        self._files: dict[str, int] = {}
        self._counted = -1  # cgroups below it when they were opened
        if version == 2:
            with suppress(OSError):
                self._events = os.open(path / "cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
                self._stat = os.open(path / "cgroup.stat", os.O_RDONLY | os.O_CLOEXEC)

    def walk(self) -> Generator[tuple[str, set[int]]]:
        """As `walk`. Raises OSError."""
        if self._files and self._below() == self._counted:
            try:
                for directory, file in self._files.items():
                    yield directory, _read(file)
                return
            except OSError as e:
                if e.errno not in GONE:
                    raise  # else one was removed, and another was made
        self._close_files()
        below = self._below()
        for directory, pids in walk(self._path):
            is_new = directory not in self._files and not directory.startswith("/proc/")
            if is_new and below >= 0 and len(self._files) <= _KEPT:
                with suppress(OSError):  # no descriptor is left for it, or it was removed
                    self._files[directory] = os.open(f"{directory}/cgroup.procs", os.O_RDONLY | os.O_CLOEXEC)
            yield directory, pids
        if below != len(self._files) - 1:  # more than are kept, or they changed meanwhile
            self._close_files()
        self._counted = below

    def pids_in(self, directory: str) -> set[int]:
        """As `pids_in`. Raises OSError."""
        return pids_in(directory, self._files.get(directory))

    def populated(self) -> bool | None:
        """As `populated`."""
        if self._events < 0:
            return populated(self._path)
        try:
            return b"populated 1" in os.pread(self._events, 4096, 0)
        except OSError as e:
            return False if e.errno in GONE else None

    def close(self) -> None:
        self._close_files()
        for file in (self._events, self._stat):
            if file >= 0:
                os.close(file)
        self._events = self._stat = -1

    def _below(self) -> int:
        """How many cgroups are below it; -1 where the kernel does not say."""
        try:
            return int(os.pread(self._stat, 4096, 0).split()[1]) if self._stat >= 0 else -1
        except (OSError, ValueError, IndexError):
            return -1

    def _close_files(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])


def _read(file: int) -> set[int]:
    """What a cgroup.procs says; nothing for a threaded v2 cgroup, which refuses to say (EOPNOTSUPP). Raises OSError."""
    text = b""
    try:
        while part := os.pread(file, 1 << 16, len(text)):
            text += part
    except OSError as e:
        if e.errno != errno.EOPNOTSUPP:
            raise
    return {int(line) for line in text.split()} - {0}


def _pids_in(directory: str) -> set[int]:
    file = os.open(f"{directory}/cgroup.procs", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _read(file)
    finally:
        os.close(file)


def anybody(path: Path, most: int = 1000, counts: Callable[[int], bool] = bool) -> bool | None:
    """Whether a process that ``counts`` is in the cgroup or below; None if the first ``most`` cgroups have none.
    Raises OSError.
    """
    for number, (_, pids) in enumerate(walk(path)):
        if any(map(counts, pids)):
            return True
        if number >= most:
            return None
    return False


def processes(path: Path, most: int | None = None) -> list[int]:
    """Process ids in the cgroup and below it, in ``most`` cgroups, ascending; see `pids_below`. MonitorError if it
    cannot be read.
    """
    try:
        return sorted({pid for _, pids in itertools.islice(walk(path), most) for pid in pids})
    except OSError as e:
        raise failure(path / "cgroup.procs", "read", e) from e


def populated(path: Path) -> bool | None:
    """Whether there are processes in it or below, from cgroup.events, which the kernel prints without a lock. None
    where there is no such file (cgroup v1); False for a cgroup that is gone.
    """
    try:
        events = (path / "cgroup.events").read_text()
    except OSError as e:
        return False if e.errno in GONE and not os.path.exists(path) else None
    return "populated 1" in events.splitlines()


def empty(path: Path, most: int = 1000) -> bool:
    """Whether no process is left in it and below; on v2 also none whose memory is being freed. Not on v1 where the
    first ``most`` cgroups have none and there are more, 15 us each. Raises OSError.

    Linux 7.0 leaves a process out of cgroup.procs as soon as it begins to exit (a72f73c4dd9b), while all that it holds
    is still charged. So `populated` decides on cgroup v2; on v1 the killer keeps pidfds.
    """
    runs = populated(path)
    return anybody(path, most) is False if runs is None else not runs
