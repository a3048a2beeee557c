"""Manifests decide which pod is killed: read only where only root can have written them, as the state directory is."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from monitor import owner
from monitor.errors import ConfigError
from monitor.kernel.cgroupfs import Hierarchy
from monitor.owner import ChangeableError, changed_by, mend, read_alone
from monitor.pods.model import Change, PodSource
from monitor.pods.source import open_for
from monitor.settings.config import RunConfig
from tests import others
from tests.commands import run
from tests.daemon.config_files import build
from tests.filesystems import Mounts
from tests.pods.manifest_folder import GI, Place, _names, _pod, _write
from tests.waiting import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="not root: cannot give files to another user")
NOBODY = 65534


@pytest.fixture
def source(place: Place, pods: PodSource) -> PodSource:
    for name in ("a", "b"):
        place.add(name, file=f"{name}.json")
    return pods


@contextmanager
def entered(path: Path) -> Iterator[None]:
    """pytest's directories, open to other users for a while."""
    closed = [(p, p.stat().st_mode) for p in (path, *path.parents) if p.stat().st_uid == 0 and not p.stat().st_mode & 1]
    for directory, mode in closed:
        directory.chmod(mode | 0o111)
    try:
        yield
    finally:
        for directory, mode in closed:
            directory.chmod(mode)


def printed(script: str, *command: str, **options: Any) -> str:
    """What Python prints for expressions of `changed_by`, by way of a command."""
    code = f"from pathlib import Path; from monitor.owner import changed_by; print({script})"
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": os.environ["PATH"]}
    done = run(*command, "python3", "-c", code, env=environment, **options)
    if "Permission denied" in done.stderr or "No module" in done.stderr:
        pytest.skip("the code cannot be read as another user here")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("wrong", ["owner", "group", "others", "above", "link"])
def test_a_directory_that_others_may_write_in_is_refused(
    tmp_path: Path, folder: Path, source: PodSource, wrong: str
) -> None:
    named = folder
    if wrong == "owner":
        os.chown(folder, NOBODY, -1)
    elif wrong == "above":
        tmp_path.chmod(0o777)
    elif wrong == "link":
        named = tmp_path / "link"
        named.symlink_to(folder)
        os.chown(named, NOBODY, -1, follow_symlinks=False)
    else:
        folder.chmod(0o775 if wrong == "group" else 0o757)
    bad = {"above": tmp_path, "link": named}.get(wrong, folder)
    problem = f"{bad} belongs to user {NOBODY}" if wrong in ("owner", "link") else f"{bad} (mode "
    remedy = f"chown root {bad}" if wrong in ("owner", "link") else f"chmod go-w {bad}"
    for refuse in (
        lambda: build({"pods": f"manifests:{named}"}),
        lambda: open_for(RunConfig(pods=f"manifests:{named}"), Hierarchy(2, tmp_path), 16 * GI),
    ):
        with pytest.raises(ConfigError) as error:
            refuse()
        assert error.value.exit_code == 2
        assert problem in str(error.value)
        assert remedy in str(error.value)
    if named == folder:
        assert source.poll().problems[0].startswith(f"{folder}: {problem}")


def test_while_others_may_write_in_it_its_last_manifests_stay(folder: Path, source: PodSource) -> None:
    assert _names(source.poll()) == ["a", "b"]
    folder.chmod(0o777)
    with entered(folder):
        new = f"open('{folder}/new', 'w').write('{{}}'); os.replace('{folder}/new', '{folder}/b.json')"
        others.does(f"os.remove('{folder}/a.json'); {new}")
    change = source.poll()
    assert (change.updated, change.removed) == ([], [])
    [problem] = change.problems
    assert "can be written by others, who could have any pod killed: its last manifests stay in use" in problem
    folder.chmod(0o755)
    change = until(lambda: (found := source.poll()) != Change() and found, "another look")
    assert change.removed == ["uid-a"]
    assert any(f"b.json belongs to user {NOBODY}" in problem for problem in change.problems)


def test_a_directory_of_the_users_own_is_for_his_own_looks(tmp_path: Path) -> None:
    """`outrace explain` as another user, which may trust itself."""
    own = tmp_path / "own"
    own.mkdir()
    os.chown(own, NOBODY, NOBODY)
    with entered(tmp_path):
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        assert printed(f"changed_by(Path({str(own)!r}))", "/usr/bin/env", **user) == "\n"


