"""Which daemon wrote something down in the kernel, and whether it is known to be dead: then anybody may undo it."""

from __future__ import annotations

import os
import re
from functools import cache

from monitor.kernel.procfs import Process

_OWNER = re.compile(r"pid (\d{1,9}) started (\d{1,19}) in (\S+ \S+)")
#: States of a process that does not run any more, though its parent has not waited for it (proc(5)).
_ENDED = ("Z", "X", "x")


@cache
def this_daemon() -> str:
    """This process: its pid, its start (ticks since boot), and the namespaces by which those are counted. An execv
    changes none of them.
    """
    with Process(os.getpid()) as process:
        return f"pid {process.pid} started {process.started()} in {_namespaces(process)}"


def _namespaces(process: Process) -> str:
    """Of pids, and of the clock since boot (Linux 5.6; None before)."""
    return f"{process.namespace('pid')} {process.namespace('time')}"


def is_dead(owner: str) -> bool:
    """Whether the process that ``owner`` describes is known not to run. False also where that is not known: it is of
    another pid or time namespace, or its entry in /proc may not be read.
    """
    return _runs(owner) is False


def lives(owner: str) -> bool:
    """Whether it is another process than this one, and known to run."""
    return owner != this_daemon() and _runs(owner) is True


def _runs(owner: str) -> bool | None:
    """None where that is not known."""
    made = _OWNER.fullmatch(owner)
    try:
        with Process(os.getpid()) as own:
            if made is None or _namespaces(own) != made[3]:
                return None
        with Process(int(made[1])) as process:
            return process.started() == int(made[2]) and process.state() not in _ENDED
    except OSError:
        return None
