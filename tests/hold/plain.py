"""A pod of cgroup v2 made of plain files, for tests without a kernel: which writes happen when, and what is recorded.

Not real: nothing is limited, frozen or reclaimed. On real cgroups: tests/hold/test_soft_brake.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.actions.changes import BrakeFile
from monitor.actions.ledger import Ledger, attributes_of
from monitor.actions.undo import undo
from monitor.hold import pod_brake
from monitor.hold.pod_brake import PodBrake
from monitor.kernel.cgroupfs import Hierarchy

MIB = 1 << 20


class PlainPod:
    """As before Linux 6.16. ``high`` is its memory.high."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(pod_brake, "_linux", lambda: (6, 1))
        patch.setattr(BrakeFile, "write", _write)
        self.root, self.state = root / "cgroup", root / "state"
        self.brakes: list[PodBrake] = []
        self.hierarchy, self.journal = Hierarchy(2, self.root), Ledger(self.state)
        self.path = self.root / "pod"
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

    def brake(self) -> PodBrake:
        brake = self._brake()
        assert brake.problem == ""
        return brake

    def brake_of_the_next(self) -> PodBrake:
        """Of the hot process after one that was killed, which goes on with the hold."""
        brake = self._brake()
        assert brake.adopt()
        return brake

    def _brake(self) -> PodBrake:
        self.brakes.append(PodBrake("uid", self.path, self.hierarchy, self.journal))
        return self.brakes[-1]

    def close(self) -> None:
        while self.brakes:
            self.brakes.pop().close()

    @property
    def is_noted(self) -> bool:
        return self.journal.attribute in os.listxattr(self.path)

    def undo(self) -> None:
        """As the next start does."""
        list(undo(self.hierarchy, lambda _: None, attributes_of([self.state])))


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlainPod]:
    """Its brakes are closed with the test."""
    made = PlainPod(tmp_path, monkeypatch)
    yield made
    made.close()


def panic_on_oom(root: Path, patch: pytest.MonkeyPatch, value: str) -> Path:
    """A file in the place of vm.panic_on_oom."""
    path = root / "panic_on_oom"
    path.write_text(f"{value}\n")
    patch.setattr(pod_brake, "PANIC_ON_OOM", str(path))
    return path


def _write(self: BrakeFile, value: str) -> None:
    """A file of the kernel has what was written last, and nothing of before."""
    os.ftruncate(self._write, 0)
    os.pwrite(self._write, value.encode(), 0)
