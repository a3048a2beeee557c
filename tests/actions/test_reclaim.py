"""Clean-up commands: real ones, run to their end, killed with their children, never run when only observing."""

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monitor.actions.reclaim import FAILED, clean, run
from monitor.policy.layout import DELETE_IMAGES
from tests import live
from tests.log_lines import LogLines

PYTHON = (sys.executable, "-S", "-E", "-c")
Line = tuple[str, str, dict[str, Any]]


@pytest.fixture
def stop_fd() -> Iterator[int]:
    fd = os.eventfd(0)
    yield fd
    os.close(fd)


def cleaned(stop_fd: int, *command: str, timeout_s: float = 120.0) -> tuple[str, Line]:
    """The result, and what was logged."""
    log = LogLines()
    result = clean(command, log, stop_fd, timeout_s)
    (line,) = log.lines
    return result, line


def test_the_command_runs_without_a_shell(stop_fd: int, tmp_path: Path) -> None:
    """What would be special to one is only text."""
    trace, code = tmp_path / "trace", "import sys; open(sys.argv[1], 'a').write(sys.argv[2])"
    result, (level, message, fields) = cleaned(stop_fd, *PYTHON, code, str(trace), "a;$HOME")
    assert (result, level, message, fields["action"]) == ("done", "info", "clean-up done", DELETE_IMAGES)
    assert trace.read_text() == "a;$HOME"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("sh", "-c", "echo first; echo; echo 'no space left' >&2; echo; exit 3"), {"status": 3}),
        (("sh", "-c", "echo 'no space left'; kill -TERM $$"), {"status": -15}),
    ],
)
def test_a_failure_is_logged_with_its_last_line(stop_fd: int, argv: tuple[str, ...], expected: dict[str, int]) -> None:
    result, (level, message, fields) = cleaned(stop_fd, *argv)
    assert (result, level, message) == (FAILED, "error", "clean-up failed")
    assert fields.items() >= {**expected, "output": "no space left", "action": DELETE_IMAGES}.items()


@pytest.mark.parametrize("argv", [("/nonexistent/crictl", "rmi"), ("/etc/passwd",), ("true", "\0")])
def test_a_command_that_cannot_start_is_an_error_in_the_log(stop_fd: int, argv: tuple[str, ...]) -> None:
    result, line = cleaned(stop_fd, *argv)
    assert (result, *line[:2]) == (FAILED, "error", "clean-up could not be started")


def test_what_fails_unforeseen_is_reported_too(stop_fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.actions.reclaim.run", lambda *_: 1 // 0)
    result, line = cleaned(stop_fd, "true")
    assert (result, line[2]["problem"].partition(":")[0]) == (FAILED, "ZeroDivisionError")


def test_a_command_that_hangs_is_killed_with_its_children(stop_fd: int, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.touch()
    code = "import os, signal, sys; os.fork(); print('working', flush=True); "
    code += "open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'); signal.pause()"
    result: list[tuple[int | None, str]] = []
    thread = threading.Thread(target=lambda: result.append(run((*PYTHON, code, str(pids)), 600, stop_fd)))
    thread.start()
    live.until(lambda: pids.read_text().count("\n") == 2, "command and child")
    handles = [os.pidfd_open(int(pid)) for pid in pids.read_text().split()]
    os.eventfd_write(stop_fd, 1)
    for handle in handles:
        live.ends(handle, fd=True)
        os.close(handle)
    thread.join()
    assert result == [(None, "working")]


def test_the_time_is_up(stop_fd: int) -> None:
    assert run(("sleep", "600"), 0.01, stop_fd) == (None, "")
    # One that never stops writing has no more time than another.
    assert run(("yes", "more"), 0.05, stop_fd)[0] is None
    result, line = cleaned(stop_fd, "sleep", "600", timeout_s=0.01)
    assert (result, *line[:2]) == ("killed", "error", "clean-up killed: it did not end in time")


def test_what_a_command_leaves_running_is_not_waited_for(stop_fd: int) -> None:
    argv = ("sh", "-c", "sleep 600 & echo $!")
    status, last = run(argv, 600, stop_fd)
    assert status == 0
    os.kill(int(last), 9)


def test_much_output_is_read_and_only_its_end_kept(stop_fd: int) -> None:
    assert run((*PYTHON, "print('x' * 10_000_000); print('last')"), 600, stop_fd) == (0, "last")
    status, last = run((*PYTHON, "import sys; sys.stdout.write('y' * 100_000)"), 600, stop_fd)
    assert (status, last) == (0, "y" * 4096)
    assert run(("printf", r"a\377b"), 600, stop_fd) == (0, "a\ufffdb")
    # No terminal, no input, and no directory of a user's, in which the daemon may have been started.
    code = "import os, sys; print(os.getsid(0) == os.getpid(), repr(sys.stdin.read()), os.getcwd())"
    assert run((*PYTHON, code), 600, stop_fd) == (0, "True '' /")


def test_a_clean_up_is_not_spared_by_the_oom_killer_as_the_monitor_is(stop_fd: int) -> None:
    own = Path("/proc/self/oom_score_adj")
    before = own.read_text()
    try:
        own.write_text("-1")
    except PermissionError:
        pytest.skip("oom_score_adj cannot be lowered: needs CAP_SYS_RESOURCE")
    try:
        argv = ("sh", "-c", "until [ $(cat /proc/$$/oom_score_adj) = 0 ]; do :; done; echo ordinary")
        assert run(argv, live.TIMEOUT_S, stop_fd) == (0, "ordinary")
    finally:
        own.write_text(before)
