"""`outrace top` without --once: frame after frame, until it is told to end."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pods.top_node import MI, REPOSITORY, closed_port, common
from tests.pods.top_node import busy as busy
from tests.pods.top_node import folder as folder
from tests.pods.top_node import node as node
from tests.puppet import TIMEOUT_S


@pytest.mark.parametrize("end", ["q", "\x03"], ids=["q", "Ctrl-C"])
def test_live_on_a_terminal_until_q_or_ctrl_c(folder: Path, tmp_path: Path, node: Path, end: str) -> None:
    arguments = ["top", *common(folder, tmp_path, node)[1:], "--listen", closed_port()]
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(REPOSITORY)
        os.execv(sys.executable, [sys.executable, "-m", "monitor.cli.main", *arguments])
    try:
        seen = b""
        while seen.count(b"\x1b[H") < 2:  # it refreshes by itself
            assert select.select([fd], [], [], TIMEOUT_S)[0], seen
            seen += os.read(fd, 65536)
        assert b"default/busy" in seen
        os.write(fd, end.encode())
        while True:
            try:
                if not os.read(fd, 65536):
                    break
            except OSError:
                break  # EIO: the other side of the terminal is closed
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    finally:
        os.close(fd)


def test_live_without_a_terminal_prints_frame_after_frame(folder: Path, tmp_path: Path, node: Path) -> None:
    arguments = [*common(folder, tmp_path, node)[1:], "--listen", closed_port(), "-o", "json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "monitor.cli.main", "top", *arguments],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout
        frames = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0
    assert [f["node"]["capacity"] for f in frames] == [128 * MI, 128 * MI]
