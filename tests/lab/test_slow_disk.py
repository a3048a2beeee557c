"""Dirty page cache of a disk that does not write it in time, on the real kernel: who counts it as available."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.kernel import cgroupfs, loader, mounts
from monitor.lab import slow_disk
from monitor.lab.bench_signals import LOADS, play
from monitor.lab.child import PATIENCE_S
from tests import live

pytestmark = [pytest.mark.kernel, pytest.mark.once]
ROOT = Path(__file__).resolve().parents[2]
HIERARCHY = cgroupfs.detect()
#: Enters a slow disk, writes to it, says where that is, and stays.
OWNER = """
import os, sys, time
from pathlib import Path
from monitor.lab.node import MIB, LabNode
from monitor.lab.slow_disk import SlowDisk
with LabNode("test-slow", 64 * MIB) as node, SlowDisk(node, Path(sys.argv[1]), MIB) as disk:
    (disk.path / "dirty").write_bytes(bytes(4 * MIB))
    print(disk.path, os.stat(disk.path).st_dev, node.cgroup, flush=True)
    time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def _can_be_played() -> None:
    if problem := slow_disk.problem(HIERARCHY):
        pytest.skip(f"a slow disk {problem}")


def test_what_the_disk_does_not_write_in_time_is_not_obtainable(tmp_path: Path) -> None:
    """The kernel is the judge: nobody can go on for most of the time, or the OOM killer comes. memory.obtainable was
    below its line, and memory.reclaimable, which takes dirty page cache for available, was not.
    """
    mounts.ensure()
    state_dir = tmp_path / "state"
    state_dir.mkdir(mode=0o750)
    try:
        row = play(next(load for load in LOADS if load.disk), state_dir)
    finally:
        loader.unload(loader.instance_directory(state_dir))
    assert row["trouble"], row
    assert "memory.obtainable" in row["crossed"], row
    assert "memory.reclaimable" not in row["crossed"], row


def test_a_slow_disk_ends_with_its_owner(tmp_path: Path) -> None:
    """By SIGKILL, with 4 MiB left to write: it is unmounted, and no limit stays behind for who has the device next."""
    tmp_path.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as owner:  # fmt: skip
        assert owner.stdout is not None
        path, number, node = owner.stdout.readline().split()
        device = f"{os.major(int(number))}:{os.minor(int(number))}"
        limit = slow_disk.throttle_file()
        assert f"{device} " in limit.read_text()
        owner.send_signal(signal.SIGKILL)
        assert owner.wait(PATIENCE_S) == -signal.SIGKILL
    live.until(lambda: not Path(node).exists() and not os.listdir(tmp_path), "the janitor to be done")
    assert not [point for point, _, _ in cgroupfs.mount_table() if str(point) == path]
    assert f"{device} " not in limit.read_text()
