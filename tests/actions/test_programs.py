"""Root runs programs that root alone could have put there: a clean-up's command, whatever $PATH names."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from monitor.actions import reclaim
from monitor.owner import ChangeableError, program, search_path
from tests import others

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="not root: other users answer for their files themselves")


def script(path: Path, says: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    os.chown(path, 0, -1)
    return path


Run = Callable[[str], tuple[int | None, str]]


@pytest.fixture
def run() -> Run:
    stop = os.eventfd(0)
    return lambda command: reclaim.run([command], 240.0, stop)


def test_a_script_of_another_user_is_not_run(tmp_path: Path, run: Run) -> None:
    made = script(tmp_path / "clean.sh", f"touch {tmp_path}/ran; echo done")
    assert run(str(made)) == (0, "done")
    (tmp_path / "ran").unlink()
    os.chown(made, others.UID, -1)
    with pytest.raises(ChangeableError, match=f"{made} belongs to user {others.UID}; chown root {made}"):
        run(str(made))
    assert not (tmp_path / "ran").exists()


def test_directories_of_others_in_the_path_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    script(tmp_path / "theirs" / "clean", "echo theirs")
    script(tmp_path / "ours" / "clean", "echo ours")
    script(tmp_path / "clean", "echo here")
    os.chown(tmp_path / "theirs", others.UID, -1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f":.:{tmp_path}/theirs:{tmp_path}/none:{tmp_path}/ours")
    assert search_path() == f"{tmp_path}/ours"
    assert run("clean") == (0, "ours")
    with pytest.raises(FileNotFoundError):
        program("no-such-program")


def test_a_clean_up_gets_nothing_of_the_environment_but_roots_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """`sudo -E` keeps CONTAINER_HOST (another user's service), XDG_* and HOME (another user's containers.conf)."""
    script(tmp_path / "bin" / "podman", f"env > {tmp_path}/env")
    own = tmp_path / "storage.conf"
    own.touch()
    bait = ("CONTAINER_HOST", "CONTAINER_CONNECTION", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "LD_PRELOAD", "PYTHONPATH")
    for name in bait:
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(own))
    assert run("podman") == (0, "")
    given = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert given.keys() - {"PWD", "SHLVL", "_"} == {"PATH", "HOME", "CONTAINERS_STORAGE_CONF"}
    assert given["HOME"] == "/root"
    os.chown(own, others.UID, -1)
    with pytest.raises(ChangeableError, match=f"{own} belongs to user {others.UID}; chown root {own}"):
        run("podman")
