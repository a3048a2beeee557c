"""cgroup v1: a cgroup that is made below one with memory.oom_control 1 has 1 itself, and keeps it for ever.

(mm/memcontrol-v1.c; tried on Linux 6.18.) A container that starts in a held pod would hang at its own limit long after
the release, where the kernel kills it otherwise. So what is below gets its OOM killer back too. Only pods are capped
that have no such cgroup before (`any_disabled`), so that nobody's own choice is overwritten.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from monitor.actions.changes import Change
from monitor.actions.thaw_reasons import CGROUPS
from monitor.kernel import cgroupfs

_FILE = "memory.oom_control"


def any_disabled(pod: Path) -> bool:
    """Whether a cgroup below has no OOM killer, or there are too many to say: the hot thread looks. Raises OSError."""
    return any(number >= CGROUPS or _is_disabled(path) for number, path in enumerate(cgroupfs.below(pod)))


def counts_below(path: Path) -> bool:
    """Whether a limit counts the cgroups below: before Linux 5.11 one may account for itself alone. Raises OSError."""
    try:
        return (path / "memory.use_hierarchy").read_text().strip() != "0"
    except FileNotFoundError:
        return True


def enable_below(change: Change) -> Iterator[None]:
    """``change`` of a pod's OOM killer is undone: that of cgroups made meanwhile too, one in each step (20 us). What is
    made between two steps is below one that has its own back already, or is found. Raises OSError.
    """
    if change.file != _FILE or change.old != "0":
        return
    for path in cgroupfs.below(Path(change.path)):
        try:
            if _is_disabled(path):
                fd = os.open(path / _FILE, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    os.write(fd, b"0")
                finally:
                    os.close(fd)
        except OSError as error:
            if error.errno not in cgroupfs.GONE:
                raise
        yield


def _is_disabled(path: Path) -> bool:
    try:
        return (path / _FILE).read_bytes().split()[1:2] == [b"1"]
    except OSError as error:
        if error.errno not in cgroupfs.GONE:
            raise
        return False
