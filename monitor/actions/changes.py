"""What outrace changed in a file of a cgroup, and how the old value comes back.

A change is written down before it is made (`monitor.actions.ledger`): file, old value, the values written since, and
which cgroup it was. The old value is put back only where the file still holds a value of outrace's, in that very
cgroup: one made anew under the same path has another inode number (kernfs uses none twice in a boot). A value that
another program wrote since stays.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from monitor.kernel import cgroupfs
from monitor.kernel.cgroup_procs import CGROUPS
from monitor.kernel.cgroupfs import GONE

#: What became of a change: the old value is there again; it was before (the change was never made); another program has
#: written since; the cgroup is gone; it cannot be seen from here, and stays written down.
RESTORED, UNCHANGED, FOREIGN, VANISHED, UNSEEN = "restored", "unchanged", "foreign", "vanished", "unseen"


class Change(NamedTuple):
    """``path``: directory of a cgroup; ``file`` in it was ``old``, and ``written`` is what was (or was about to be)
    written, newest last. ``identity`` differs from that of later cgroups of the same path. ``uid``: of the pod.
    """

    path: str
    file: str
    identity: str
    old: str
    written: tuple[str, ...]
    uid: str


#: The only files that a note may name (root writes what a note says), in the order in which they are put back. A pod
#: that is thawed, or has its OOM killer again, before its cap is gone is killed at it.
FILES = (
    *("memory.max", "memory.limit_in_bytes", "memory.oom.group", "memory.oom_control"),
    *("memory.high", "pids.max", "cgroup.freeze", "freezer.state"),
)
_OOM_CONTROL = "memory.oom_control"
_VALUE = re.compile(r"-?\d{1,20}|max|FROZEN|THAWED", re.ASCII)
#: It is FROZEN also where only a parent is: another file says what was written to it.
_FREEZER, _FREEZER_SET = "freezer.state", "freezer.self_freezing"


def identity_of(path: Path | int) -> str:
    """Which cgroup is at ``path`` now. Raises OSError."""
    return f"inode {(os.fstat(path) if isinstance(path, int) else os.lstat(path)).st_ino}"


class BrakeFile:
    """``file`` in the cgroup ``path``. Raises OSError where it cannot be opened for writing."""

    def __init__(self, path: Path, file: str) -> None:
        self.path, self.file = path, file
        with opened(path) as directory:
            self.identity = identity_of(directory)
            # O_NONBLOCK: from Linux 6.16 on a limit is set without reclaim in the writer.
            how = os.O_NOFOLLOW | os.O_CLOEXEC
            self._write = self._read = os.open(file, os.O_RDWR | os.O_NONBLOCK | how, dir_fd=directory)
            if file == _FREEZER:
                try:
                    self._read = os.open(_FREEZER_SET, os.O_RDONLY | how, dir_fd=directory)
                except OSError:
                    os.close(self._write)
                    raise

    def read(self) -> str:
        """Its value, as it would be written. Raises OSError (ENODEV: the cgroup is gone)."""
        text = os.pread(self._read, 4096, 0).decode(errors="replace").strip()
        if self.file == _OOM_CONTROL:  # three lines; the first is "oom_kill_disable 0"
            return text.split()[1]
        return text if self.file != _FREEZER else "THAWED" if text == "0" else "FROZEN"

    def write(self, value: str) -> None:
        os.pwrite(self._write, value.encode(), 0)

    def has(self, change: Change) -> bool:
        """Whether what was written is there still, in this very cgroup. Raises OSError."""
        return change.identity == self.identity and self.read() in change.written

    def put_back(self, change: Change) -> str:
        """Write the old value where one of ours is there, in this very cgroup, and where cgroups below have inherited
        it; what became of the change. Raises OSError where the kernel refuses.
        """
        try:
            if change.identity != self.identity:
                return VANISHED
            now = self.read()
            if now not in (change.old, *change.written):
                return FOREIGN
            if now != change.old:
                self.write(change.old)
            if change.file == _OOM_CONTROL and change.old == "0":
                enable_below(self.path)
            return UNCHANGED if now == change.old else RESTORED
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
            return VANISHED

    def close(self) -> None:
        for fd in {self._read, self._write}:
            with suppress(OSError):
                os.close(fd)


def undone(change: Change) -> str:
    """`BrakeFile.put_back`, of what an ended process wrote down. Raises OSError where the kernel refuses."""
    path = Path(change.path)
    try:
        with closing(BrakeFile(path, change.file)) as file:
            return file.put_back(change)
    except OSError as error:
        if error.errno not in GONE:
            raise
    return VANISHED if is_seen(path.parent) else UNSEEN


def is_seen(path: Path) -> bool:
    """Whether what was in ``path`` would be seen from here, were it there. Not from another mount namespace, nor from a
    cgroup namespace below the root: there the next directory that is there is a cgroup's too, but of another one.
    """
    if (path / "cgroup.procs").exists():
        return True
    top = next(one for one in path.parents if one.is_dir())
    while (top.parent / "cgroup.procs").exists():
        top = top.parent
    if (top / "cgroup.controllers").exists():
        return not (top / "cgroup.events").exists()  # v2: every cgroup but the root has it
    return (top / "release_agent").exists()  # v1: the root alone has it


# cgroup v1: a cgroup that is made below one with memory.oom_control 1 has 1 itself, and keeps it for ever
# (mm/memcontrol-v1.c; tried on Linux 6.18). A container that starts in a held pod would hang at its own limit long
# after the release, where the kernel kills it otherwise. So the release enables the OOM killer below too. Only pods are
# capped that have no such cgroup before (`any_disabled`): no program's own choice is overwritten.


def any_disabled(pod: Path) -> bool:
    """Whether a cgroup below has no OOM killer, or too many are below to read: the hot thread calls. Raises OSError."""
    return any(number >= CGROUPS or _is_disabled(path) for number, path in enumerate(cgroupfs.below(pod)))


def enable_below(pod: Path) -> None:
    """The pod's own OOM killer is enabled: enable that of cgroups made meanwhile (20 us each). A cgroup made in between
    is below one that is enabled already, or is found. Raises OSError.
    """
    for path in cgroupfs.below(pod):
        try:
            if _is_disabled(path):
                with opened(path / _OOM_CONTROL, os.O_WRONLY) as fd:
                    os.write(fd, b"0")
        except OSError as error:
            if error.errno not in cgroupfs.GONE:
                raise


def _is_disabled(path: Path) -> bool:
    try:
        return (path / _OOM_CONTROL).read_bytes().split()[1:2] == [b"1"]
    except OSError as error:
        if error.errno not in cgroupfs.GONE:
            raise
        return False


@contextmanager
def opened(path: Path | str, flags: int = os.O_RDONLY | os.O_DIRECTORY) -> Iterator[int]:
    """The directory itself: what is opened in it is of this cgroup, whatever its path leads to meanwhile."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def parsed(made: dict[str, Any]) -> Change:
    """A change from a dictionary of its fields. Raises ValueError, TypeError or LookupError."""
    change = Change(**{name: made[name] for name in Change._fields} | {"written": tuple(made["written"])})
    if not all(isinstance(one, str) for one in (*change, *change.written) if one is not change.written):
        raise ValueError("every value must be text")
    if not Path(change.path).is_absolute() or change.file not in FILES:
        raise ValueError("not a file of a cgroup that outrace changes")
    if not change.written:
        raise ValueError("nothing was written")
    if not all(map(_VALUE.fullmatch, (change.old, *change.written))):
        raise ValueError("no value of such a file")
    return change
