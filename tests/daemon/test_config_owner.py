"""A configuration is root's alone: it names commands that root runs and pods that go first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.errors import ConfigError
from monitor.settings.read import build
from tests import others
from tests.daemon.config_files import KUBELET, write

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="not root: other users answer for their files themselves")
OWN = "reclaim-containers: [sh, -c, 'id > /tmp/owned']\n"


def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "own.yaml", OWN)
    assert build({}, path).reclaim_containers
    os.chown(path, others.UID, -1)
    with pytest.raises(ConfigError, match=rf"{path}: .*{path} belongs to user {others.UID}; chown root {path}"):
        build({}, path)


def test_a_file_that_another_user_can_write_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "own.toml", 'reclaim-containers = ["true"]\n')
    os.chmod(path, 0o666)
    with pytest.raises(ConfigError, match=rf"\(mode 666\) can be written by others; chmod go-w {path}"):
        build({}, path)


def test_a_directory_in_which_another_user_can_replace_it_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "d").mkdir()
    path = write(tmp_path / "d", "own.yaml", OWN)
    (tmp_path / "d").chmod(0o777)
    with pytest.raises(ConfigError, match=r"\(mode 777\) can be written by others"):
        build({}, path)


def test_a_link_of_another_user_to_a_file_of_roots_is_refused(tmp_path: Path) -> None:
    """It leads elsewhere at the next reload."""
    path = write(tmp_path, "own.yaml", OWN)
    (tmp_path / "link").symlink_to(path)
    os.lchown(tmp_path / "link", others.UID, -1)
    with pytest.raises(ConfigError, match=rf"link belongs to user {others.UID}"):
        build({}, str(tmp_path / "link"))


@pytest.mark.parametrize("which", ["file", "drop-in"])
def test_a_kubelets_files_too(tmp_path: Path, which: str) -> None:
    text = f"{KUBELET}evictionHard: {{memory.available: 90%}}\n"
    (tmp_path / "d").mkdir()
    given = (None, write(tmp_path, "k", text), None) if which == "file" else (None, None, str(tmp_path / "d"))
    path = write(tmp_path / "d", "1.conf", text) if which == "drop-in" else str(given[1])
    assert build({}, *given).eviction_hard["memory.available"] == "90%"
    os.chown(path, others.UID, -1)
    with pytest.raises(ConfigError, match=f"belongs to user {others.UID}"):
        build({}, *given)


@pytest.mark.parametrize("how", ["file", "pipe"])
def test_what_the_caller_hands_over_is_the_callers_word(tmp_path: Path, how: str) -> None:
    """`sudo outrace run --config /dev/stdin < mine.yaml`: no other user can change which file that is."""
    path = write(tmp_path, "own.yaml", "step: 2Mi\n")
    os.chown(path, others.UID, -1)
    code = "from monitor.settings.read import build; print(build({}, '/dev/stdin').step)"
    with open(path) as file:
        where = {"stdin": file} if how == "file" else {"input": file.read()}
        done = subprocess.run([sys.executable, "-c", code], **where, capture_output=True, text=True, check=True)
    assert done.stdout == f"{2 << 20}\n"
