"""Removes a lab node when its owner is done with it, or has ended (a worker that survives it).

A `finally` does not survive `kill -9`; a process waiting for the owner's end of a pipe to close does. Each line on
stdin is the pid of one of the owner's processes, which gets SIGTERM and after 5 s SIGKILL, or the path of a directory
or cgroup to remove; a cgroup of v1's freezer is thawed first.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

from monitor.kernel import cgroup_procs, instances, pins
from monitor.lab.worker import ready

#: SIGKILLed processes of a full cgroup are gone in milliseconds; this is for a machine that is busy otherwise.
PATIENCE_S = 20.0


def kill_all(cgroup: str) -> None:
    """SIGKILL every process in the tree; by pidfd, looked up again, so that a reused pid is never hit."""
    with contextlib.suppress(OSError):  # what is left is looked at again, or said to be left
        for directory, pids in cgroup_procs.walk(Path(cgroup)):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # it went by itself
                    _kill(pid, directory)


def _kill(pid: int, directory: str) -> None:
    fd = os.pidfd_open(pid)
    try:
        if pid in cgroup_procs.pids_in(directory):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    finally:
        os.close(fd)


def end_processes(pidfds: list[int]) -> None:
    """SIGTERM, and SIGKILL for those still there after 5 s."""
    for sig in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 5.0
        for fd in pidfds:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, sig)
        for fd in pidfds:
            ended = select.poll()  # not select(2), which refuses numbers of 1,024 and more
            ended.register(fd, select.POLLIN)
            ended.poll(max(0.0, deadline - time.monotonic()) * 1000)


def remove_tree(cgroup: str) -> bool:
    """Kill what is in the tree and remove it, children first; False if something would not go."""
    deadline = time.monotonic() + PATIENCE_S
    while os.path.isdir(cgroup):
        kill_all(cgroup)
        for directory, _, _ in os.walk(cgroup, topdown=False):
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                continue
            except OSError:
                # EBUSY: a killed process has not left yet. Nothing announces the last one on v1 without root's
                # release agent, so look again.
                time.sleep(0.005)
        if time.monotonic() > deadline:
            return False
    return True


def thaw(freezer: str) -> None:
    """Let the processes of a tree of v1's freezer cgroups go on: a frozen one does not even die."""
    for directory, _, _ in os.walk(freezer):
        # Of another hierarchy, or gone already?
        with contextlib.suppress(OSError), open(os.path.join(directory, "freezer.state"), "w") as state:
            state.write("THAWED")


def clean(pidfds: list[int], paths: list[str]) -> bool:
    """Everything that belongs to a lab node; False if anything could not be removed."""
    cgroups = [path for path in paths if os.path.exists(os.path.join(path, "cgroup.procs"))]
    for cgroup in cgroups:
        thaw(cgroup)
    for cgroup in cgroups:
        kill_all(cgroup)
    end_processes(pidfds)
    removed = [remove_tree(cgroup) for cgroup in cgroups]  # all of them, whatever becomes of the first
    for directory in (path for path in paths if path not in cgroups):
        shutil.rmtree(directory, ignore_errors=True)
        if directory.startswith(str(pins.ROOT)):
            instances.remove_empty_root()
    return all(removed) and not any(map(os.path.exists, paths))


def janitor() -> None:
    for sig in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, signal.SIG_IGN)
    ready()
    pidfds: list[int] = []
    paths: dict[str, None] = {}  # in order, each once
    for line in sys.stdin:
        if line.startswith("/"):
            paths[line.strip()] = None
            continue
        with contextlib.suppress(ProcessLookupError):
            pidfds.append(os.pidfd_open(int(line)))  # from now on this process, even if its pid is used again
    sys.exit(0 if clean(pidfds, list(paths)) else 1)
