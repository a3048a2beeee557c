"""The process the kernel's OOM killer would take: its arithmetic (mm/oom_kill.c) on facts given as values.

points = pages of (rss + swap + page tables) + oom_score_adj * (totalpages / 1000), in whole numbers, the quotient
truncated first. A process at -1000 is never taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from monitor.policy.ranking import Candidate

#: oom_score_adj of a process that is never killed.
NEVER = -1000
PAGE = 4096


class Process(NamedTuple):
    """One process (thread group) as the OOM killer sees it. `rss` = anonymous + file + shared; all sizes in bytes.
    `pod` None: of none. `skip`: init, a kernel thread.
    """

    pid: int
    comm: str
    rss: int
    swap: int
    pgtables: int
    oom_score_adj: int
    cgroup: str
    pod: str | None = None
    pod_name: str | None = None
    skip: bool = False


class Victim(NamedTuple):
    process: Process
    points: int


def badness(process: Process, totalpages: int) -> int | None:
    """Points in pages; None: never chosen. ``totalpages``: the limit (with swap) or the machine, in pages."""
    if process.oom_score_adj <= NEVER or process.skip:
        return None
    pages = process.rss // PAGE + process.swap // PAGE + process.pgtables // PAGE
    return pages + process.oom_score_adj * (totalpages // 1000)


def likely_victim(processes: Iterable[Process], totalpages: int) -> Victim | None:
    """The victim of the OOM killer among these, in the order the kernel meets them (by cgroup, oldest first): of equal
    ones it takes the last. None: there is none.
    """
    scored = [Victim(p, points) for p in processes if (points := badness(p, totalpages)) is not None]
    return max(reversed(scored), key=lambda one: one.points, default=None)


def evictable(order: Iterable[Candidate]) -> list[Candidate]:
    """The pods of an order that may be evicted at all."""
    return [c for c in order if not c.critical]


def policy_rank(order: Iterable[Candidate], pod: str | None) -> int | None:
    """The place of a pod (uid) among those that may be evicted, from 1; None: it is not among them."""
    return next((i for i, c in enumerate(evictable(order), 1) if c.uid == pod), None)
