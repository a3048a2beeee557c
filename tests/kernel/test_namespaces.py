"""A cgroup namespace below the machine's, as a container of a runtime has one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.live import environment
from tests.puppet import cgroup

pytestmark = pytest.mark.kernel
#: Moves into the cgroup, takes a namespace that begins there, and prints how a process outside looks, before and after.
_BELOW = """
import ctypes, os, sys
from pathlib import Path
from monitor.errors import MonitorError
from monitor.kernel.namespaces import join_machine_cgroups
Path(sys.argv[1], "cgroup.procs").write_text("0")
init = Path("/proc", str(os.getppid()))  # process 1 of a sandbox may not be looked at by its root
seen = (init / "cgroup").read_text()
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x0200_0000) == 0
assert "/.." in (init / "cgroup").read_text()
if sys.argv[2] == "refused":
    assert libc.prctl(24, 21) == 0  # PR_CAPBSET_DROP, CAP_SYS_ADMIN
    os.setgid(65534), os.setuid(65534)
try:
    print(join_machine_cgroups(init), join_machine_cgroups(init), (init / "cgroup").read_text() == seen)
except MonitorError as error:
    print(error)
"""


def below(how: str) -> str:
    with cgroup("test-namespace") as path:
        done = subprocess.run(
            [sys.executable, "-c", _BELOW, str(path), how], capture_output=True, text=True, env=environment()
        )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_cgroups_are_named_as_the_machine_does_from_then_on() -> None:
    """The second time there is nothing to do."""
    assert below("joined") == "True False True"


def test_without_the_right_to_it_the_remedy_is_named() -> None:
    reason = below("refused")
    assert reason.startswith("the machine's cgroup namespace: ")
    assert "CAP_SYS_ADMIN and CAP_SYS_PTRACE (capabilities.add)" in reason
