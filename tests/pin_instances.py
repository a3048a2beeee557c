"""Instances of pins (`monitor.kernel.instances`) as far as directories go, in a root of the test's own."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.kernel import instances, mounts, pins


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of pins on a bpffs of the test's own, where every user may make directories."""
    mounts.ensure()
    bpffs = Path(tempfile.mkdtemp(prefix="outrace-test-", dir="/run"))
    bpffs.chmod(0o755)
    subprocess.run(["mount", "-t", "bpf", "-o", "mode=1777", "bpf", bpffs], check=True)
    try:
        monkeypatch.setattr(pins, "ROOT", bpffs / "outrace")
        yield bpffs / "outrace"
    finally:
        subprocess.run(["umount", "--lazy", bpffs], check=True)
        bpffs.rmdir()


def new_instance(state: Path) -> Path:
    """Pins of a new state dir."""
    state.mkdir()
    directory = instances.instance_directory(state)
    instances.claim(directory, state)
    (directory / "stamp").mkdir()
    return directory
