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
KUBELETS = f"{KUBELET}evictionHard: {{memory.available: 90%}}\n"


@pytest.mark.parametrize(
    ("name", "text", "position"), [("own.yaml", OWN, 0), ("kubelet.yaml", KUBELETS, 1), ("d/1.conf", KUBELETS, 2)]
)
def test_a_file_of_another_user_is_refused(tmp_path: Path, name: str, text: str, position: int) -> None:
    """The own one, a kubelet's, and a drop-in of that."""
    (tmp_path / "d").mkdir()
    path = write(tmp_path, name, text)
    files: list[str | None] = [None] * 3
    files[position] = str(tmp_path / "d") if position == 2 else path
    assert build({}, *files) != build({})
    os.chown(path, others.UID, -1)
    with pytest.raises(ConfigError, match=rf"{path}: .*{path} belongs to user {others.UID}; chown root {path}"):
        build({}, *files)


def test_a_file_that_another_user_can_write_or_replace_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    path = write(tmp_path, "own.toml", 'reclaim-containers = ["true"]\n')
    os.chmod(path, 0o666)
    with pytest.raises(ConfigError, match=rf"\(mode 666\) can be written by others; chmod go-w {path}"):
        build({}, path)
    (tmp_path / "d").mkdir()
    path = write(tmp_path / "d", "own.yaml", OWN)
    (tmp_path / "d").chmod(0o777)
    with pytest.raises(ConfigError, match=r"\(mode 777\) can be written by others"):
        build({}, path)


def test_a_link_of_another_user_to_a_file_of_roots_is_refused(tmp_path: Path) -> None:
    """It leads elsewhere at the next reload."""
    (tmp_path / "link").symlink_to(write(tmp_path, "own.yaml", OWN))
    os.lchown(tmp_path / "link", others.UID, -1)
    with pytest.raises(ConfigError, match=rf"link belongs to user {others.UID}"):
        build({}, str(tmp_path / "link"))


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
