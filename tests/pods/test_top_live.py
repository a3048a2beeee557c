"""`outrace top` without --once: on real terminals of several sizes, with keys, signals and hostile names; in a pipe."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.commands import ROOT
from tests.pods.top_node import MI, common
from tests.pods.top_node import busy as busy
from tests.pods.top_node import folder as folder
from tests.pods.top_node import node as node
from tests.puppet import TIMEOUT_S
from tests.terminals import Screen, Seat, seat
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.once]
TOP = (sys.executable, "-m", "monitor.cli.main", "top")


@pytest.fixture
def options(folder: Path, tmp_path: Path, node: Path) -> list[str]:
    return [*common(folder, tmp_path, node)[1:], "--eviction-hard", "memory.available<25%"]


@contextmanager
def top(options: list[str], columns: int = 80, rows: int = 24, **variables: str | None) -> Iterator[Seat]:
    """The live view, with a first frame on it. In the end: nothing was ever outside of the screen."""
    with seat(*TOP, *options, columns=columns, rows=rows, cwd=ROOT, **variables) as made:
        made.shows("default/busy", "memory.available<25%", "q quit")  # the last line is drawn last
        yield made
        assert made.screen.overflows == 0


def restored(made: Seat) -> bool:
    return made.modes() == made.before and not made.screen.alternate and not made.screen.cursor.hidden


@pytest.mark.parametrize(
    ("end", "columns", "rows", "variables", "colours"),
    [
        ("q", 80, 24, {}, True),
        ("\x03", 120, 40, {"NO_COLOR": "1"}, False),
        ("q", 80, 24, {"NO_COLOR": ""}, True),  # as https://no-color.org has it
        ("\x03", 80, 24, {"TERM": "vt100"}, False),
    ],
    ids=["q", "Ctrl-C without colours", "empty NO_COLOR", "vt100"],
)
@pytest.mark.usefixtures("busy")
def test_live_until_q_or_ctrl_c(
    options: list[str], end: str, columns: int, rows: int, variables: dict[str, str], colours: bool
) -> None:
    with top(options, columns, rows, **variables) as made:
        assert made.screen.alternate == ("TERM" not in variables)
        assert made.modes() != made.before, "keys come without Enter"
        assert bool(made.screen.colours) == colours
        lines = made.screen.shown
        assert lines[0].startswith("outrace top  no daemon")
        assert lines[-1].startswith("q quit")
        (bar,) = (line for line in lines if line.startswith("node "))
        assert "of 128.0Mi" in bar
        clock = lines[0][-9:]
        made.until(lambda screen: screen.shown[0][-9:] != clock)  # it looks again by itself
        made.press(end)
        assert made.end() == 0
        assert restored(made)


@pytest.mark.usefixtures("busy")
def test_keys_and_sizes(options: list[str]) -> None:
    with top(options) as made:
        made.press("\x1b[A\x1b[B\x1b[6~\x1b")  # keys of several bytes, and an Esc alone
        for columns, rows in ((120, 40), (40, 10), (20, 4), (80, 24)):
            made.resize(columns, rows)
            made.until(lambda screen: screen.shown[-1].startswith("q quit") and screen.shown[0].startswith("outrace"))
        made.shows("memory.available<25%")
        made.press("q")
        assert made.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_it_leaves_the_terminal_as_it_was(options: list[str], number: int) -> None:
    with top(options) as made:
        os.kill(made.pid, number)
        assert made.end() == -number, "a process that waits for it sees the signal"
        assert restored(made)


#: The command, whose third look fails.
_DEFECT = (
    "import sys; from monitor.cli import top_frame, main\n"
    "made, calls = top_frame.Sampler.sample, []\n"
    "def sample(self):\n"
    "    calls.append(1)\n"
    "    return made(self) if len(calls) < 3 else 1 / 0\n"
    "top_frame.Sampler.sample = sample\n"
    "sys.exit(main.main(sys.argv[1:]))"
)


def test_a_defect_leaves_the_terminal_as_it_was(options: list[str]) -> None:
    with seat(sys.executable, "-c", _DEFECT, "top", *options, cwd=ROOT) as made:
        made.shows("default/busy")
        assert made.end() == 1
        assert "ZeroDivisionError" in made.raw.decode()
        assert restored(made)


#: A shell, as far as stopping goes: without one (an orphaned process group) the kernel takes no SIGTSTP.
_SHELL = (
    "import os, signal, sys\n"
    "pid = os.fork()\n"
    "if pid == 0:\n"
    "    os.setpgid(0, 0)\n"
    "    signal.signal(signal.SIGTTOU, signal.SIG_IGN)\n"
    "    os.tcsetpgrp(0, os.getpid())\n"
    "    signal.signal(signal.SIGTTOU, signal.SIG_DFL)\n"
    "    os.execv(sys.argv[1], sys.argv[1:])\n"
    "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
)


def test_stopped_and_continued(options: list[str]) -> None:
    with seat(sys.executable, "-S", "-c", _SHELL, *TOP, *options, cwd=ROOT) as made:
        made.shows("default/busy", "q quit")
        pid = int(Path(f"/proc/{made.pid}/task/{made.pid}/children").read_text())
        made.press("\x1a")  # Ctrl-Z
        stopped(made, pid)
        assert restored(made), "the shell has its terminal"
        made.screen.erase_in_display(2)  # where another process has written
        os.kill(pid, signal.SIGCONT)
        made.shows("default/busy", "q quit")
        assert made.screen.alternate
        assert made.modes() != made.before
        # By SIGSTOP it cannot put it back; it draws all again when it is continued.
        os.kill(pid, signal.SIGSTOP)
        stopped(made, pid)
        made.screen.erase_in_display(2)
        os.kill(pid, signal.SIGCONT)
        made.shows("default/busy", "q quit")
        made.press("q")
        assert made.end() == 0
        assert restored(made)


def stopped(made: Seat, pid: int) -> None:
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "it is stopped")
    made.flush()


def test_a_terminal_that_goes_away_ends_it(options: list[str]) -> None:
    with top(options) as made:
        os.close(made.slave)
        os.close(made.master)
        made.slave, made.master = os.open("/dev/null", os.O_RDWR), os.open("/dev/null", os.O_RDWR)
        until(lambda: not made.running(), "its end")


@pytest.mark.parametrize(("term", "frames"), [("dumb", 2), ("no-such-terminal", 1), (None, 1)])
def test_a_terminal_that_cannot_place_text_gets_frame_after_frame(
    options: list[str], term: str | None, frames: int
) -> None:
    with seat(*TOP, *options, columns=200, cwd=ROOT, TERM=term) as made:
        made.screen.feed = lambda _: None
        while made.raw.count(b"outrace top  no daemon") < frames:
            made.read(1.0)
        assert b"no live view: TERM=" in made.raw
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


def test_the_screen_of_these_tests_refuses_what_is_no_text() -> None:
    for data in (b"\x1b]0;owned\x07" + b"x" * 32, b"\xc3\xa9", b"\x1b[5q", b"\x9b"):
        with pytest.raises(AssertionError):
            Screen(80, 24).feed(data)
    narrow = Screen(3, 1)
    narrow.feed(b"abcd")
    assert (narrow.text, narrow.overflows) == ("abd", 1)
