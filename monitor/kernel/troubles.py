"""System calls that failed in the hot process: noted where they failed, counted and logged by its loop.

A failed call costs what it was for, a descriptor or a look at one pod, and never the process that all pods need. Each
call, errno and pod is logged once, with a count.
"""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from monitor.errors import remedy_of

#: What failed. ``cgroup``: reading one; ``pidfd``: opening one; ``signal``: sending one; ``poll``: waiting for a
#: descriptor; ``channel``: the socket to the side; ``side``: starting or ending it; ``pod``: beginning to watch one;
#: ``loop``: anything else in a turn of the loop.
CALLS = ("cgroup", "pidfd", "signal", "poll", "channel", "side", "pod", "loop")
#: Different troubles kept until they are logged; those of more pods than this are counted without a name.
_MOST = 64


class Trouble(NamedTuple):
    """One kind of failure since the last look. ``whose``: uid of the pod, "" where it is no pod's."""

    call: str
    number: int
    whose: str
    times: int

    @property
    def fields(self) -> dict[str, str | int]:
        """For a line of the log."""
        name, remedy = errno.errorcode.get(self.number, str(self.number)), remedy_of(self.number, "")
        fields: dict[str, str | int] = {"call": self.call, "errno": name, "problem": os.strerror(self.number)}
        return fields | {"times": self.times} | ({"remedy": remedy} if remedy else {})


class Troubles:
    """What failed since it was last taken."""

    def __init__(self) -> None:
        self._noted: dict[tuple[str, int, str], int] = {}

    def note(self, call: str, error: OSError, whose: str = "") -> None:
        key = (call, error.errno or 0, whose)
        if key not in self._noted and len(self._noted) >= _MOST:
            key = (call, error.errno or 0, "")
        self._noted[key] = self._noted.get(key, 0) + 1

    @property
    def any(self) -> bool:
        """Whether something was noted since it was last taken."""
        return bool(self._noted)

    def take(self) -> list[Trouble]:
        """What was noted, once."""
        if not self._noted:
            return []
        noted, self._noted = self._noted, {}
        return [Trouble(*key, times) for key, times in noted.items()]


#: Of this process.
TROUBLES = Troubles()
