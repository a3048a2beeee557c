"""The live view of `outrace top` on real daemons: who they are, how they work, one that goes away and comes back."""

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.cli.daemons import find
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode
from monitor.link.daemon_socket import LIVE_PATH
from tests.commands import run
from tests.daemon.hot_node import hard
from tests.live import PYTHONPATH, ROOT, filled
from tests.terminals import seat

pytestmark = [pytest.mark.kernel, pytest.mark.once]

TOP = (sys.executable, "-m", "monitor.cli.main", "top")
POLLED = ("--hooks", "poll")


@pytest.fixture
def run_dir() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="outrace-run-"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def node() -> Iterator[LabNode]:
    with LabNode("top", 256 * MIB) as made:
        yield made


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40)])
def test_a_daemon_that_goes_away_and_comes_back_with_another_threshold(
    node: LabNode, run_dir: Path, tmp_path: Path, columns: int, rows: int
) -> None:
    filled(node, node.add_pod("web", "Burstable", request=32 * MIB), 20)
    common = (*POLLED, "--run-dir", str(run_dir), "--name", "one")
    state = tmp_path / "state"
    with (
        LabDaemon(node, *common, *hard(48), state_dir=state) as first,
        seat(*TOP, "--run-dir", str(run_dir), columns=columns, rows=rows, cwd=ROOT) as made,
    ):
        made.shows("outrace top  one observe poll", "memory.available<48Mi", "lab/web", "no record lost")
        first.stop()
        made.shows("outrace top  one does not answer", "lab/web")
        assert "no record lost" not in made.screen.text
        made.press("s")
        made.shows("by over request")  # keys are answered meanwhile
        with LabDaemon(node, *common, *hard(64), state_dir=state):
            made.shows("outrace top  one observe poll", "memory.available<64Mi", "lab/web", "no record lost")
            assert "48Mi" not in made.screen.text
            assert "does not answer" not in made.screen.text
        made.press("q")
        assert made.end() == 0
        assert made.screen.overflows == 0


def test_a_reload_shows(node: LabNode, run_dir: Path, tmp_path: Path) -> None:
    own = tmp_path / "outrace.yaml"
    own.write_text("eviction-hard: memory.available<48Mi\n")
    with (
        LabDaemon(node, *POLLED, "--run-dir", str(run_dir), "--config", str(own)) as running,
        seat(*TOP, "--run-dir", str(run_dir), cwd=ROOT) as made,
    ):
        made.shows("memory.available<48Mi")
        own.write_text("eviction-hard: memory.available<52Mi\n")
        os.kill(running.pid, signal.SIGHUP)
        made.shows("memory.available<52Mi", "no record lost")
        made.press("q")
        assert made.end() == 0


def test_of_several_daemons_one_is_chosen_and_its_own_word_is_in_the_frame(node: LabNode, run_dir: Path) -> None:
    common = (*POLLED, "--run-dir", str(run_dir))
    with (
        LabNode("top-b", 128 * MIB) as second,
        LabDaemon(node, *common, "--name", "a"),
        LabDaemon(second, *common, "--name", "b", "--mode", "hold") as b,
    ):
        with seat(*TOP, "--run-dir", str(run_dir), columns=200, cwd=ROOT) as made:
            assert made.end() == 2
            assert "2 daemons run here; choose one with --daemon: a (pid" in made.screen.text
        with seat(*TOP, "--run-dir", str(run_dir), "--daemon", "b", cwd=ROOT) as made:
            made.shows("outrace top  b hold poll", "of 128.0Mi")
            made.press("q")
            assert made.end() == 0
        done = run(*TOP, "--once", "--run-dir", str(run_dir), "--daemon", "b", "-o", "json", env=_environment())
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)["daemon"]
        for one in find(run_dir):
            assert json.loads(one.get(LIVE_PATH))["outrace"]["status"]["rung"] == "poll", "what the live view asks"
        assert set(found["lost"]) >= {"decode", "channel", "messages"}
        assert sum(found["lost"].values()) == 0
        assert {key: found[key] for key in ("name", "pid", "mode", "rung", "not_ready", "conditions")} == {
            "name": "b",
            "pid": b.pid,
            "mode": "hold",
            "rung": "poll",
            "not_ready": None,
            "conditions": [],
        }
        text = run(*TOP, "--once", "--run-dir", str(run_dir), "--daemon", "b", env=_environment()).stdout
        assert "mode hold, rung poll, trigger user; lost records: none" in text


def _environment() -> dict[str, str]:
    return {**os.environ, **PYTHONPATH}
