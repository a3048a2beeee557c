"""Owners of pins: which process uses an instance, whose it is, what another user may do."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from monitor.cli import doctor
from monitor.errors import MonitorError
from monitor.kernel import instances, loader, pins
from tests import live, others
from tests.pin_instances import new_instance
from tests.pin_instances import root as root

pytestmark = [pytest.mark.kernel, pytest.mark.once]


def test_an_instance_has_the_state_dir_of_its_owner(root: Path, tmp_path: Path) -> None:
    """One of an older version is of no known one, until its daemon starts again."""
    instance = new_instance(tmp_path / "state")
    assert instances.owner(instance) == tmp_path / "state"
    (instance / "owner").unlink()
    assert instances.owner(instance) is None
    (instance / "owner").symlink_to('{"state_dir": "/state"}')
    assert [found.state_dir for found in instances.survey()] == [None]
    instances.claim(instance, tmp_path / "state")
    assert instances.owner(instance) == tmp_path / "state"


def test_who_holds_an_instance_keeps_it(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a lock of the directory in bpffs: it is held whatever namespaces the two sides are in."""
    instance = new_instance(tmp_path / "state")
    held = instances.hold(instance)
    try:
        assert [found.in_use for found in instances.survey()] == [True]
        monkeypatch.setattr(instances, "_PATIENCE_S", 0.0)
        with pytest.raises(MonitorError, match="in use by another outrace, whose state directory has the same path"):
            instances.hold(instance)
    finally:
        os.close(held)
    assert [found.in_use for found in instances.survey()] == [False]


def test_an_instance_without_pins_goes_with_its_holder(root: Path, tmp_path: Path) -> None:
    instance = root / "0123456789ab"
    instances.release(instances.hold(instance), instance)
    assert not root.exists()
    instance = new_instance(tmp_path / "state")
    (instance / "stamp" / "pin").symlink_to("nowhere")  # what bpffs takes without a BPF object
    instances.release(instances.hold(instance), instance)
    assert instance.is_dir()


def test_the_doctor_names_pins_whose_state_dir_is_gone(root: Path, tmp_path: Path) -> None:
    kept, gone = new_instance(tmp_path / "kept"), new_instance(tmp_path / "gone")
    (gone / "stamp" / "pin").symlink_to("nowhere")  # what bpffs takes without a BPF object
    (tmp_path / "gone").rmdir()
    [check] = [check for check in doctor.examine() if check.name == "pins"]
    assert check.ok
    assert f"0 pins in {kept} of state dir {tmp_path}/kept, for the next start" in check.detail
    assert f"1 pins in {gone} of state dir {tmp_path}/gone, which cannot be seen from here" in check.detail


def test_a_loader_ends_with_who_waits_for_it(tmp_path: Path) -> None:
    """Else it would pin programs without a user, when the state dir is removed already."""
    tmp_path.chmod(0o700)
    command = [sys.executable, "-c", live.CLI, "run", "--state-dir", str(tmp_path), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, env=live.environment(), stderr=subprocess.DEVNULL)

    def loaders() -> list[int]:
        found = []
        for pid in live.children(process.pid):
            with suppress(OSError):  # another child, which ended
                if b"monitor.kernel.loader" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(os.pidfd_open(pid))
        return found

    try:
        [pidfd] = live.until(loaders, "the loader to be started")
        time.sleep(0.2)  # well into compiling
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    live.ends(pidfd, fd=True)
    instance = instances.instance_directory(tmp_path)
    try:
        assert instances.pinned(instance) == 0
    finally:
        instances.remove(instance)
    assert loader.instance_directory(tmp_path) == instance


def made_instance(state: Path) -> Path:
    """The directory of a new state dir, as a daemon makes it."""
    state.mkdir()
    wanted = instances.instance_directory(state)
    os.close(instances.hold(wanted))
    return wanted


def test_the_pins_of_another_user_are_not_believed(root: Path, tmp_path: Path) -> None:
    """It knows state dir, kernel and programs, so it makes the directory that says: these pins are loaded."""
    state = tmp_path / "state"
    state.mkdir()
    wanted = instances.instance_directory(state)
    others.does(f"os.makedirs('{wanted}/stamp'); os.symlink('of {tmp_path}/evil', '{wanted}/owner')")
    assert instances.survey() == []  # `outrace unload` would undo what is written down in that "state dir"
    os.close(instances.hold(wanted))
    assert list(wanted.iterdir()) == []
    assert (root.stat().st_uid, root.stat().st_mode & 0o777) == (0, 0o700)
    assert [left.stat().st_uid for left in root.parent.glob(f"outrace_of_user_*_{os.getpid()}_*")] == [others.UID]


def test_another_user_that_makes_it_again_and_again_does_not_win(root: Path, tmp_path: Path) -> None:
    code = f"""
print("begins", flush=True)
while True:
    try:
        os.makedirs("{root}/x")
    except OSError:
        pass
"""
    with others.doing(code):
        for number in range(20):
            made_instance(tmp_path / str(number))
            assert root.stat().st_uid == 0
            instances.remove(root)


def test_another_user_cannot_lock_an_instance(root: Path, tmp_path: Path) -> None:
    instance = new_instance(tmp_path / "state")
    root.chmod(0o755)  # as a version before this made it
    os.close(instances.hold(instance))
    code = f"""
try:
    fd = os.open("{instance}", os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    print("locked", flush=True)
except OSError as error:
    print("refused", flush=True)
time.sleep(60)
"""
    with others.doing(code):
        os.close(instances.hold(instance))


def test_a_link_in_the_place_of_the_root_is_replaced(root: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    others.does(f"os.symlink('{precious}', '{root}')")
    made_instance(tmp_path / "state")
    assert not root.is_symlink()
    assert list(root.parent.glob(f"outrace_of_user_*_{os.getpid()}_*")) == []
    assert [path.name for path in precious.iterdir()] == ["file"]
    assert root == pins.ROOT
