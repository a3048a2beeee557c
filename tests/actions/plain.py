"""A pod of cgroup v2 made of plain files, for what no kernel is needed for: who writes when, and what is written down.

Not real: nothing is limited, frozen or reclaimed. On real cgroups: tests/actions/test_soft_brake.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pytest

from monitor.actions import brake_file, changes
from monitor.actions import slow_down as slow_down_module
from monitor.actions.brake_file import Braked, BrakeFile
from monitor.actions.changes import Change, opened
from monitor.actions.ledger import Ledger, attributes_of
from monitor.actions.pod_brake import PodBrake
from monitor.actions.slow_down import SlowDown, SlowDowns, slow_down
from monitor.actions.undo import undo
from monitor.kernel.cgroupfs import Hierarchy

MIB = 1 << 20


def stop(brake: PodBrake, cap: int, *, reclaims: bool = True) -> Braked | None:
    """As the hot thread does for one pod."""
    braked = brake.apply(cap, reclaims=reclaims)
    brake.slow_down()
    return braked


class Asked:
    """In the place of `SlowDowns`, whose thread comes to it at once or seconds late: `come` is that moment."""

    def __init__(self, journal: Ledger) -> None:
        self._journal = journal
        self.queue: list[SlowDown] = []
        self._asked = self._done = 0

    def begin(self, uid: str, file: BrakeFile, late: int, directory: int, change: Change, low: int) -> int:
        self.queue.append(SlowDown(uid, os.dup(late), os.dup(directory), change, low))
        self._asked += 1
        return self._asked

    def come(self) -> bool:
        wanted = self.queue.pop(0)
        try:
            return slow_down(wanted, self._journal)
        finally:
            self._done += 1
            os.close(wanted.file)
            os.close(wanted.directory)

    def is_done(self, number: int) -> bool:
        return self._done >= number

    @property
    def low(self) -> int:
        [wanted] = self.queue
        return wanted.low


class PlainPod:
    """As before Linux 6.16. ``high`` is its memory.high."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(brake_file, "_linux", lambda: (6, 1))
        patch.setattr(BrakeFile, "write", _write)
        patch.setattr(slow_down_module, "_write", _write_to)
        patch.setattr(changes, "_write", _write_anew)
        self.root, self.state = root / "cgroup", root / "state"
        self.hierarchy, self.journal = Hierarchy(2, self.root), Ledger(self.state)
        self.path = self.root / "pod"
        self.asked = Asked(self.journal)
        self.path.mkdir(parents=True)
        values = {"memory.current": str(64 * MIB), "memory.max": "max", "memory.oom.group": "0", "memory.high": "max"}
        values |= {"pids.max": "max", "pids.current": "3", "memory.stat": "inactive_file 0"}
        for name, value in {**values, "cgroup.freeze": "0", "cgroup.procs": ""}.items():
            (self.path / name).write_text(f"{value}\n")
        try:
            os.setxattr(self.path, self.journal.attribute, b"")
            os.removexattr(self.path, self.journal.attribute)
        except OSError as error:
            pytest.skip(f"extended attributes of this file system: {error.strerror}")

    @property
    def high(self) -> str:
        return (self.path / "memory.high").read_text().strip()

    @high.setter
    def high(self, value: str) -> None:
        (self.path / "memory.high").write_text(value)

    @property
    def slow_downs(self) -> SlowDowns:
        return cast(SlowDowns, self.asked)

    def brake(self) -> PodBrake:
        brake = PodBrake("uid", self.path, self.hierarchy, self.journal, slow_downs=self.slow_downs)
        assert brake.problem == ""
        return brake

    def brake_of_the_next(self) -> PodBrake:
        """Of the hot process after one that was killed, which goes on with the hold."""
        brake = PodBrake("uid", self.path, self.hierarchy, self.journal, slow_downs=self.slow_downs)
        assert brake.adopt()
        return brake

    def held(self) -> PodBrake:
        """A brake in force, and the thread is asked for the rest."""
        brake = self.brake()
        assert brake.apply(96 * MIB) is not None
        assert self.asked.queue == [], "others may have to be stopped first"
        brake.slow_down()
        assert len(self.asked.queue) == 1
        return brake

    @property
    def is_noted(self) -> bool:
        return self.journal.attribute in os.listxattr(self.path)

    def noted(self) -> list[Change]:
        with opened(self.path) as directory:
            return self.journal.changes(directory)

    def undo(self) -> None:
        """As the next start does."""
        undo(self.hierarchy, lambda _: None, attributes_of([self.state]))


def _write_anew(directory: int, file: str, value: str) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_TRUNC, dir_fd=directory)
    os.write(fd, value.encode())
    os.close(fd)


def _write(self: BrakeFile, value: str) -> None:
    """A file of the kernel has what was written last, and nothing of before."""
    _write_to(self._write, value)


def _write_to(file: int, value: str) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, value.encode(), 0)
