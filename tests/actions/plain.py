"""A pod of cgroup v2 made of plain files, for what no kernel is needed for: who writes when, and what is written down.

Not real: nothing is limited, frozen or reclaimed. On real cgroups: tests/actions/test_soft_brake.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monitor.actions import brake_file, changes
from monitor.actions.brake_file import BrakeFile
from monitor.actions.changes import Change, opened
from monitor.actions.hold_journal import HoldJournal, undo_all
from monitor.actions.pod_brake import PodBrake
from monitor.kernel.cgroupfs import Hierarchy

MIB = 1 << 20


class PlainPod:
    """As before Linux 6.16. ``high`` is its memory.high."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(brake_file, "_linux", lambda: (6, 1))
        patch.setattr(BrakeFile, "write", _write)
        real = changes._write
        patch.setattr(changes, "_write", lambda at, file, value, flags=0: real(at, file, value, flags | os.O_TRUNC))
        self.root, self.state = root / "cgroup", root / "state"
        self.hierarchy, self.journal = Hierarchy(2, self.root), HoldJournal(self.state)
        self.path = self.root / "pod"
        self.path.mkdir(parents=True)
        values = {"memory.current": str(64 * MIB), "memory.max": "max", "memory.oom.group": "0", "memory.high": "max"}
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

    def brake(self) -> PodBrake:
        brake = PodBrake("uid", self.path, self.hierarchy, self.journal)
        assert brake.problem == ""
        return brake

    def held(self) -> PodBrake:
        """A brake in force, and the side is to be asked for the rest."""
        brake = self.brake()
        assert brake.apply(96 * MIB) is not None
        assert brake.slows_late
        return brake

    @property
    def is_noted(self) -> bool:
        return self.journal.attribute in os.listxattr(self.path)

    def noted(self) -> list[Change]:
        with opened(self.path) as directory:
            return self.journal.changes(directory)

    def undo(self) -> None:
        """As the next start does."""
        undo_all(self.state, self.hierarchy)


def _write(self: BrakeFile, value: str) -> None:
    """A file of the kernel has what was written last, and nothing of before."""
    os.ftruncate(self._write, 0)
    os.pwrite(self._write, value.encode(), 0)
