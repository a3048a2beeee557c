"""The eviction under way, where a daemon that is killed leaves it for the next one.

Words in the pinned map ``evictions``: written by plain stores before the first signal goes out, so that there is no
moment at which a pod is dying and nobody could know why. Without BPF they are this process's own, and end with it.
"""

from __future__ import annotations

import os
from typing import NamedTuple

#: States, in order: its processes were asked to end, they had their SIGKILL, nobody is left of it.
ASKED, KILLED, GONE = 1, 2, 3
_STATE, _POD, _STARTED, _KILL_AT, _KILLED, _HELD, _REPORTED, _SENDER = range(8)


class Noted(NamedTuple):
    """An eviction that another daemon began. Times in ns (CLOCK_MONOTONIC; 0: not yet, none), ``held`` in bytes."""

    state: int
    cgroup_id: int
    started_ns: int
    kill_at_ns: int
    killed_ns: int
    held: int
    reported: int  # 1: its decision was sent to the side


class EvictionNote:
    """``words``: those of struct eviction (bpf/wire.h)."""

    def __init__(self, words: memoryview) -> None:
        self._words = words
        words[_SENDER] = os.getpid()  # whom the programs need not wake up for its own signals

    def begin(self, cgroup_id: int, held: int, now_ns: int, kill_at_ns: int = 0) -> None:
        """A pod is to get its first signal now: SIGTERM where ``kill_at_ns`` is given, else SIGKILL."""
        words = self._words
        words[_STATE] = words[_REPORTED] = 0
        words[_POD], words[_STARTED], words[_KILL_AT], words[_HELD] = cgroup_id, now_ns, kill_at_ns, held
        words[_KILLED] = 0 if kill_at_ns else now_ns
        words[_STATE] = ASKED if kill_at_ns else KILLED

    def reported(self) -> None:
        """Its decision was sent to the side."""
        self._words[_REPORTED] = 1

    def killed(self, cgroup_id: int, now_ns: int) -> None:
        """Its grace is over."""
        if self._is_of(cgroup_id):
            self._words[_KILLED] = now_ns
            self._words[_STATE] = KILLED

    def gone(self, cgroup_id: int) -> None:
        """Nobody is left of it."""
        if self._is_of(cgroup_id):
            self._words[_STATE] = GONE

    def drop(self, cgroup_id: int) -> None:
        """It is not waited for any more."""
        if self._is_of(cgroup_id):
            self._words[_STATE] = 0

    def _is_of(self, cgroup_id: int) -> bool:
        return bool(self._words[_STATE]) and self._words[_POD] == cgroup_id

    def read(self) -> Noted | None:
        """What stands there."""
        words = self._words
        return Noted(*words[:7]) if words[_STATE] in (ASKED, KILLED, GONE) else None
