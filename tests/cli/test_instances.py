"""Which state dir an instance of pins belongs to; `outrace unload` removes what was pinned, and nothing in use."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.cli.run import lock
from monitor.kernel import instances, loader, pins
from monitor.lab.node import MIB, LabNode
from tests import live, others
from tests.commands import called, run
from tests.pin_instances import new_instance
from tests.pin_instances import root as root

pytestmark = [pytest.mark.kernel, pytest.mark.once]


def test_unload_goes_on_after_one_that_is_in_use(root: Path, tmp_path: Path) -> None:
    states = sorted((tmp_path / name for name in "abc"), key=loader.instance_directory)
    first, busy, last = (new_instance(state) for state in states)
    held = lock(states[1])
    try:
        in_use = f"{busy} is in use by pid {os.getpid()}; stop that daemon first"
        live.one_line(called("unload"), 1, in_use)
        assert list(root.iterdir()) == [busy]
        assert [instances.owner(one) for one in (first, busy, last)] == [None, states[1], None]
    finally:
        os.close(held)
    assert called("unload").returncode == 0
    assert not root.exists()


def test_nothing_in_the_working_directory_is_imported(root: Path, tmp_path: Path) -> None:
    """Also not by the loader, which imports what no other part does."""
    evil, state, marker = tmp_path / "evil", tmp_path / "state", tmp_path / "imported"
    evil.mkdir()
    state.mkdir(mode=0o700)
    for module in ("bcc", "hashlib", "json", "subprocess"):
        (evil / f"{module}.py").write_text(f"open({str(marker)!r}, 'w').close()\nraise ImportError('evil')\n")
    code = (
        "import sys; from pathlib import Path; from monitor.kernel import instances, loader, pins; "
        "pins.ROOT = Path(sys.argv[1]); loader.ensure_loaded(Path(sys.argv[2]))"
    )
    done = run(sys.executable, "-P", "-c", code, str(root), str(state), env=live.environment(), cwd=evil)
    assert not marker.exists()
    assert done.returncode == 0, done.stderr
    (found,) = [path.parent for path in root.glob("*/*/prog_on_mark_victim")]
    assert found in [loader.instance_directory(state) / loader.stamp(hook) for hook in pins.HOOKS]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state dir of its own with pins."""
    loader.ensure_loaded(tmp_path)
    yield tmp_path
    loader.unload(loader.instance_directory(tmp_path))


@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare (util-linux) is not installed")
def test_without_bpffs_there_is_nothing_to_remove() -> None:
    done = live.outrace("unload", wrapper=live.in_own_mounts("umount /sys/fs/bpf"))
    assert (done.returncode, done.stderr.strip()) == (0, "nothing is pinned")


def test_it_refuses_while_a_daemon_runs_and_then_removes_everything(state: Path) -> None:
    instance = loader.instance_directory(state)
    count = len(pins.MAPS) + len(pins.TRACEPOINTS) + len(pins.RUN) + len(pins.OOM)
    with LabNode("test-unload", 64 * MIB) as node, live.daemon(node, state_dir=state, keep_pins=True) as daemon:
        live.one_line(called("unload", "--state-dir", str(state)), 1, f"in use by pid {daemon.pid}")
        assert (instance / loader.stamp(live.rung(daemon)) / "link_on_mark_victim").exists()
        live.ended(daemon)
    done = called("unload", "--state-dir", str(state))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"removed {count} pins\n")
    assert not instance.exists()
    assert instances.owner(instance) is None
    shutil.rmtree(state)  # also without it
    done = called("unload", "--state-dir", str(state))
    # "nothing": there is no other instance on this machine either.
    assert (done.returncode, done.stderr) in ((0, "removed 0 pins\n"), (0, "nothing is pinned\n"))


#: A lock that no process ever writes into.
MADE = """
os.makedirs(state, exist_ok=True)
os.mkfifo(f"{state}/lock")
"""


@pytest.mark.parametrize("given", [True, False], ids=["given", "of pins"])
def test_a_state_directory_of_another_user_is_not_believed(
    root: Path, monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    """Root removed it from /tmp, and its pins stayed: another user has the name now."""
    monkeypatch.setattr("monitor.cli.unload.STATE_DIR", "/nonexistent")
    with others.shared() as shared:
        state = shared / "state"
        instance = new_instance(state)
        state.rmdir()
        others.does(f"state = {os.fspath(state)!r}\n{MADE}")
        done = called("unload", *(["--state-dir", str(state)] if given else []))
        assert done.returncode == 1
        [*_, line] = done.stderr.splitlines()
        assert f"{state} belongs to user {others.UID}; chown root {state}" in line
        assert not instance.exists()
