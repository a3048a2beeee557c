"""A tree of cgroups as systemd makes its own, with a process in each unit; for tests of `--pods services`."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.pods.model import Within
from monitor.pods.services import ServiceSource
from monitor.policy.pods import Pod
from tests.puppet import cgroup

MI = 1 << 20
GI = 1 << 30
ID, OTHER, POD = "46b4aeed" * 8, "c0ffee00" * 8, "73fa3535" * 8
MANAGER = "user.slice/user-1000.slice/user@1000.service"
USER = 1000
Start = Callable[[str], Path]
Tree = tuple[Hierarchy, Path]


@pytest.fixture
def tree() -> Iterator[Tree]:
    if os.geteuid() != 0:
        pytest.skip("not root: cannot make a cgroup")
    with cgroup("services") as path:
        yield cgroupfs.detect(), path


@pytest.fixture
def start(tree: Tree) -> Iterator[Start]:
    """Makes a unit's cgroup with a process in it."""
    running: list[subprocess.Popen[bytes]] = []

    def run(unit: str) -> Path:
        path = cgroupfs.make(tree[1] / unit)
        running.append(subprocess.Popen(["sleep", "600"]))
        (path / "cgroup.procs").write_text(str(running[-1].pid))
        return path

    yield run
    for process in running:
        with process:
            process.kill()


def source(
    tree: Tree, rules: dict[str, dict[str, Any]] | None = None, spared: tuple[int, ...] = (), **rest: Any
) -> closing[ServiceSource]:
    return closing(ServiceSource(16 * GI, Within(*tree, spared), rules, **rest))


def pods(found: ServiceSource) -> dict[str, Pod]:
    return {f"{one.pod.namespace}/{one.pod.name}": one.pod for one in found.pods.values()}


def looked(tree: Tree, rules: dict[str, dict[str, Any]] | None = None, **rest: Any) -> dict[str, Pod]:
    """The pods of one look, which has no problem."""
    with source(tree, rules, **rest) as found:
        assert found.poll().problems == []
        return pods(found)


def again(found: ServiceSource) -> dict[str, Pod]:
    """The pods of another look at everything."""
    found._next_scan = 0.0
    found.poll()
    return pods(found)


def write_request(hierarchy: Hierarchy, path: Path, size: int) -> Path:
    name = "memory.low" if hierarchy.version == 2 else "memory.soft_limit_in_bytes"
    (path / name).write_text(str(size))
    return path / name
