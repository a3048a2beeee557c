"""bpffs may be writable for every user (mode 1777): what uid 65534 makes or locks there changes nothing for outrace."""

import os
from pathlib import Path

import pytest

from monitor.kernel import instances, mounts, pins
from tests import others
from tests.pin_instances import new_instance
from tests.pin_instances import root as root

pytestmark = [pytest.mark.kernel, pytest.mark.once]


@pytest.fixture(autouse=True)
def writable() -> None:
    if os.stat(mounts.BPFFS.path).st_mode & 0o1777 != 0o1777:
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
    assert list(root.parent.glob("outrace_of_user_*")) == []


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
    assert list(root.parent.glob("outrace_of_user_*")) == []
    assert [path.name for path in precious.iterdir()] == ["file"]
    assert root == pins.ROOT
