"""Instances of pins (`monitor.kernel.instances`) as far as directories go, in a root of the test's own."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.kernel import instances, mounts, pins


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of pins of the test's own on bpffs: others on this machine keep theirs."""
    mounts.ensure()
    root = pins.BPFFS / f"outrace-test-{os.getpid()}"
    monkeypatch.setattr(pins, "ROOT", root)
    yield root
    if root.is_symlink():
        root.unlink()
    if root.is_dir():
        instances.remove(root)
    for left in root.parent.glob(f"outrace_of_user_*_{os.getpid()}_*"):  # by other users, in a test
        subprocess.run(["rm", "-rf", left], check=True)


def new_instance(state: Path) -> Path:
    """Pins of a new state dir."""
    state.mkdir()
    directory = instances.instance_directory(state)
    instances.claim(directory, state)
    (directory / "stamp").mkdir()
    return directory
