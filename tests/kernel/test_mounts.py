"""Mounting for real, inside a mount namespace of the test's own."""

import sys
from pathlib import Path

import pytest

from monitor.kernel import mounts
from tests import live
from tests.commands import run

UNMOUNT_THEN_ENSURE = """
import os, subprocess
from monitor.errors import MonitorError
from monitor.kernel import mounts
for mount in (mounts.BPFFS, mounts.TRACEFS):
    while mounts.is_mounted(mount):
        subprocess.run(["umount", "--lazy", str(mount.path)], check=True)
print("missing", *[m.fstype for m in mounts.missing()])
%s
try:
    print("mounted", *[m.fstype for m in mounts.ensure()])
except MonitorError as error:
    print(error.exit_code, error)
print("missing", *[m.fstype for m in mounts.missing()])
if not mounts.missing():
    print(oct(os.stat(mounts.BPFFS.path).st_mode))
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
        "missing bpf tracefs",
        "mounted bpf tracefs",
        "missing",
        "0o41700",  # else 1777: every user may make directories there
    ]


@pytest.mark.kernel
def test_a_refused_mount_names_the_command() -> None:
    _, refused, after = in_own_namespace(UNMOUNT_THEN_ENSURE % AS_NOBODY)
    assert refused.startswith("3 bpf is not mounted at /sys/fs/bpf")
    assert refused.endswith("run as root: mount -t bpf -o mode=0700 bpf /sys/fs/bpf")
    assert after == "missing bpf tracefs"


def test_the_last_filesystem_mounted_at_a_path_counts(tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    mount = mounts.Mount("bpf", "bpf", Path("/sys/fs/b pf"), "this test")
    table.write_text("bpf /sys/fs/b\\040pf bpf rw 0 0\n")
    assert mounts.is_mounted(mount, table)
    table.write_text("bpf /sys/fs/b\\040pf bpf rw 0 0\nnone /sys/fs/b\\040pf tmpfs rw 0 0\n")
    assert not mounts.is_mounted(mount, table)
    table.write_text("bpf /elsewhere bpf rw 0 0\n")
    assert not mounts.is_mounted(mount, table)
