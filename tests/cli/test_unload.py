"""`outrace unload` removes everything that was pinned, and nothing that is in use."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.kernel import loader, pins
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode
from tests import live
from tests.pin_instances import state_directory

pytestmark = [pytest.mark.kernel, pytest.mark.once]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state dir of its own with pins."""
    loader.ensure_loaded(tmp_path)
    yield tmp_path
    loader.unload(loader.instance_directory(tmp_path))


def test_it_refuses_while_a_daemon_runs_and_removes_everything_afterwards(state: Path) -> None:
    instance = loader.instance_directory(state)
    with LabNode("test-unload", 64 * MIB) as node:
        with live.daemon(node, state_dir=state, keep_pins=True) as daemon:
            refused = live.outrace("unload", "--state-dir", str(state))
            live.one_line(refused, 1, f"in use by pid {daemon.pid}", "--force")
            assert (instance / loader.stamp(live.rung(daemon)) / "link_on_mark_victim").exists()
            # Forced, the daemon goes on with its own descriptors.
            forced = live.outrace("unload", "--state-dir", str(state), "--force")
            assert forced.returncode == 0, forced.stderr
            assert not instance.exists()
            hog = live.filled(node, node.add_pod("late"), 8)
            assert hog.process.poll() is None
            assert daemon.get("/readyz")[0] == 200
            live.metric(daemon, 'records_total{kind="oom",side="kernel"}')
            # The side looks at the programs' counters with every turn.
            turns = live.metric(daemon, "loops_total")
            live.until(lambda: live.metric(daemon, "loops_total") > turns + 3, "some turns")
            assert live.metric(daemon, "side_starts_total") == 1
            live.ended(daemon)
        # The next one loads anew.
        with LabDaemon(node, state_dir=state, keep_pins=True) as daemon:
            assert daemon.log[0]["bpf"] == "loaded"
            live.ended(daemon)
    # Also when the state dir went first: then nobody can run there.
    shutil.rmtree(state)
    done = live.outrace("unload", "--state-dir", str(state))
    assert (done.returncode, done.stdout) == (0, "")
    count = len(pins.MAPS) + len(pins.TRACEPOINTS) + len(pins.RUN) + len(pins.OOM)
    assert done.stderr.strip() == f"removed {count} pins"
    assert not instance.exists()
    assert state_directory(instance) is None
    again = live.outrace("unload", "--state-dir", str(state))
    # "nothing": there is no other instance on this machine either.
    assert (again.returncode, again.stderr.strip()) in ((0, "removed 0 pins"), (0, "nothing is pinned"))


@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare (util-linux) is not installed")
def test_without_bpffs_there_is_nothing_to_remove() -> None:
    wrapper = (
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "/bin/sh",
        "-c",
        'umount /sys/fs/bpf && exec "$0" "$@"',
    )
    done = live.outrace("unload", wrapper=wrapper)
    assert (done.returncode, done.stderr.strip()) == (0, "nothing is pinned")
