"""What every test may use: the `kernel` marker's check of this machine, and hypothesis without deadlines."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A shared machine is sometimes slow: how long an example takes says nothing about whether the code is right.
settings.register_profile("outrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("outrace")

#: scripts/vm/guest.py boots its guests with it.
EXPENDABLE = "outrace.expendable=1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-kernel",
        action="store_true",
        help="fail, instead of skip, tests marked `kernel` on a machine that cannot run them",
    )


@cache
def kernel_obstacle() -> str:
    """Why tests marked `kernel` cannot run here, or the empty string."""
    if os.geteuid() != 0:
        return "not root"
    if not Path("/sys/kernel/btf/vmlinux").exists():
        return "the kernel has no BTF (/sys/kernel/btf/vmlinux)"
    if importlib.util.find_spec("bcc") is None:
        return "python3-bpfcc is not importable (apt-get install python3-bpfcc; venv with --system-site-packages)"
    mounts = [line.split(" ") for line in Path("/proc/self/mounts").read_text().splitlines()]
    memory_v1 = any(fields[2] == "cgroup" and "memory" in fields[3].split(",") for fields in mounts)
    unified = Path("/sys/fs/cgroup/cgroup.controllers")
    if not memory_v1 and not (unified.exists() and "memory" in unified.read_text().split()):
        return "no memory cgroup hierarchy is mounted"
    # BPF_MAP_CREATE with no attributes: EINVAL when bpf(2) is there, EPERM or ENOSYS when it is forbidden or missing.
    libc = ctypes.CDLL(None, use_errno=True)
    number = {"x86_64": 321, "aarch64": 280}.get(os.uname().machine)
    if number is not None:
        libc.syscall(number, 0, 0, 0)
        if ctypes.get_errno() in (1, 38):
            return f"bpf(2) is refused: {os.strerror(ctypes.get_errno())}"
    return ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """In a guest, what a failure says is printed at once: a guest that dies later has no summary."""
    report = yield
    if report.failed and item.config.getoption("--require-kernel"):
        terminal = item.config.pluginmanager.get_plugin("terminalreporter")
        for text in (report.longreprtext, *(f"{name}:\n{content}" for name, content in report.sections)):
            terminal.write_line(f"\n{text}")
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("global_oom") and EXPENDABLE not in Path("/proc/cmdline").read_text().split():
        pytest.skip("takes all memory of the machine: only in a guest of make test-vm, which may be lost")
    if item.get_closest_marker("kernel") and (obstacle := kernel_obstacle()):
        if item.config.getoption("--require-kernel"):
            pytest.fail(f"this machine cannot run kernel tests: {obstacle}", pytrace=False)
        pytest.skip(f"kernel test: {obstacle}")
