"""Owners of pins: which process uses an instance, when its state dir is gone for certain, what another user may do."""

import errno
import os
import shlex
import shutil
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
from monitor.lab.node import MIB, LabNode
from tests import live, others, waiting
from tests.commands import run
from tests.pin_instances import new_instance, state_directory
from tests.pin_instances import root as root

pytestmark = [pytest.mark.kernel, pytest.mark.once]


def strays() -> list[Path]:
    return [found.path for found in instances.survey() if found.is_stray]


def test_an_instance_is_a_stray_when_its_state_dir_is_gone(root: Path, tmp_path: Path) -> None:
    """Also with its parents; one whose owner is not known, as an older version pinned it, is none."""
    (tmp_path / "a").mkdir()
    kept, gone = new_instance(tmp_path / "kept"), new_instance(tmp_path / "a" / "gone")
    (unknown := root / "0123456789ab" / "stamp").mkdir(parents=True)
    assert strays() == []
    assert instances.remove_strays() == []
    shutil.rmtree(tmp_path / "a")
    assert strays() == [gone]
    assert [found.path for found in instances.remove_strays()] == [gone]
    assert sorted(root.iterdir()) == sorted([kept, unknown.parent])
    assert state_directory(kept) == tmp_path / "kept"


def test_who_holds_an_instance_keeps_it(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a lock of the directory in bpffs: it is held whatever namespaces the two sides are in."""
    instance = new_instance(tmp_path / "state")
    (tmp_path / "state").rmdir()
    held = instances.hold(instance)
    try:
        assert strays() == []
        assert instances.remove_strays() == []
        assert instance.is_dir()
        monkeypatch.setattr(instances, "_PATIENCE_S", 0.0)
        with pytest.raises(MonitorError, match="in use by another outrace, whose state directory has the same path"):
            instances.hold(instance)
    finally:
        os.close(held)
    assert strays() == [instance]


def test_an_instance_without_pins_goes_with_its_holder(root: Path, tmp_path: Path) -> None:
    instance = root / "0123456789ab"
    instances.release(instances.hold(instance), instance)
    assert not root.exists()
    instance = new_instance(tmp_path / "state")
    (instance / "stamp" / "pin").symlink_to("nowhere")  # what bpffs takes without a BPF object
    instances.release(instances.hold(instance), instance)
    assert instance.is_dir()


@pytest.mark.parametrize(
    "change",
    [
        {"view": "id 1 root 1:1"},  # another mount namespace: its paths mean nothing here
        {"dev": 0},  # what is there now is another file system: this one is not mounted, or hidden below another
    ],
)
def test_what_is_not_known_to_be_gone_is_not(root: Path, tmp_path: Path, change: dict[str, object]) -> None:
    instance = new_instance(tmp_path / "state")
    found = instances.owner(instance)
    assert not instances.is_gone(found)
    (tmp_path / "state").rmdir()
    assert instances.is_gone(found)
    assert not instances.is_gone(found._replace(**change))


def test_a_state_dir_that_cannot_be_looked_at_is_not_gone(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, stat = instances.owner(new_instance(tmp_path / "state")), os.stat

    def refuse(path: object, **how: object) -> os.stat_result:
        if str(path) == found.state_dir:
            raise OSError(errno.EIO, "Input/output error")
        return stat(path, **how)

    monkeypatch.setattr(os, "stat", refuse)
    assert not instances.is_gone(found)


def test_a_state_dir_below_a_new_mount_is_not_gone(root: Path, tmp_path: Path) -> None:
    (tmp_path / "var").mkdir()
    instance = new_instance(tmp_path / "var" / "state")
    code = "import sys; from monitor.kernel import instances, pins; pins.ROOT = pins.Path(sys.argv[1]); "
    code += "print([s.path.name for s in instances.survey() if s.is_stray], len(instances.remove_strays()))"
    subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path / "var"], check=True)
    try:
        assert not (tmp_path / "var" / "state").exists()
        assert strays() == []
    finally:
        subprocess.run(["umount", tmp_path / "var"], check=True)
    # Nor is one that is there, but not in the mount namespace of what looks; nor one whose state dir was removed, to
    # what sees other file systems than it was seen in.
    private = live.in_own_mounts(f"mount -t tmpfs none {tmp_path / 'var'}", sys.executable, "-c", code, str(root))
    for step in (instance.is_dir, (tmp_path / "var" / "state").rmdir):
        step()
        assert run(*private, env=live.environment(), cwd="/", check=True).stdout == "[] 0\n"
    assert strays() == [instance]


def test_the_doctor_names_strays_and_the_remedy_removes_them(root: Path, tmp_path: Path) -> None:
    new_instance(tmp_path / "kept")
    other = new_instance(tmp_path / "another")
    (tmp_path / "another").rmdir()
    instance = new_instance(tmp_path / "it's gone")
    (instance / "stamp" / "pin").symlink_to("nowhere")
    (tmp_path / "it's gone").rmdir()

    def found() -> doctor.Check:
        [check] = [check for check in doctor.examine() if check.name == "stray-pins"]
        return check

    both = found()
    assert (str(other) in both.detail, str(instance) in both.detail) == (True, True)
    assert {len(shlex.split(one)) for one in both.remedy.split("; ")} == {4}
    assert f"outrace unload --state-dir {tmp_path}/another" in both.remedy.split("; ")
    instances.remove(other)
    pins_check = found()
    assert not pins_check.ok
    assert pins_check.detail == f"1 pins in {instance} of state dir {tmp_path / chr(105)}t's gone, which is gone"
    command = f'{sys.executable} -c "{live.CLI}" {pins_check.remedy.removeprefix("outrace ")}'
    command = command.replace(
        "from monitor", f"from monitor.kernel import pins; pins.ROOT = pins.Path('{root}'); from monitor"
    )
    done = run("/bin/sh", "-c", command, env=live.environment(), check=True)
    assert done.stderr == "removed 1 pins\n"
    assert [path.name for path in root.iterdir()] == [instances.instance_directory(tmp_path / "kept").name]


def test_a_daemon_that_starts_removes_strays_and_keeps_what_is_in_use(tmp_path: Path) -> None:
    """The programs of a state dir that is gone stay for the daemon that runs, and go when another starts after it."""
    with LabNode("test-strays", 64 * MIB) as node:
        used, gone = tmp_path / "used", tmp_path / "gone"
        with live.daemon(node, state_dir=used, keep_pins=True) as daemon:
            shutil.rmtree(used)  # under its feet
            live.lend_pins(gone)
            shutil.rmtree(gone)
            with live.daemon(node) as other:
                # Another worker's daemon may start in this instant, and come first.
                waiting.until(lambda: not instances.instance_directory(gone).exists(), "the stray stays")
                removed = live.messages(other, "removed the pins of a state dir that is gone")
                assert all(line["pins"] > 20 for line in removed if line["of"] == str(gone))
            assert instances.instance_directory(used).is_dir()
            assert daemon.get("/readyz")[0] == 200
            live.ended(daemon)
        with live.daemon(node):
            waiting.until(lambda: not instances.instance_directory(used).exists(), "the stray stays")


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
        instances.tidy(instance)
        assert not instance.exists()
    finally:
        instances.remove(instance)
    assert loader.instance_directory(tmp_path) == instance


@pytest.fixture(autouse=True)
def writable() -> None:
    if os.stat(pins.BPFFS).st_mode & 0o1777 != 0o1777:
        pytest.skip("bpffs is root's alone here: no other user gets in")


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
    owner = f'{{"state_dir": "{tmp_path}/evil", "dev": 1, "view": "x"}}'
    others.does(f"os.makedirs('{wanted}/stamp'); os.symlink({owner!r}, '{wanted}/owner')")
    assert instances.survey() == []  # `outrace unload` would undo what is written down in that "state dir"
    os.close(instances.hold(wanted))
    assert list(wanted.iterdir()) == []
    assert (root.stat().st_uid, root.stat().st_mode & 0o777) == (0, 0o700)
    assert [left.stat().st_uid for left in root.parent.glob(f"outrace_of_user_*_{os.getpid()}_*")] == [others.UID]


def test_a_tree_of_another_user_is_put_aside_however_deep_it_is(root: Path, tmp_path: Path) -> None:
    others.does(f"os.mkdir('{root}'); os.chdir('{root}')\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')")
    made_instance(tmp_path / "state")
    assert root.stat().st_uid == 0


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
