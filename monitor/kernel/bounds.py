"""How often to read memory where the kernel does not notify, and what can move, and for how long, before outrace knows.

Pure arithmetic, for the loop, the metrics and `outrace doctor`. ``rate``: bytes a second that can be taken at most;
``huge_page``: bytes of one (0: off); ``machine``: the whole machine is watched, whose counters lag, not only cgroups.

The wait before the next look is what the headroom lasts at that rate, never shorter than a look may cost in CPU, never
longer than the ranking of the pods may be old.
"""

from __future__ import annotations

from typing import NamedTuple

from monitor.kernel.wire import PAGE

#: Never look more often than this: at 6 GiB/s, the most one CPU faults in with huge pages, 6 MiB pass meanwhile.
FINEST_NS = 1_000_000
#: Near a threshold look at least this often, or the order of the pods grows old.
COARSEST_NS = 100_000_000
#: Looking takes at most this part (1/20) of one CPU, whatever a look costs here.
SHARE = 20
#: CPU time of a look and of the turn of the hot loop around it, on a quiet machine (measured; it is measured again all
#: the time, and is twice that on a busy one).
TURN_NS = 80_000
#: Pages that a charge takes at once for a CPU (MEMCG_CHARGE_BATCH, mm/memcontrol.c): what passes before a program sees
#: it, and what memory.stat may lack of each CPU, for up to 2 s.
BATCH = 64
#: Pages that a node counter may lack per CPU until they are folded in (at most 125, mm/vmstat.c), for each of the two
#: summed.
_REMAINDER = 125
MACHINE_LAG = 2 * _REMAINDER * PAGE
#: The hook on charges (kprobe) does not see what is never charged: the root cgroup's own processes. While attached
#: the machine's counters are read this often at least (5 us, in a turn of the hot loop), near a threshold more often.
REREAD_NS = 20_000_000
#: Nor do they see page cache turn active: it becomes known this late at most, by a sweep (2.6 us per memory cgroup).
PARTIAL_SWEEP_NS = 1_000_000_000


def wait_ns(headroom: int, rate: int, cost_ns: int) -> int:
    """Until the next look, with ``headroom`` bytes below the nearest threshold. ``rate``: bytes a second that can be
    taken at most. ``cost_ns``: CPU time of a look and the loop's turn around it.
    """
    lasts = max(0, headroom) * 1_000_000_000 // rate
    return max(floor_ns(cost_ns), min(COARSEST_NS, lasts))


def floor_ns(cost_ns: int) -> int:
    """The shortest wait between two looks that cost ``cost_ns`` each."""
    return max(FINEST_NS, SHARE * cost_ns)


def turn_ns(before: float, look_ns: int) -> float:
    """CPU time of a look and the loop's turn around it, which costs as much again: as it was known ``before``, after
    one more look of ``look_ns``.
    """
    return before + (max(TURN_NS, 2 * look_ns) - before) / 16


class Bound(NamedTuple):
    """``unseen_bytes`` can move, for ``unseen_ns``, before outrace looks or is notified."""

    unseen_bytes: int
    unseen_ns: int


def compared(
    rate: int, cpus: int, huge_page: int, *, machine: bool, charges_only: bool, wait_ns: int = floor_ns(TURN_NS)
) -> Bound:
    """The kernel compares after every charge: one batch, or one huge page, on every CPU can be charged before that.
    ``charges_only``: by a hook that sees nothing else; what it does not see is read again after ``wait_ns``.
    """
    unseen = cpus * (max(huge_page, BATCH * PAGE) + machine * MACHINE_LAG)
    if not charges_only:
        return Bound(unseen, 0)
    if machine:
        unseen += rate * wait_ns // 1_000_000_000
    return Bound(unseen, PARTIAL_SWEEP_NS)


def reread_ns(ahead: int | None, rate: int, look_ns: int) -> int:
    """When to read again what hooks on charges do not see, ``ahead`` bytes before the next threshold is met (None: all
    are). ``look_ns``: CPU time of a look.
    """
    return REREAD_NS if ahead is None else min(REREAD_NS, wait_ns(ahead, rate, look_ns))


def looked(rate: int, cpus: int, wait_ns: int, *, machine: bool) -> Bound:
    """Memory is read again after ``wait_ns``; memory.stat does not say all of it yet."""
    return Bound(rate * wait_ns // 1_000_000_000 + cpus * (BATCH * PAGE + machine * MACHINE_LAG), wait_ns)
