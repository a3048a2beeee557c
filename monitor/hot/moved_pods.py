"""Pods whose working set moved: ranked anew, several at once, before the next pass that needs their order."""

from __future__ import annotations

import time

from monitor.hot.evictor import Evictor
from monitor.kernel import cgroup_procs
from monitor.kernel.troubles import TROUBLES
from monitor.link.outbox import Outbox
from monitor.sources.gauge import Gauge
from monitor.sources.registry import Registry

#: A pod that freed memory is counted again after this long: no event follows what is uncharged last.
REREAD_NS = 5_000_000
#: An evicted pod that grew without a process in it is not read again before this, or before it grew by so much more.
ASK_NS, ASK_BYTES = 100_000_000, 4 << 20


class MovedPods:
    """`moved`: domain index -> working set (bytes), from step records not yet ranked. `reread_ns`: when pods that gave
    memory back are to be counted again; None: none are.
    """

    def __init__(self, gauge: Gauge, registry: Registry, evictor: Evictor, outbox: Outbox):
        self._gauge = gauge
        self._registry = registry
        self._evictor = evictor
        self._log = outbox.log
        self.moved: dict[int, int] = {}
        self.reread_ns: int | None = None
        self._shrunk: set[int] = set()  # domain indexes of pods that gave memory back

    def note(self, index: int, working_set: int) -> None:
        self.moved[index] = working_set
        entry = self._registry.by_index.get(index)
        if entry is not None and entry.usage is not None and working_set < entry.usage:
            self._shrunk.add(index)
            if self.reread_ns is None:
                self.reread_ns = time.monotonic_ns() + REREAD_NS

    def reread(self) -> None:
        """Count anew, and rank by that, the pods that gave memory back."""
        self.reread_ns = None
        self.rank()
        self._gauge.reread()
        for index in self._shrunk:
            entry = self._registry.by_index.get(index)
            if entry is not None and entry.counted:
                self._registry.move(entry, self._gauge.table.working_set(index))
        self._shrunk.clear()

    def rank(self) -> None:
        """Give the pods that moved their new places, by what they have now: where many records wait, one may be of a
        second ago, and the pod that grows would stay behind one that does not.
        """
        table = self._gauge.table
        for index, working_set in self.moved.items():
            entry = self._registry.by_index.get(index)
            if entry is not None:
                self._registry.move(entry, table.working_set(index) if entry.counted else working_set)
        self.moved.clear()
        self.take_back(at_leisure=False)

    def keeps_order(self) -> bool:
        """Whether what moved is only the first victim, growing: then it is still the first, and ranking can wait."""
        first = self._registry.first()
        if first is None or len(self.moved) != 1 or first.usage is None:
            return False
        return self.moved.get(first.index, -1) >= first.usage

    def take_back(self, at_leisure: bool) -> None:
        """Evicted pods that grew are candidates again if a process runs in them: page cache that they left may turn
        active in use by others.

        On v1 the hot process reads that at leisure only: reading its cgroup.procs takes a lock which another reader may
        hold while it waits for a CPU (17 ms, measured; it cost races). At a crossing only where another pod would be
        evicted instead.
        """
        if not self._registry.grown or self._evictor.current is not None:
            return
        now = time.monotonic_ns()
        for uid in list(self._registry.grown):
            entry = self._registry.by_uid[uid]
            usage = entry.usage or 0
            if self._evictor.is_stuck(uid) or (now < entry.ask_ns and usage - entry.asked < ASK_BYTES):
                continue
            runs = cgroup_procs.populated(entry.cgroup)
            if runs is None and at_leisure:
                try:
                    runs = cgroup_procs.anybody(entry.cgroup)
                except OSError as error:
                    TROUBLES.note("cgroup", error, uid)
            if runs is not None or at_leisure:
                entry.asked = usage
            if runs:
                self._registry.set_evicted(entry, False)
                self._log("info", "an evicted pod runs again: it is a candidate again", pod=entry.title)
            elif runs is not None:
                entry.ask_ns = now + ASK_NS
                self._registry.settle(entry)
            elif at_leisure:
                entry.ask_ns = now + ASK_NS  # too many cgroups to know: it stays what it is
