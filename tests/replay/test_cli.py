"""`outrace replay` as it is called: what it prints, and how it ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.settings.config import RunConfig
from tests import live
from tests.commands import called
from tests.replay.test_passes import BEGIN, SCRIPT, lived


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A recording of one decision."""
    lived(RunConfig(), [*BEGIN, *SCRIPT], tmp_path).recording(tmp_path / "rec")
    return tmp_path / "rec"


def test_damage_is_reported_after_what_could_be_read(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])
    done = called("replay", str(path))
    assert done.returncode == 1
    assert "passes" in done.stdout
    [line] = done.stderr.splitlines()
    assert line.startswith(f"outrace: error: {path}: damaged at byte ")
    assert line.endswith("; what came before it was replayed")
    found = json.loads(called("replay", str(path), "-o", "json").stdout)
    assert f"byte {found['damage']['offset']}, record {found['damage']['record']}" in line


def test_piped(path: Path) -> None:
    whole = called("replay", str(path), "-o", "json").stdout
    command = [sys.executable, "-c", live.CLI, "replay", "-", "-o", "json"]
    piped = subprocess.run(command, input=path.read_bytes(), capture_output=True, env=live.environment(), check=True)
    assert piped.stdout.decode() == whole


def test_a_fifo_without_a_writer_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rec")
    live.one_line(called("replay", str(tmp_path / "rec")), 1, "not a regular file", "name a file that")
