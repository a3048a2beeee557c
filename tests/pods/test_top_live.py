"""`outrace top` without --once: on real terminals of several sizes, and in a pipe."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.commands import ROOT
from tests.pods.top_node import MI, SmallNode
from tests.puppet import TIMEOUT_S
from tests.terminals import seat

pytestmark = [pytest.mark.live, pytest.mark.once]
TOP = (sys.executable, "-m", "monitor.cli.main", "top")


@pytest.fixture
def options(small: SmallNode) -> list[str]:
    return [*small.options, "--eviction-hard", "memory.available<25%"]


@pytest.mark.parametrize(("variables", "colours"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)])
def test_live_until_ctrl_c(options: list[str], variables: dict[str, str], colours: bool) -> None:
    """An empty NO_COLOR is none, as https://no-color.org has it."""
    with seat(*TOP, *options, cwd=ROOT, **variables) as made:
        made.shows("default/busy", "memory.available<25%")
        assert made.modes() == made.before
        assert bool(made.screen.colours) == colours
        lines = made.screen.shown
        assert lines[0].startswith("outrace top  no daemon")
        (bar,) = (line for line in lines if line.startswith("node "))
        assert "of 128.0Mi" in bar
        clock = lines[0][-9:]
        made.until(lambda screen: screen.shown[0][-9:] != clock)  # it looks again by itself
        assert made.screen.overflows == 0
        made.press("\x03")
        assert made.end() == 0
        assert made.modes() == made.before


def test_a_frame_fits_the_size_of_its_moment(options: list[str]) -> None:
    with seat(*TOP, *options, cwd=ROOT) as made:
        made.shows("default/busy")
        for columns, rows in ((120, 40), (40, 10), (80, 24)):
            made.resize(columns, rows)
            made.until(lambda screen, edge=columns: screen.shown[0][edge - 1 : edge] == "Z")  # the clock's last letter
        made.press("\x03")
        assert made.end() == 0


@pytest.mark.parametrize("term", ["dumb", None])
def test_a_terminal_that_cannot_place_text_gets_frame_after_frame(options: list[str], term: str | None) -> None:
    with seat(*TOP, *options, columns=200, cwd=ROOT, TERM=term) as made:
        made.screen.feed = lambda _: None
        while made.raw.count(b"outrace top  no daemon") < 2:
            made.read(1.0)
        assert b"\x1b" not in made.raw
        os.kill(made.pid, signal.SIGINT)
        assert made.end() == 0


def test_once_on_a_terminal_fits_its_width(options: list[str]) -> None:
    with seat(*TOP, "--once", *options, cwd=ROOT) as made:
        assert made.end() == 0
        text = made.raw.decode()
    assert "\x1b" not in text
    assert "default/busy" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_pipe_that_is_closed_ends_it_without_a_word(options: list[str]) -> None:
    process = subprocess.Popen([*TOP, *options], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(TIMEOUT_S) == 1
        assert process.stderr.read() == b""


def test_live_without_a_terminal_prints_frame_after_frame(options: list[str]) -> None:
    process = subprocess.Popen(
        [*TOP, *options, "-o", "json"], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    with process:
        frames = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0
    assert [f["node"]["capacity"] for f in frames] == [128 * MI, 128 * MI]
    assert frames[0]["node"]["growth_bytes_per_s"] is None, "of one look nothing is known"
    assert frames[1]["node"]["growth_bytes_per_s"] is not None
