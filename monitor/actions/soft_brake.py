"""A brake under which a pod still runs, so that it can answer SIGTERM: cgroup v2's memory.high far below what it holds.

Whoever takes a page sleeps for up to 2 s at his next return to user space: 0.13 MiB a second for each thread (1 MiB
with huge pages), and handlers of signals run in 0.05 to 2 s (measured, docs/hold.md). A fork bomb gets around that, so
pids.max goes down to what is there.

Setting memory.high reclaims in the writer, 2 to 460 ms, with much slab 2.2 s, up to Linux 6.15: never in the hot
process. From 6.16 on a file opened with O_NONBLOCK does not.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from monitor.actions.changes import Change, ChangeJournal
from monitor.errors import MonitorError
from monitor.kernel import cgroupfs
from monitor.kernel.wire import PAGE

HIGH, TASKS = "memory.high", "pids.max"
#: Of what cannot be reclaimed: the penalty is at its most, 2 s, from 1.2 times memory.high on.
_PART = 0.65
#: Bytes a second that a thread takes in spite of it.
THREAD_BPS, HUGE_THREAD_BPS = 136_000, 1 << 20


@dataclass(frozen=True, slots=True)
class SoftBrake:
    """What is in force: ``high`` in bytes, and what was changed for it."""

    high: int
    changes: tuple[Change, ...]


def soften(journal: ChangeJournal, cgroup: Path, uid: str, cap: int, grace_s: float, own_high: str = "") -> SoftBrake:
    """Brake a pod softly that may grow up to ``cap`` bytes (0: no cap) and runs for ``grace_s``. May block for seconds.
    ``own_high``: its memory.high before it was held, where that has changed it.

    Raises MonitorError where it cannot be, with the reason; OSError. Nothing is changed then.
    """
    usage, kept, huge = _figures(cgroup)
    threads = _number(cgroup / "pids.current")
    if threads is None:
        raise MonitorError(f"{cgroup} has no pids.current: a pod that forks would get around the brake", "")
    pace = threads * (HUGE_THREAD_BPS if huge else THREAD_BPS)
    if cap and pace * grace_s > cap - usage:
        raise MonitorError(f"{threads} threads would take {max(0, cap - usage)} bytes in less than {grace_s:g} s", "")
    high = int(kept * _PART) // PAGE * PAGE
    own = _number(cgroup / HIGH)
    changes, most = [], _number(cgroup / TASKS)
    if most is None or most > threads:  # one that is lower was set below what runs, and raised nobody could fork more
        changes.append(journal.change(cgroup, TASKS, str(threads), uid, "soft brake"))
    if own is not None and own <= high:
        return SoftBrake(own, tuple(changes))
    try:
        changes.append(journal.change(cgroup, HIGH, str(high), uid, "soft brake", flags=os.O_NONBLOCK, old=own_high))
    except (OSError, MonitorError):
        harden(journal, changes)
        raise
    return SoftBrake(high, tuple(changes))


def harden(journal: ChangeJournal, changes: list[Change] | tuple[Change, ...]) -> list[tuple[Change, str]]:
    """Take it back: each change, and what became of it. What the kernel refuses stays in the journal."""
    found = []
    for change in reversed(changes):
        with suppress(OSError):
            found.append((change, journal.undo(change)))
    return found


def _figures(cgroup: Path) -> tuple[int, int, bool]:
    """Bytes used, bytes that reclaim would leave (swap is not counted on), and whether it has huge pages."""
    try:
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        usage = int((cgroup / "memory.current").read_text())
    except (OSError, ValueError) as error:
        raise MonitorError(f"{cgroup}: its memory cannot be read: {error}", "") from error
    given = sum(int(stat.get(name, 0)) for name in ("inactive_file", "active_file", "slab_reclaimable"))
    return usage, max(0, usage - given), int(stat.get("anon_thp", 0)) > 0


def _number(path: Path) -> int | None:
    """None for no limit, or no such file. Raises ValueError."""
    try:
        return cgroupfs.limit_of(path.read_bytes())
    except OSError:
        return None
