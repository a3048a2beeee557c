"""A pod made ready to be killed, and an eviction followed to its end."""

import os
from contextlib import suppress
from pathlib import Path

from monitor.actions.evict import Eviction
from monitor.actions.victim import Victim
from tests import live


def prepared(pod: Path, version: int) -> Victim:
    victim = Victim("uid", pod, version)
    victim.refresh()
    return victim


def finish(eviction: Eviction) -> None:
    live.until(lambda: eviction.step(0), "the pod to be empty")
    eviction.victim.close()


def descriptors(pod: Path) -> int:
    """How many this process has of processes and of what is in the pod: others of earlier tests may be closed."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the directory itself
            link = os.readlink(f"/proc/self/fd/{fd}")
            found += "pidfd" in link or link.startswith(str(pod))
    return found
