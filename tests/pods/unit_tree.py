"""A tree of cgroups as systemd makes its own, with a process in each unit; for tests of `--pods services`."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from monitor.kernel import cgroupfs
from monitor.pods.model import Within
from monitor.pods.services import ServiceSource
from monitor.policy.pods import Pod
from tests.puppet import cgroup

MI = 1 << 20
GI = 1 << 30
ID, OTHER, POD = "46b4aeed" * 8, "c0ffee00" * 8, "73fa3535" * 8
MANAGER = "user.slice/user-1000.slice/user@1000.service"
USER = 1000


class Machine:
    """With the cgroups of its units below ``path``, and sockets of runtimes."""

    def __init__(self, path: Path, sockets: Path) -> None:
        self.path, self.sockets, self.hierarchy = path, sockets, cgroupfs.detect()
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, unit: str, *more: str) -> Path:
        """Make the cgroups of these units, each with a process in it; the first one's."""
        for name in (unit, *more):
            path = cgroupfs.make(self.path / name)
            self._running.append(subprocess.Popen(["sleep", "600"]))
            (path / "cgroup.procs").write_text(str(self._running[-1].pid))
        return self.path / unit

    def request(self, path: Path, size: int) -> Path:
        """Write the request of a unit; the file that has it."""
        file = path / ("memory.low" if self.hierarchy.version == 2 else "memory.soft_limit_in_bytes")
        file.write_text(str(size))
        return file

    def source(
        self, rules: dict[str, dict[str, Any]] | None = None, spared: tuple[int, ...] = (), **rest: Any
    ) -> closing[ServiceSource]:
        return closing(ServiceSource(16 * GI, Within(self.hierarchy, self.path, spared), rules, **rest))

    def looked(self, rules: dict[str, dict[str, Any]] | None = None, **rest: Any) -> dict[str, Pod]:
        """The pods of one look, which has no problem."""
        with self.source(rules, **rest) as found:
            assert found.poll().problems == []
            return pods(found)

    def close(self) -> None:
        for process in self._running:
            with process:
                process.kill()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.skip("not root: cannot make a cgroup")
    with cgroup("services") as path, closing(Machine(path, tmp_path)) as made:
        yield made


def pid_of(path: Path) -> int:
    """Of the only process in this cgroup."""
    return int((path / "cgroup.procs").read_text())


def pods(found: ServiceSource) -> dict[str, Pod]:
    return {f"{one.pod.namespace}/{one.pod.name}": one.pod for one in found.pods.values()}


def again(found: ServiceSource) -> dict[str, Pod]:
    """The pods of another look at everything."""
    found._next_scan = 0.0
    found.poll()
    return pods(found)
