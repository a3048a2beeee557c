"""Counters shared between the hot process and the side, one 8-byte slot each, in a memfd.

The hot process adds to them with plain memory stores: no lock, no system call, nothing that could wait for a reader.
The side (and `/metrics`) reads whenever it likes. A slot is one aligned 64-bit word, so a reader sees the old or the
new value, never half of one.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left
from typing import get_args

from monitor.kernel.troubles import CALLS
from monitor.kernel.wire import OomEvent
from monitor.link.messages import NAMES, HotMessage

#: Upper bounds of the latency buckets in microseconds; the last slot of a histogram is everything above.
LATENCY_BUCKETS_US = (25, 50, 100, 150, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 100_000, 250_000, 1_000_000)

COUNTERS = (
    "ready_ns",  # when the hot process became ready (CLOCK_MONOTONIC)
    "loops",  # turns of the event loop
    "records_cross",  # threshold crossings read from the ring
    "records_step",  # records of a domain having moved by its step
    "records_signal",  # records of a kill triggered inside the kernel
    "records_oom",  # oom:mark_victim records
    "records_kill",  # SIGKILLs of watched processes
    "records_exit",  # exits of killed processes
    "records_reclaim",  # reclaim begun, for a limit or for the machine
    "records_bad",  # records that did not decode
    "rests",  # times that rings other than that of crossings were not read: their share of the time was used up
    # Records that an earlier daemon had read: subtracted from those that the pinned programs have written.
    "base_cross",
    "base_step",
    "base_signal",
    "base_oom",
    "base_kill",
    "base_exit",
    "base_reclaim",
    "passes",  # passes of the policy
    "decisions",  # pods chosen for eviction (observed or enforced)
    "evictions",  # pods really evicted
    "eviction_failures",
    "holds",  # pods braked at a crossing instead of killed
    "braked_not_covered",  # times evictions were suspended, by reason (`monitor.policy.suspension.REASONS`)
    "braked_outgrown",
    "braked_no_gain",
    "oom_kills",  # victims the kernel marked and killed
    "oom_exiting",  # victims marked while already exiting
    "channel_dropped",  # messages for the side dropped because its socket was full or it was away
    "side_starts",
    "side_hangs",  # sides that were killed because they hung
    "side_heartbeat_ns",  # the side's last turn (CLOCK_MONOTONIC), written by the side (monitor/link/heartbeat.py)
    "arms",
    "disarms",
    "armed",  # 1 while the fine-grained program is attached
    "looks",  # cheap looks at headroom while disarmed
    "sweeps",  # complete sweeps of all memory cgroups
    "sweep_partial",  # 1 while one has begun and is not complete
    "sweep_took_ns",  # CPU time of the last complete one,
    "sweep_max_ns",  # of the longest one,
    "sweep_turn_max_ns",  # and the most that one took in one turn of the loop
    "sweeps_given_up",  # begun again, because cgroups vanished faster than they could be counted
    "pods_uncounted",  # pods in cgroups that the programs do not see
    "wait_ns",  # until memory is looked at again, where that is not reported
    "return_bound_ns",  # so long memory of the dead is waited for
    "memory_kept",  # pods that went and kept something, which was asked for in vain or not at all
    "eviction_waits",  # times the next victim waited for a pending release
    "pods",
    "published_ns",
)
#: Messages for the side, as they are counted when they are dropped; an `oom` message by the step it reports.
MESSAGES = tuple(
    sorted({*(NAMES[cls] for cls in get_args(HotMessage)), "oom_mark", "oom_kill", "oom_exit", "oom_reclaim"} - {"oom"})
)
HISTOGRAMS = ("detection_us", "kill_us", "hold_us", "gone_us", "memory_return_us")

_NAMES = (*COUNTERS, *(f"dropped_{name}" for name in MESSAGES), *(f"errors_{call}" for call in CALLS))
_SLOTS: dict[str, int] = {name: i for i, name in enumerate(_NAMES)}
_HIST_WIDTH = len(LATENCY_BUCKETS_US) + 2  # buckets, overflow, sum
_HIST_BASE = {name: len(_NAMES) + i * _HIST_WIDTH for i, name in enumerate(HISTOGRAMS)}
SIZE = 8 * (len(_NAMES) + len(HISTOGRAMS) * _HIST_WIDTH)


class SharedStats:
    """A page of unsigned 64-bit counters by name; one writer of each, any number of readers."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._view = memoryview(mmap.mmap(fd, SIZE)).cast("Q")

    @classmethod
    def create(cls) -> SharedStats:
        """Make a zeroed page in a memfd that a child may inherit (the caller marks the fd inheritable)."""
        fd = os.memfd_create("outrace-stats", os.MFD_CLOEXEC)
        os.ftruncate(fd, SIZE)
        return cls(fd)

    def add(self, name: str, n: int = 1) -> None:
        self._view[_SLOTS[name]] += n

    def dropped(self, message: HotMessage) -> None:
        self.add("channel_dropped")
        self.add(f"dropped_{f'oom_{message.kind}' if isinstance(message, OomEvent) else NAMES[type(message)]}")

    def set(self, name: str, value: int) -> None:
        self._view[_SLOTS[name]] = value

    def get(self, name: str) -> int:
        return self._view[_SLOTS[name]]

    def observe_us(self, name: str, microseconds: int) -> None:
        base = _HIST_BASE[name]
        self._view[base + bisect_left(LATENCY_BUCKETS_US, microseconds)] += 1
        self._view[base + _HIST_WIDTH - 1] += max(0, microseconds)

    def histogram(self, name: str) -> tuple[list[int], int]:
        """Counts per bucket (not cumulative, last one is the overflow) and the sum in microseconds."""
        base = _HIST_BASE[name]
        return list(self._view[base : base + _HIST_WIDTH - 1]), self._view[base + _HIST_WIDTH - 1]
