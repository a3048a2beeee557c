"""process_mrelease on real processes: living, dying but unable to run, and gone."""

import errno
import mmap
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.actions.reap import mrelease, reap
from tests import live

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(mrelease(-1) == errno.ENOSYS, reason="process_mrelease came with Linux 5.15"),
]
SIZE = 32 << 20
CODE = f"""
import mmap, sys
m = mmap.mmap(-1, {SIZE}, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, {SIZE}, {mmap.PAGESIZE}): m[at] = 1
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hog() -> Iterator[subprocess.Popen[bytes]]:
    command = (sys.executable, "-S", "-c", CODE)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


def anonymous(pid: int) -> int:
    """Resident anonymous memory in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def test_a_living_process_keeps_its_memory(hog: subprocess.Popen[bytes]) -> None:
    before = anonymous(hog.pid)
    assert reap([hog.pid]) == []
    assert anonymous(hog.pid) >= before >= SIZE  # it may still be on its way from having reported that it is ready
    hog.kill()
    hog.wait()
    assert reap([hog.pid, 2**22 + 1]) == []  # gone
    assert mrelease(hog.stdin.fileno()) == errno.EBADF  # not a pidfd


def test_a_dying_process_that_cannot_run_gives_its_memory_back(hog: subprocess.Popen[bytes]) -> None:
    with live.freezer() as freezer:
        live.freeze(freezer, hog.pid)
        hog.send_signal(signal.SIGKILL)
        assert anonymous(hog.pid) >= SIZE  # killed, but frozen before it can exit
        assert reap([hog.pid]) == []
        assert anonymous(hog.pid) < SIZE // 8
    assert hog.wait(live.TIMEOUT_S) == -signal.SIGKILL