def own(path: Path) -> None:
    os.chown(path, NOBODY, -1)


@pytest.mark.parametrize("spoil", [own, lambda path: path.chmod(0o666)], ids=["owner", "mode"])
def test_a_file_of_others_is_refused_and_the_rest_stays_in_force(
    folder: Path, source: PodSource, spoil: Callable[[Path], None]
) -> None:
    spoil(folder / "a.json")
    change = source.poll()
    assert _names(change) == ["b"]
    [problem] = change.problems
    assert problem.startswith(f"{folder}/a.json: {folder}/a.json ")
    assert "who could have any pod killed; ch" in problem
    assert problem.endswith(f"{folder}/a.json")


def test_a_file_that_came_to_be_anothers_keeps_its_last_good_pods(folder: Path, source: PodSource) -> None:
    assert _names(source.poll()) == ["a", "b"]
    _write(folder / "a.json", _pod("a", "a", "1Ti"))
    own(folder / "a.json")
    change = source.poll()
    assert (change.updated, change.removed) == ([], [])
    assert "still used as it was: default/a" in change.problems[0]
    assert source.pods["uid-a"].pod.containers[0].requests["memory"].value == 64 << 20


@pytest.mark.parametrize("wrong", ["", "target", "directory", "link on the way", "sticky link"])
def test_a_link_is_followed_where_root_alone_could_have_made_the_way(
    tmp_path: Path, place: Place, source: PodSource, wrong: str
) -> None:
    assert _names(source.poll()) == ["a", "b"]
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    target = home / "c.json"
    place.cgroup("c")
    _write(target, _pod("c", "c"))
    way = target
    if wrong == "target":
        own(target)
    elif wrong == "directory":
        own(home)
    elif wrong == "link on the way":
        # Root's own file at its end, and a link in between that the user points anywhere.
        middle = tmp_path / "middle"
        middle.mkdir()
        (middle / "c.json").symlink_to(target)
        own(middle)
        way = middle / "c.json"
    elif wrong == "sticky link":
        sticky = tmp_path / "sticky"
        sticky.mkdir()
        sticky.chmod(0o1777)
        with entered(sticky):
            others.does(f"os.symlink('{target}', '{sticky}/c.json')")
        way = sticky / "c.json"
    (place.folder / "c.json").symlink_to(way)
    change = source.poll()
    assert _names(change) == ([] if wrong else ["c"])
    assert len(change.problems) == bool(wrong)
    if wrong:
        assert f"belongs to user {NOBODY}, who could have any pod killed" in change.problems[0]


def test_a_mounted_configmap_is_taken(tmp_path: Path) -> None:
    """The kubelet mounts it read-only with mode 0777, with a link to the directory of its version."""
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("unshare --mount is not allowed here")
    volume = tmp_path / "volume"
    (volume / "..2026_01").mkdir(parents=True)
    (volume / "..2026_01/a.yaml").write_text("x")
    (volume / "..data").symlink_to("..2026_01")
    (volume / "a.yaml").symlink_to("..data/a.yaml")
    volume.chmod(0o777)
    mount = f'mount --bind {volume} {volume}; mount -o remount,ro,bind {volume}; exec "$@"'
    paths = (str(volume), str(volume / "a.yaml"))
    found = printed(f"[changed_by(Path(p)) for p in {paths!r}]", "unshare", "--mount", "sh", "-ec", mount, "sh")
    assert found == "['', '']\n"
    assert "(mode 777) can be written by others" in changed_by(volume)


def test_in_a_sticky_directory_only_a_directory_of_roots_is_believed(tmp_path: Path) -> None:
    """A user can link or move a file of root's there, but no directory of root's."""
    sticky = tmp_path / "sticky"
    (sticky / "d").mkdir(parents=True)
    (sticky / "d/file").write_text("x")
    sticky.chmod(0o1777)
    assert changed_by(sticky / "d/file") == ""
    os.link(sticky / "d/file", sticky / "file")
    (sticky / "link").symlink_to(sticky / "d")
    for path in (sticky / "file", sticky / "link/file"):
        bad = sticky / path.relative_to(sticky).parts[0]
        assert changed_by(path) == f"{bad} is in a directory where others can put files"
    assert mend(changed_by(sticky / "file")) == "move it into a directory of root's"
    assert changed_by(sticky).startswith(f"{sticky} (mode 1777)")


