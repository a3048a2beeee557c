"""A small node for `outrace top`, and how it is called."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.kernel import cgroupfs
from tests.pods.manifest_folder import _pod, _write
from tests.puppet import Puppet, cgroup

MI = 1 << 20


@pytest.fixture
def node() -> Iterator[Path]:
    """A cgroup of 128 MiB as the node, with two pods in it."""
    if os.geteuid() != 0:
        pytest.skip("not root: cannot make a cgroup")
    with cgroup("top", 128 * MI) as path:
        cgroupfs.make(path / "quiet")
        cgroupfs.make(path / "busy")
        yield path


@pytest.fixture
def folder(tmp_path: Path, node: Path) -> Path:
    path = tmp_path / "pods"
    path.mkdir()
    for name, request in (("quiet", "32Mi"), ("busy", "1Mi")):
        _write(path / f"{name}.json", _pod(name, f"{node.name}/{name}", request))
    return path


@pytest.fixture
def busy(node: Path) -> Iterator[None]:
    """8 MiB held in the pod `busy`."""
    with Puppet(node / "busy") as puppet:
        puppet.do("anon(8)")
        yield


def common(folder: Path, tmp_path: Path, node: Path) -> list[str]:
    return ["--once", "--node-cgroup", node.name, "--pods", f"manifests:{folder}", "--state-dir", f"{tmp_path}/state"]
