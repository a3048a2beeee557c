"""One file of a cgroup that a brake writes: open ahead, read and written in a microsecond or two, and restored."""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from monitor.actions.changes import VANISHED, Change, identity_of, put_back, source_of, value_of
from monitor.kernel.wire import PAGE

#: From this Linux on a limit that was opened with O_NONBLOCK is set without reclaim in the writer.
_NO_RECLAIM = (6, 16)


class Braked(NamedTuple):
    """What is in force. ``cap``: bytes, the pod's own limit where that is lower, 0: none."""

    brake: str
    cap: int


class BrakeFile:
    """``file`` in the cgroup ``path``. Raises OSError where it cannot be opened for writing."""

    def __init__(self, path: Path, file: str) -> None:
        self.path, self.file = path, file
        self.identity = identity_of(path)
        # Before `_NO_RECLAIM` it is ignored.
        self._write = os.open(path / file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        self._read = self._write
        if source_of(file) != file:
            try:
                self._read = os.open(path / source_of(file), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError:
                os.close(self._write)
                raise

    def read(self) -> str:
        """Its value, as it would be written. Raises OSError (ENODEV: the cgroup is gone)."""
        return value_of(self.file, os.pread(self._read, 4096, 0).decode(errors="replace"))

    def write(self, value: str) -> None:
        os.pwrite(self._write, value.encode(), 0)

    def change(self, now: str, value: str, before: Change | None, uid: str, why: str) -> Change | None:
        """The change that a write of ``value`` is, where the file has ``now``, and ``before`` is our change in force;
        None if the file has that value already, and not from us.
        """
        old, written = now, tuple[str, ...]()
        if before is not None and now in (before.old, *before.written):
            # Only what is there: a value that the kernel refused (EBUSY) is in `before`, and never was in force.
            old, written = before.old, (now,) if now != before.old else ()
        elif now == value:
            return None
        kept = tuple(one for one in written if one != value)
        return Change(str(self.path), self.file, self.identity, old, (*kept, value), uid, why)

    def has(self, change: Change) -> bool:
        """Whether what was written is there still, in this very cgroup. Raises OSError."""
        return change.identity == self.identity and self.read() in change.written

    def put_back(self, change: Change) -> str:
        """The first step of `way_back`: write the old value where one of ours is there. Raises OSError."""
        try:
            return put_back(change, self.read, self.write)
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
            return VANISHED

    def close(self) -> None:
        for fd in {self._read, self._write}:
            with suppress(OSError):
                os.close(fd)


#: What is to be changed: None where the value is there already, and is not ours.
Planned = dict[BrakeFile, Change | None]


def slow_at(usage: int, room: int) -> int:
    """The memory.high, bytes, that throttles allocations at once, and makes the writer reclaim nothing.

    From 1.2 times memory.high on the sleep is the longest, and half of the usage allows for page cache that is freed
    meanwhile. Where a value below the usage would reclaim, it is ``room`` above the usage: the sleep is as long when
    the pod has grown by a fifth, and a quarter of that after a tenth.
    """
    return (usage // 2 if _linux() >= _NO_RECLAIM else usage + room) // PAGE * PAGE


def joined(*parts: tuple[str, object]) -> str:
    """The names of what is there, with a + between."""
    return "+".join(name for name, there in parts if there)


@cache
def _linux() -> tuple[int, ...]:
    """The first two numbers of the kernel's release."""
    return tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])


def counts_below(path: Path) -> bool:
    """Whether a limit counts the cgroups below: before Linux 5.11 one may account for itself alone. Raises OSError."""
    try:
        return (path / "memory.use_hierarchy").read_text().strip() != "0"
    except FileNotFoundError:
        return True