@pytest.mark.kernel
def test_a_mount_in_a_sticky_directory_is_its_mounters(mounts: Mounts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root alone mounts a tmpfs; a user's FUSE mount says that root owns all of it."""
    mounted = mounts.tmpfs("sticky/d", size=1 << 20)
    mounted.chmod(0o755)
    mounted.parent.chmod(0o1777)
    (mounted / "file").write_text("x")
    assert changed_by(mounted / "file") == ""
    monkeypatch.setattr(owner, "mounted_by", lambda *_: NOBODY)
    assert changed_by(mounted / "file") == f"{mounted} is a FUSE mount of user {NOBODY}"


def test_the_user_of_a_fuse_mount_is_in_mountinfo() -> None:
    lines = [
        "29 1 0:26 / /run rw,nosuid shared:5 - tmpfs tmpfs rw,mode=755",
        "41 29 0:57 / /home/u/x rw,nosuid - fuse.sshfs u@h: rw,user_id=1000,group_id=1000,allow_other",
        "42 29 0:58 / /var/lib/lxcfs rw,relatime - fuse.lxcfs lxcfs rw,user_id=0,group_id=0,allow_other",
    ]
    assert [owner.mounted_by(os.makedev(0, minor), lines) for minor in (26, 57, 58, 99)] == [0, 1000, 0, 0]


def test_what_is_above_a_link_is_what_the_kernel_finds_there(tmp_path: Path) -> None:
    (tmp_path / "users/d").mkdir(parents=True)
    (tmp_path / "users/file").write_text("users'")
    (tmp_path / "file").write_text("root's")
    (tmp_path / "link").symlink_to("users/d")
    os.chown(tmp_path / "users", NOBODY, -1)
    path = tmp_path / "link/../file"
    assert path.read_text() == "users'"
    assert changed_by(path) == f"{tmp_path / 'users'} belongs to user {NOBODY}"
    assert changed_by(Path(f"{tmp_path}/./link/../../file")).startswith(f"{tmp_path / 'users'} belongs")
    assert changed_by(Path(f"{tmp_path}/../{tmp_path.name}/file")) == ""


@pytest.mark.kernel
def test_a_nodes_own_directory_is_not_safe_because_it_is_mounted_read_only(tmp_path: Path) -> None:
    """As in the DaemonSet: on the node others can write there."""
    (tmp_path / "node").mkdir()
    (tmp_path / "pod").mkdir()
    (tmp_path / "node/file").write_text("x")
    (tmp_path / "node").chmod(0o777)
    if run("mount", "--bind", str(tmp_path / "node"), str(tmp_path / "pod")).returncode:
        pytest.skip("no mounts here")
    try:
        assert run("mount", "-o", "remount,bind,ro", str(tmp_path / "pod")).returncode == 0
        assert changed_by(tmp_path / "pod/file") == ""
        with pytest.raises(ChangeableError, match=f"chmod go-w {tmp_path / 'pod'}"):
            read_alone(tmp_path / "pod/file", mounted=False)
    finally:
        run("umount", str(tmp_path / "pod"))


def test_a_path_that_leads_into_a_container_is_not_checked_outside_of_it(tmp_path: Path) -> None:
    """The link /proc/PID/root says "/", and a path beyond it was looked at on the machine and read in the container."""
    (tmp_path / "file").write_text("root's")
    script = f"mount -t tmpfs none {tmp_path}; echo x > {tmp_path}/file; chown {NOBODY} {tmp_path}/file; echo; read x"
    command = ["unshare", "--mount", "sh", "-ec", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        path = Path(f"/proc/{process.pid}/root{tmp_path}/file")
        assert changed_by(path) == f"{path} leads into another mount namespace"
        with pytest.raises(ChangeableError, match="name a copy of it"):
            read_alone(path)
        process.kill()
    assert changed_by(tmp_path / "file") == ""
