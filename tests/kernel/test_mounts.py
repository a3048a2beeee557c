"""File systems mounted, and a cgroup namespace left, for real: inside namespaces of the test's own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from monitor.kernel import mounts
from tests import live
from tests.commands import run
from tests.puppet import cgroup

UNMOUNT_THEN_ENSURE = """
import os, subprocess
from monitor.errors import MonitorError
from monitor.kernel import mounts
while mounts.is_mounted():
    subprocess.run(["umount", "--lazy", "/sys/fs/bpf"], check=True)
%s
try:
    mounts.ensure()
except MonitorError as error:
    print(error.exit_code, error)
print(mounts.is_mounted())
if mounts.is_mounted():
    print(oct(os.stat("/sys/fs/bpf").st_mode))
"""
#: setresuid drops the capabilities that mount(2) needs.
AS_NOBODY = "os.setresuid(65534, 65534, 65534)"


def in_own_namespace(script: str) -> list[str]:
    done = run(*live.in_own_mounts("true", sys.executable, "-c", script), env=live.environment())
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.kernel
def test_what_is_missing_gets_mounted() -> None:
    assert in_own_namespace(UNMOUNT_THEN_ENSURE % "") == [
        "True",
        "0o41700",  # else 1777: every user may make directories there
    ]


@pytest.mark.kernel
def test_a_refused_mount_names_the_command() -> None:
    refused, after = in_own_namespace(UNMOUNT_THEN_ENSURE % AS_NOBODY)
    assert refused.startswith("3 bpf is not mounted at /sys/fs/bpf")
    assert refused.endswith("run as root: mount -t bpf -o mode=0700 bpf /sys/fs/bpf")
    assert after == "False"


def test_the_last_filesystem_mounted_at_a_path_counts(tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    table.write_text("bpf /sys/fs/bpf bpf rw 0 0\n")
    assert mounts.is_mounted(table)
    table.write_text("bpf /sys/fs/bpf bpf rw 0 0\nnone /sys/fs/bpf tmpfs rw 0 0\n")
    assert not mounts.is_mounted(table)
    table.write_text("bpf /elsewhere bpf rw 0 0\n")
    assert not mounts.is_mounted(table)


#: Moves into the cgroup, takes a namespace that begins there, and prints how a process outside looks, before and after.
_BELOW = """
import ctypes, os, sys
from pathlib import Path
from monitor.errors import MonitorError
from monitor.kernel.mounts import join_machine_cgroups
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
        done = run(sys.executable, "-c", _BELOW, path, how, env=live.environment())
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.kernel
def test_cgroups_are_named_as_the_machine_does_from_then_on() -> None:
    """The second time there is nothing to do."""
    assert below("joined") == "True False True"


@pytest.mark.kernel
def test_without_the_right_to_it_the_remedy_is_named() -> None:
    reason = below("refused")
    assert reason.startswith("the machine's cgroup namespace: ")
    assert "CAP_SYS_ADMIN and CAP_SYS_PTRACE (capabilities.add)" in reason
