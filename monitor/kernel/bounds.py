"""What can move, and for how long, before outrace knows, near a threshold: for `outrace doctor` and for the metrics.

Pure arithmetic. ``rate`` is bytes a second that can be taken at most, ``huge_page`` the bytes of one (0: off);
``machine``: the whole machine is watched, whose counters lag, not only cgroups.
"""

from __future__ import annotations

from typing import NamedTuple

from monitor.kernel import pace
from monitor.kernel.wire import PAGE

#: Pages that a charge takes at once for a CPU (MEMCG_CHARGE_BATCH): what passes before a program sees it.
BATCH = 64
#: Pages that a node counter may lack per CPU until they are folded in (at most 125, mm/vmstat.c), for each of the two
#: summed.
_REMAINDER = 125
MACHINE_LAG = 2 * _REMAINDER * PAGE
#: Hooks on charges (fentry, kprobe) do not see what is never charged: the root cgroup's own processes. While attached
#: the machine's counters are read this often at least (5 us, in a turn of the hot loop), near a threshold more often.
REREAD_NS = 20_000_000
#: Nor do they see page cache turn active: it becomes known this late at most, by a sweep (2.6 us per memory cgroup).
PARTIAL_SWEEP_NS = 1_000_000_000
#: A usage threshold of cgroup v1 is moved when page cache moved by this much. (Below that the crossing is announced so
#: much too early or too late; too late is covered by looking.)
REAIM_BYTES = 64 << 10


class Bound(NamedTuple):
    """``unseen_bytes`` can move, for ``unseen_ns``, before outrace looks or is notified."""

    unseen_bytes: int
    unseen_ns: int


def compared(
    rate: int,
    cpus: int,
    huge_page: int,
    *,
    machine: bool,
    charges_only: bool,
    wait_ns: int = pace.floor_ns(pace.TURN_NS),
) -> Bound:
    """The kernel compares after every charge: one batch, or one huge page, on every CPU can be charged before that.

    ``charges_only``: by a hook that sees nothing else; what it does not see is read again after ``wait_ns``.
    """
    unseen = cpus * (max(huge_page, BATCH * PAGE) + _lag(machine))
    if not charges_only:
        return Bound(unseen, 0)
    if machine:
        unseen += rate * wait_ns // 1_000_000_000
    return Bound(unseen, PARTIAL_SWEEP_NS)


def reread_ns(ahead: int | None, rate: int, look_ns: int) -> int:
    """When to read again what hooks on charges do not see, ``ahead`` bytes before the next threshold is met (None: all
    are).

    ``look_ns``: CPU time of a look.
    """
    return REREAD_NS if ahead is None else min(REREAD_NS, pace.wait_ns(ahead, rate, look_ns))


def looked(rate: int, cpus: int, wait_ns: int, *, machine: bool) -> Bound:
    """Memory is read again after ``wait_ns``."""
    return Bound(pace.polled_bytes(rate, wait_ns, cpus) + cpus * _lag(machine), wait_ns)


def announced(rate: int, cpus: int, huge_page: int, wait_ns: int, *, machine: bool, hidden: int) -> Bound:
    """The same, and a usage threshold is in place: whichever of the two comes first.

    Usage cannot pass it unannounced; only page cache, of which ``hidden`` bytes are inactive, can hide growth.
    """
    notified = hidden + REAIM_BYTES + pace.notified_bytes(cpus, huge_page) + cpus * _lag(machine)
    return Bound(min(notified, looked(rate, cpus, wait_ns, machine=machine).unseen_bytes), wait_ns)


def _lag(machine: bool) -> int:
    return MACHINE_LAG if machine else 0
