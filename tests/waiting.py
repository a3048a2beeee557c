"""Waiting for what another process does."""

import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.puppet import TIMEOUT_S


@cache
def emulated() -> bool:
    """Whether QEMU emulates this CPU: then a second shows nothing about what happens in one."""
    if "QEMU TCG" in Path("/proc/cpuinfo").read_text():
        return True
    detect = shutil.which("systemd-detect-virt")  # any other model (libvirt's qemu64) is called alike with KVM
    if detect is None:
        return False
    return subprocess.run([detect, "--vm"], stdout=subprocess.PIPE, text=True, check=False).stdout.strip() == "qemu"


def until(check: Callable[[], Any], what: str | Callable[[], str], timeout: float = TIMEOUT_S) -> Any:
    """The first true result of ``check``, looked at every 2 ms, on an emulated CPU every 50: for what the kernel
    announces nowhere.
    """
    deadline = time.monotonic() + timeout
    while True:
        result = check()
        if result:
            return result
        if time.monotonic() > deadline:
            pytest.fail(f"{what if isinstance(what, str) else what()}: not within {timeout:g} s; last seen: {result!r}")
        time.sleep(0.05 if emulated() else 0.002)


def out_of_time(patch: pytest.MonkeyPatch, seconds: float, when: Callable[[], object]) -> None:
    """What waits so many seconds for a process has waited as soon as ``when`` is true, and not before."""
    real = subprocess.Popen.wait

    def wait(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout != seconds:
            return real(process, timeout)
        until(when, "time to be over")
        raise subprocess.TimeoutExpired(process.args, seconds)

    patch.setattr(subprocess.Popen, "wait", wait)


def ends(pid_or_fd: int, *, fd: bool = False) -> None:
    """Wait for the end of a process, by pidfd."""
    handle = pid_or_fd
    if not fd:
        try:
            handle = os.pidfd_open(pid_or_fd)
        except ProcessLookupError:
            return
    try:
        assert select.select([handle], [], [], TIMEOUT_S)[0], "the process is still there"
    finally:
        if not fd:
            os.close(handle)


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kernel_thread(pid: int) -> bool:
    """Whether the process is a thread of the kernel: one that has no memory of its own, and is no zombie."""
    try:
        return alive(pid) and Path(f"/proc/{pid}/cmdline").read_bytes() == b""
    except (FileNotFoundError, ProcessLookupError):
        return False
