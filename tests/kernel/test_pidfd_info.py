"""The wait status of a process by its pidfd, on this kernel; whatever it cannot say is unknown, not 0."""

import os
import platform
import subprocess
import sys

import pytest

from monitor.kernel.procfs import wait_status

KNOWN = tuple(int(part) for part in platform.release().split(".")[:2]) >= (6, 15)


@pytest.mark.parametrize(
    ("script", "status"), [("raise SystemExit(3)", 3 << 8), ("import os; os.kill(os.getpid(), 15)", 15)]
)
def test_how_a_process_ended_is_known_when_somebody_has_waited_for_it(script: str, status: int) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", script]) as process:
        pidfd = os.pidfd_open(process.pid)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert wait_status(pidfd) is None, "it is a zombie"
        process.wait()
    assert wait_status(pidfd) == (status if KNOWN else None)
    os.close(pidfd)


def test_one_that_runs_has_not_ended() -> None:
    pidfd = os.pidfd_open(os.getpid())
    assert wait_status(pidfd) is None
    os.close(pidfd)
    assert wait_status(pidfd) is None, "no descriptor"
