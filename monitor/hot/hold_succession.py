"""Pods that a hot process which was killed holds: the next one holds them on, once it watches itself.

Released before, they would grow while nobody looks: of 4 such races at full speed 3 were lost (`outrace bench kills
--mode hold`, before this was so).
"""

from __future__ import annotations

import time
from pathlib import Path

from monitor.actions.hold_journal import attribute_of, noted, undo_holds
from monitor.hot.parts import Parts


def take_over(parts: Parts) -> None:
    """Once, when all pods are known and counted: hold on whom memory is short for, and release everybody else."""
    holds = parts.decider.holds
    assert holds is not None
    state_dir, hierarchy, log = Path(parts.config.state_dir), parts.gauge.hierarchy, parts.outbox.log
    mine = attribute_of(state_dir)
    held = {one.path for one in noted(hierarchy.root) if one.attribute == mine}  # problems are reported below
    kept = holds.go_on([entry for entry in parts.registry if entry.cgroup in held])
    for entry in kept:
        log("warning", "a hold of an earlier daemon goes on", pod=entry.title)
    undo_holds(state_dir, log, hierarchy, {entry.cgroup for entry in kept})


class LeftHolds:
    """Where the pods do not become known (nobody answers who knows them), those that are held are released at the time
    limit of a hold: nobody looks how much memory there is.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._due_ns: int | None = time.monotonic_ns() + parts.config.hold_limit_ns

    def due_ns(self) -> int | None:
        return None if self._parts.decider.may_act else self._due_ns

    def release(self, _: int) -> None:
        self._due_ns = None
        undo_holds(Path(self._parts.config.state_dir), self._parts.outbox.log, self._parts.gauge.hierarchy)
