"""How often to poll memory where the kernel does not notify: pure arithmetic, and what it can promise.

The wait before the next look is what the headroom lasts at the fastest rate the machine can fault memory in, never
shorter than a look may cost in CPU, never longer than the ranking of the pods may be old.
"""

from __future__ import annotations

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
#: memory.stat may lack so many pages of each CPU (MEMCG_CHARGE_BATCH, mm/memcontrol.c), for up to 2 s.
STAT_PAGES = 64
#: A usage threshold of cgroup v1 is compared after every 128 pages charged on a CPU (THRESHOLDS_EVENTS_TARGET,
#: mm/memcontrol-v1.c).
EVENT_PAGES = 128


def wait_ns(headroom: int, rate: int, cost_ns: int) -> int:
    """Until the next look, with ``headroom`` bytes below the nearest threshold.

    ``rate``: bytes a second that can be taken at most. ``cost_ns``: CPU time of a look and the loop's turn around
    it.
    """
    lasts = max(0, headroom) * 1_000_000_000 // rate
    return max(floor_ns(cost_ns), min(COARSEST_NS, lasts))


def floor_ns(cost_ns: int) -> int:
    """The shortest wait between two looks that cost ``cost_ns`` each."""
    return max(FINEST_NS, SHARE * cost_ns)


def polled_bytes(rate: int, interval_ns: int, cpus: int) -> int:
    """What can be taken between two looks, and what memory.stat does not say yet."""
    return rate * interval_ns // 1_000_000_000 + cpus * STAT_PAGES * PAGE


def notified_bytes(cpus: int, huge_page: int) -> int:
    """What can be charged before the kernel compares usage with a threshold of cgroup v1 (``huge_page`` 0: off)."""
    return cpus * max(huge_page, EVENT_PAGES * PAGE)
