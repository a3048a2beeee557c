"""What outrace changed in a file of a cgroup, and how the old value comes back.

A change is written down before it is made (`monitor.actions.ledger`): file, old value, the values written since, and
which cgroup it was. The old value is put back only where the file still holds a value of outrace's, in that very
cgroup: one made anew under the same path has another inode number (kernfs uses none twice in a boot). A value that
another program wrote since stays.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from monitor.kernel import cgroupfs
from monitor.kernel.cgroup_procs import CGROUPS
from monitor.kernel.cgroupfs import GONE

#: What became of a change: the old value is there again; it was before (the change was never made); another program has
#: written since; the cgroup is gone; it cannot be seen from here, and stays written down.
RESTORED, UNCHANGED, FOREIGN, VANISHED, UNSEEN = "restored", "unchanged", "foreign", "vanished", "unseen"


@dataclass(frozen=True, slots=True)
class Change:
    """``path``: directory of a cgroup; ``file`` in it was ``old``, and ``written`` is what was (or was about to be)
    written, newest last. ``identity`` differs from that of later cgroups of the same path. ``uid``: of the pod;
    ``why``: in a few words.
    """

    path: str
    file: str
    identity: str
    old: str
    written: tuple[str, ...]
    uid: str
    why: str


#: The only files that a note may name: root writes what a note says.
FILES = frozenset(
    {
        *("memory.max", "memory.high", "memory.oom.group", "pids.max", "cgroup.freeze"),
        *("memory.limit_in_bytes", "memory.oom_control", "freezer.state"),
    }
)
_OOM_CONTROL = "memory.oom_control"
_VALUE = re.compile(r"-?\d{1,20}|max|FROZEN|THAWED", re.ASCII)
#: For `dataclasses.asdict`, which copies deeply: it took 120 of the 220 us of a brake.
FIELDS = tuple(field.name for field in fields(Change))


def identity_of(path: Path) -> str:
    """Which cgroup is at ``path`` now. Raises OSError."""
    return _identity(os.stat(path, follow_symlinks=False))


def _identity(status: os.stat_result) -> str:
    return f"inode {status.st_ino}"


def value_of(file: str, text: str) -> str:
    """The value of ``file`` as it would be written, by the ``text`` of `source_of` it."""
    if file == _OOM_CONTROL:  # three lines; the first is "oom_kill_disable 0"
        return text.split()[1]
    if file == "freezer.state":
        return "THAWED" if text.strip() == "0" else "FROZEN"
    return text.strip()


def source_of(file: str) -> str:
    """The file that says what ``file`` of the same directory was set to: itself but for v1's freezer.state, which is
    FROZEN also where only a parent is.
    """
    return "freezer.self_freezing" if file == "freezer.state" else file


def way_back(change: Change, put_back: Callable[[Change], str]) -> Iterator[str]:
    """The one way back of a change, in steps: the first writes the old value with ``put_back``, and gives what became
    of it. Where a value of ours may have been in force, each further step restores a cgroup below that may have
    inherited it (20 us). When the steps end, the change is over; until then, and where it is `UNSEEN`, it stays noted.
    Raises OSError where the kernel refuses.
    """
    fate = put_back(change)
    yield fate
    if fate in (RESTORED, UNCHANGED):
        for _ in enable_below(change):
            yield fate


def put_back(change: Change, read: Callable[[], str], write: Callable[[str], object]) -> str:
    """Write the old value where one of ours is there; what became of the change. Raises OSError."""
    now = read()
    if now == change.old:
        return UNCHANGED
    if now not in change.written:
        return FOREIGN
    write(change.old)
    return RESTORED


def undone(change: Change) -> str:
    """`put_back`, of what an ended process wrote down. Raises OSError where the kernel refuses the old value."""
    path = Path(change.path)
    try:
        with opened(path) as directory:
            if _identity(os.fstat(directory)) != change.identity:
                return VANISHED
            return put_back(
                change, lambda: _read(directory, change.file), lambda value: _write(directory, change.file, value)
            )
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


def enable_below(change: Change) -> Iterator[None]:
    """``change`` of a pod's OOM killer is undone: enable that of cgroups made meanwhile, one in each step (20 us). A
    cgroup made between two steps is below one that is enabled already, or is found. Raises OSError.
    """
    if change.file != _OOM_CONTROL or change.old != "0":
        return
    for path in cgroupfs.below(Path(change.path)):
        try:
            if _is_disabled(path):
                with opened(path / _OOM_CONTROL, os.O_WRONLY) as fd:
                    os.write(fd, b"0")
        except OSError as error:
            if error.errno not in cgroupfs.GONE:
                raise
        yield


def _is_disabled(path: Path) -> bool:
    try:
        return (path / _OOM_CONTROL).read_bytes().split()[1:2] == [b"1"]
    except OSError as error:
        if error.errno not in cgroupfs.GONE:
            raise
        return False


@contextmanager
def opened(path: Path | str, flags: int = os.O_RDONLY | os.O_DIRECTORY, below: int | None = None) -> Iterator[int]:
    """The directory itself: what is opened ``below`` it is of this cgroup, whatever its path leads to meanwhile."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=below)
    try:
        yield fd
    finally:
        os.close(fd)


def _read(directory: int, file: str) -> str:
    with opened(source_of(file), os.O_RDONLY, directory) as fd:
        return value_of(file, os.read(fd, 4096).decode(errors="replace"))


def _write(directory: int, file: str, value: str) -> None:
    with opened(file, os.O_WRONLY | os.O_NONBLOCK, directory) as fd:  # a limit, from Linux 6.16 on: without reclaim
        os.write(fd, value.encode())


def parsed(made: dict[str, Any]) -> Change:
    """A change from a dictionary of its `FIELDS`. Raises ValueError, TypeError or LookupError."""
    values = {name: made[name] for name in FIELDS} | {"written": tuple(made["written"])}
    change = Change(**values)
    texts = (*(value for name, value in values.items() if name != "written"), *change.written)
    if not all(isinstance(one, str) for one in texts):
        raise ValueError("every value must be text")
    if not Path(change.path).is_absolute() or change.file not in FILES:
        raise ValueError("not a file of a cgroup that outrace changes")
    if not change.written:
        raise ValueError("nothing was written")
    if not all(map(_VALUE.fullmatch, (change.old, *change.written))):
        raise ValueError("no value of such a file")
    return change
