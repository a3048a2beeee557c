"""`outrace top` on a real daemon that goes away and comes back."""

import sys
from pathlib import Path

import pytest

from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode
from tests import live
from tests.daemon.hot_node import hard
from tests.terminals import seat

pytestmark = [pytest.mark.kernel, pytest.mark.once]

TOP = (sys.executable, "-m", "monitor.cli.main", "top")

node = live.fixture(LabNode, "top", 256 * MIB)


def test_a_daemon_that_goes_away_and_comes_back_with_another_threshold(
    node: LabNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.fill(node.add_pod("web", "Burstable", request=32 * MIB), 20)
    state = tmp_path / "one"
    monkeypatch.setenv("OUTRACE_RUN_DIR", str(state))
    common = ("--hooks", "poll", "--mode", "hold")
    with (
        LabDaemon(node, *common, *hard(48), state_dir=state) as first,
        seat(*TOP, columns=80, rows=24, cwd=live.ROOT) as made,
    ):
        made.shows("outrace top  one hold poll", "memory.available<48Mi", "lab/web", "no record lost")
        first.stop()
        made.shows("outrace top  no new figures", "lab/web")
        made.until(lambda screen: "no record lost" not in screen.text)  # a frame may come in several reads
        with LabDaemon(node, *common, *hard(64), state_dir=state):
            made.shows("outrace top  one hold poll", "memory.available<64Mi", "lab/web", "no record lost")
            made.until(lambda screen: "48Mi" not in screen.text and "no new figures" not in screen.text)
        made.press("\x03")
        assert made.end() == 0
        assert made.screen.overflows == 0
