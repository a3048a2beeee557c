"""What processes had before they were given the oom_score_adj of their QoS class: noted before, and given back.

A container runtime set another value, or the process itself; that one comes back when outrace ends, as every value does
that outrace changes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from monitor.actions.changes import identity_of
from monitor.actions.ledger import SCORES, Ledger
from monitor.actions.oom_values import Mark, Seen, container_of, noted_in, restore, running, store
from monitor.errors import MonitorError
from monitor.pods.model import FoundPod

_TICKS = os.sysconf("SC_CLK_TCK")
_ROOM = 64


class Wanted(NamedTuple):
    """A process that is to be given a value. ``cgroup``: where it is."""

    pid: int
    started: int
    is_now: int
    should: int
    cgroup: str


class ScoreNotes:
    """Notes what processes had before they are given the value of their class; each pod's at its cgroup."""

    def __init__(self, state_dir: Path) -> None:
        self._ledger = Ledger(state_dir, SCORES)
        self._marks: dict[Path, Mark] = {}
        self._room: dict[Path, int] = {}  # from so many on it is looked which of a pod's have ended

    def note(self, found: FoundPod, wanted: Collection[Wanted]) -> None:
        """Before it is written. Raises OSError, and then nothing may be. A note has 64 KiB, some 1,400 processes."""
        cgroup, identity = found.cgroup, identity_of(found.cgroup)
        mark = self._marks.get(cgroup)
        if mark is None or mark.identity != identity:
            left = noted_in(cgroup, lambda one: one.attribute == self._ledger.attribute)
            mark = Mark(cgroup, identity, found.pod.uid, left)
            self._marks = {path: one for path, one in self._marks.items() if path.exists()}
            self._room = {path: room for path, room in self._room.items() if path in self._marks}
        since = int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)
        new = {}
        for one in wanted:
            known = mark.processes.get(one.pid)
            is_ours = known is not None and (known.started, known.written) == (one.started, one.is_now)
            old = known.old if known is not None and is_ours else one.is_now
            new[one.pid] = Seen(one.started, old, container_of(cgroup, one.cgroup), one.should, since)
        kept = mark.processes
        if len(kept) + len(new) > self._room.get(cgroup, _ROOM):  # 30 us each: not for each process that appears
            kept = running(kept)
            self._room[cgroup] = 2 * (len(kept) + len(new)) + _ROOM
        made = Mark(cgroup, identity, found.pod.uid, kept | new)
        store(self._ledger, made)
        self._marks[cgroup] = made

    def close(self, timeout_s: float = 2.0) -> None:
        """Give every process its own value back. What cannot be in that time is noted, for the next start."""
        until = time.monotonic() + timeout_s
        for mark in self._marks.values():
            if time.monotonic() > until:
                return
            with suppress(OSError, MonitorError):
                restore(self._ledger, mark)
        self._marks.clear()
