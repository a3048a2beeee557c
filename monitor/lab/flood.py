"""Clients that repeat GET as fast as they are answered, and the cgroup that a container's CPU limit is."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from monitor.errors import CannotError
from monitor.lab.child import Child
from monitor.lab.daemon import LabDaemon

CLIENTS = 16
#: The period of a CPU limit, as runtimes set it, microseconds.
_PERIOD_US = 100_000
_CPU_V1 = Path("/sys/fs/cgroup/cpu")


@contextlib.contextmanager
def cpu_cgroup(quota_millicores: int) -> Iterator[Path]:
    """A cgroup as that of a container with this CPU limit (0: none). A kernel with CONFIG_RT_GROUP_SCHED refuses
    SCHED_FIFO in it, as in a container. Raises CannotError.
    """
    parent = _CPU_V1 if (_CPU_V1 / "cpu.cfs_quota_us").exists() else Path("/sys/fs/cgroup")
    group = parent / f"outrace-flood-{os.getpid()}"
    quota_us = quota_millicores * _PERIOD_US // 1000
    try:
        group.mkdir()
        if quota_us and parent == _CPU_V1:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        elif quota_us:
            (group / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        raise CannotError(f"{group}: {error.strerror}", "needs the cpu controller in the root cgroup") from None
    try:
        yield group
    finally:
        deadline = time.monotonic() + 5.0
        while group.exists() and time.monotonic() < deadline:  # the last process of the daemon is still ending
            with contextlib.suppress(OSError):
                group.rmdir()
            time.sleep(0.05)


def joining(group: Path) -> tuple[str, ...]:
    """A command that runs another one in the cgroup."""
    return ("/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group))


def throttled(group: Path) -> int:
    """How many periods ended with the quota used up."""
    fields = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    return int(fields.get("nr_throttled", 0))


@contextlib.contextmanager
def flooding(daemon: LabDaemon) -> Iterator[list[int]]:
    """While it is open `CLIENTS` repeat GET /metrics; afterwards the list has how many answers they got."""
    answers: list[int] = []
    child = Child("flood", port=daemon.address.rpartition(":")[2], clients=CLIENTS)
    try:
        child.expect("ready")
        yield answers
        child.close_stdin()
        answers.append(int(child.expect("answered")))
    finally:
        child.close()
