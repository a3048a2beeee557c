"""The parts of `make test-vm` that need no guest: boot records, images, what goes into a guest and comes out."""

import io
import shutil
import subprocess
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import commands
import guest
import images
import pytest

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="no git: apt-get install git")


def test_when_all_ends_so_do_the_builders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_ended", threading.Event())
    with ThreadPoolExecutor(1) as builder:
        building = builder.submit(commands.run, "sh", "-c", "sleep 600; true")  # its child holds the pipes
        while not commands._running:
            time.sleep(0.01)
        commands.stop_building()
        with pytest.raises(commands.VmError, match="exit code -15"):
            building.result(60)
    with pytest.raises(commands.VmError, match="exit code -15"):
        commands.run("sleep", "600")


def test_an_image_made_from_something_else_is_not_used(tmp_path: Path) -> None:
    builder = images.Builder(images.choose(["6.1"])[0], tmp_path)
    builder.place.mkdir()
    for name in ("disk.img", "vmlinuz"):
        (builder.place / name).touch()
    assert builder.cached() is None
    (builder.place / "stamp").write_text(f"{builder.stamp()} 6.1.0-1-cloud-amd64\n")
    image = builder.cached()
    assert image.release == "6.1.0-1-cloud-amd64"
    (builder.place / "stamp").write_text(f"{'0' * 64} 6.1.0-1-cloud-amd64\n")
    assert builder.cached() is None


def test_the_guest_gets_the_files_of_the_tree_links_as_links_and_nothing_built(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    for name in ("monitor/a.py", "bpf/b.c", ".venv/bin/python", "monitor/__pycache__/a.pyc"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "monitor/_bpf").symlink_to("../bpf")
    packed = tmp_path / "project.tar"
    guest.pack(packed, "echo hello\n", root)
    assert packed.stat().st_size % images.MIB == 0
    with tarfile.open(packed) as tar:
        members = {member.name: member for member in tar}
        command = tar.extractfile("command")
        assert command.read() == b"echo hello\n"
    assert set(members) == {"command", "project/monitor/a.py", "project/bpf/b.c", "project/monitor/_bpf"}
    assert members["project/monitor/_bpf"].linkname == "../bpf"


@needs_git
def test_files_not_yet_in_git_go_along_and_ignored_ones_do_not(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("*.log\n")
    (tmp_path / "new.py").touch()
    (tmp_path / "old.log").touch()
    assert guest.project_files(tmp_path) == [Path(".gitignore"), Path("new.py")]


def raw_tar(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    with open(path, "r+b") as file:
        file.truncate(images.MIB)
    return path


def test_results_come_out_with_the_exit_code(tmp_path: Path) -> None:
    raw = raw_tar(tmp_path / "raw", {"./exit-code": "3\n", "./junit.xml": "<x/>"})
    assert guest.unpack(raw, tmp_path / "results") == 3
    assert (tmp_path / "results/junit.xml").read_text() == "<x/>"
    raw.write_bytes(bytes(images.MIB))  # a guest that wrote nothing
    assert guest.unpack(raw, tmp_path / "none") is None


@pytest.mark.parametrize("name", ["../escaped", "/escaped", "a/../../escaped"])
def test_a_guest_cannot_write_outside_its_results(tmp_path: Path, name: str) -> None:
    raw = raw_tar(tmp_path / "raw", {name: "x", "exit-code": "0"})
    assert guest.unpack(raw, tmp_path / "results") == 0
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["exit-code"]
    assert not list(tmp_path.glob("escaped"))
