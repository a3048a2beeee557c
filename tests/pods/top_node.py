"""A small node for `outrace top`, and how it is called."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from monitor.kernel import cgroupfs
from tests.pods.manifest_folder import _pod, _write
from tests.puppet import Puppet, cgroup

MI = 1 << 20


class SmallNode(NamedTuple):
    """A cgroup of 128 MiB as the node, with the pods `quiet` and `busy` in it; 8 MiB are held in `busy`."""

    path: Path
    folder: Path  # with their manifests
    options: tuple[str, ...]


@pytest.fixture
def small(tmp_path: Path, folder: Path) -> Iterator[SmallNode]:
    if os.geteuid() != 0:
        pytest.skip("not root: cannot make a cgroup")
    with cgroup("top", 128 * MI) as path:
        for name, request in (("quiet", "32Mi"), ("busy", "1Mi")):
            cgroupfs.make(path / name)
            _write(folder / f"{name}.json", _pod(name, f"{path.name}/{name}", request))
        with Puppet(path / "busy") as puppet:
            puppet.do("anon(8)")
            where = ("--node-cgroup", path.name, "--pods", f"manifests:{folder}", "--state-dir", f"{tmp_path}/state")
            yield SmallNode(path, folder, where)
