"""What the dead have not given back yet, how fast the others grow meanwhile, and until when that is waited for.

The rule is `monitor.policy.patience.waits`; here are the numbers that it is asked with, from the exact counters of the
domains and of the pods that went. Read often at first, then slower, and never for more than a fifth of a CPU.
"""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from monitor.hot.gauge import Gauge
from monitor.hot.registry import PodEntry, Registry
from monitor.kernel import cgroup_procs
from monitor.kernel.cgroup_procs import CGROUPS
from monitor.kernel.wire import PAGE
from monitor.link.counters import SharedStats
from monitor.link.messages import Evicted, GiveBack, Left, Send
from monitor.policy.patience import JUMP_NS, Coming
from monitor.sources.watch import Watch

#: A pod that went and holds less than this, and what each CPU keeps of its charges (64 pages), has given all back: the
#: rest goes with its cgroup. (No part of what it had: page tables are a 512th of that, and late.)
NOTHING = (1 << 20) + 64 * PAGE * (os.cpu_count() or 1)
#: A pace of growth is taken over this.
WINDOW_NS = 10_000_000
#: How long memory may take to come back, as long as nothing slower was seen here: eight times what page tables take on
#: Linux 6.18 with 2 CPUs, quiet and beside 4 busy processes (19 to 25 ms).
FIRST_BOUND_NS = 200_000_000
#: From then on twice the slowest of the last so many, in these bounds.
REMEMBERED = 32
LEAST_BOUND_NS, MOST_BOUND_NS = 100_000_000, 2_000_000_000
#: Whoever gave nothing back for this long keeps the rest: page cache, dentries, tmpfs. The side asks the kernel for it.
STAYS_NS = 50_000_000
#: So long the side's reclaim is waited for.
RECLAIM_NS = 500_000_000
#: Who was killed by others may have company that lives on; the side reports it within milliseconds.
CONFIRM_NS = 50_000_000
#: And of one pod not longer than that in this time.
DOUBTS_NS = 1_000_000_000
#: Looks: so far apart, while it last gave something back less than so long ago. (A look costs 30 us, a pass as much.)
PACES = ((5_000_000, 250_000), (50_000_000, 1_000_000), (1 << 62, 2_000_000))
_REST = 4  # times what a look cost is rested, at least


@dataclass(slots=True)
class Leaving:
    """A pod whose last process is gone. ``held`` at the most, ``left`` of it still charged (bytes)."""

    number: int
    uid: str
    cgroup_id: int  # 0: its counters are gone
    domains: frozenset[str]  # signals of the domains that its memory counts in
    held: int
    left: int
    gone_ns: int
    moved_ns: int  # when it last gave something back
    until_ns: int  # it is counted on until then
    evicted: Evicted | None  # the message that waits for the final figure; None: others killed it
    unsure: bool  # whether a process of it lives on is not known yet
    asked: bool = False  # the side was asked to have it reclaimed
    size: int = 0  # of processes that the OOM killer took
    kept: int = 0  # by the processes that live on
    killed_again: bool = False  # another process of it was killed since the helper had to look which live on

    @property
    def is_back(self) -> bool:
        return self.left < NOTHING


@dataclass(slots=True)
class Growth:
    """Of all but the dead in one domain: (ns, bytes), over the last `WINDOW_NS`."""

    samples: deque[tuple[int, int]] = field(default_factory=deque)

    def add(self, now_ns: int, others: int) -> None:
        samples = self.samples
        samples.append((now_ns, others))
        while len(samples) > 2 and samples[1][0] <= now_ns - WINDOW_NS:
            samples.popleft()

    def over(self, least_ns: int) -> tuple[int, int]:
        """Bytes and nanoseconds from the last look that is at least so old, or the first."""
        ended, now = self.samples[-1]
        began, was = next((one for one in reversed(self.samples) if ended - one[0] >= least_ns), self.samples[0])
        return now - was, ended - began


class Patience:
    """Follows what comes back. `active` while anything does."""

    def __init__(self, gauge: Gauge, registry: Registry, stats: SharedStats, send: Send) -> None:
        self._gauge = gauge
        self._registry = registry
        self._stats = stats
        self._send = send
        self._leaving: list[Leaving] = []
        self._growth: dict[str, Growth] = {}
        self._returns: deque[int] = deque(maxlen=REMEMBERED)
        self._doubted_ns: dict[str, int] = {}  # pods in which somebody lived on -> so long they were waited for
        self._doubts_ns = 0  # since when that is counted
        self._number = 0
        self._noise = 64 * PAGE * (os.cpu_count() or 1)
        self.next_look_ns = self._rested_ns = 0
        self.bound_ns = FIRST_BOUND_NS
        self._stats.set("return_bound_ns", self.bound_ns)

    @property
    def active(self) -> bool:
        return bool(self._leaving)

    def due_ns(self) -> int | None:
        """When to look what came back; None while nothing is expected."""
        return self.next_look_ns if self._leaving else None

    # what begins and ends a wait

    def left(self, uid: str, held: int, left: int, gone_ns: int, evicted: Evicted) -> None:
        """The last process of an evicted pod is gone. It held ``held`` bytes, of which ``left`` are charged still.

        ``evicted`` is sent, with the final figure in ``freed``, as soon as that is known.
        """
        for old in [one for one in self._leaving if one.uid == uid]:  # its memory counts once
            if uid not in self._registry.by_uid:  # its counters went before this was known
                left = min(left, old.left)
            self._leaving.remove(old)
            self._settle(old, gone_ns)
        self._begin(uid, held, left, gone_ns, evicted, unsure=False)

    def killed(self, entry: PodEntry, size: int, now_ns: int) -> bool:
        """Others killed a process of a pod, or it is gone; whether anything may be coming back now.

        ``size``: what the process had, where the kernel reports it (of a victim of its OOM killer); 0: not known.

        The side is asked whether somebody lives on in the pod. Until it answers the pod's memory counts, but of a pod
        in which somebody lives on for no more than `CONFIRM_NS` in a second: one that kills its own children all the
        time does not hold up its eviction.
        """
        for one in self._leaving:
            if one.uid == entry.uid:
                one.killed_again = True
                one.size += size
                if one.evicted is None and not one.unsure:  # it was killed, and is only gone now
                    one.until_ns = min(now_ns + self.bound_ns, one.gone_ns + MOST_BOUND_NS)
                return False
        if now_ns - self._doubts_ns >= DOUBTS_NS:
            self._doubted_ns.clear()
            self._doubts_ns = now_ns
        if self._doubted_ns.get(entry.uid, 0) >= CONFIRM_NS:
            return False
        self._gauge.reread()
        held = self._gauge.table.working_set(entry.index)
        return self._begin(entry.uid, held, held, now_ns, None, unsure=True, size=size)

    def left_late(self, entry: PodEntry, size: int, now_ns: int) -> bool:
        """A process of a pod left by itself, and ``size`` bytes of it come back late; whether anything may be coming.

        Whether others of the pod live on makes no difference: it is known what was its own.
        """
        for one in self._leaving:
            if one.uid == entry.uid:
                more = min(size, one.kept)
                one.kept, one.left, one.held = one.kept - more, one.left + more, one.held + more
                return False
        self._gauge.reread()
        has = self._gauge.table.working_set(entry.index)
        size = min(size, has)
        return self._begin(entry.uid, size, size, now_ns, None, unsure=False, kept=has - size)

    def dropped(self, entry: PodEntry, now_ns: int) -> bool:
        """A pod is about to be forgotten, and its counters with it; whether anything of it is coming back."""
        if entry.evicted or any(one.uid == entry.uid for one in self._leaving):
            return False
        self._gauge.reread()
        held = self._gauge.table.working_set(entry.index)
        with suppress(OSError):
            if held >= NOTHING and cgroup_procs.empty(entry.cgroup, CGROUPS):
                return self._begin(entry.uid, held, held, now_ns, None, unsure=False)
        return False

    def _begin(
        self,
        uid: str,
        held: int,
        left: int,
        gone_ns: int,
        evicted: Evicted | None,
        *,
        unsure: bool,
        size: int = 0,
        kept: int = 0,
    ) -> bool:
        entry = self._registry.by_uid.get(uid)
        self._number += 1
        leaving = Leaving(
            number=self._number,
            uid=uid,
            cgroup_id=entry.cgroup_id if entry is not None else 0,
            domains=self._domains(entry),
            held=max(held, left),
            left=left,
            gone_ns=gone_ns,
            moved_ns=gone_ns,
            until_ns=gone_ns + (CONFIRM_NS if unsure else self.bound_ns),
            evicted=evicted,
            unsure=unsure,
            size=size,
            kept=kept,
        )
        if leaving.is_back:
            if evicted is not None:
                self._settle(leaving, gone_ns)
            return False
        if not self._leaving:
            self._growth.clear()
        self.next_look_ns = 0
        self._leaving.append(leaving)
        if leaving.unsure:
            self._send(Left(leaving.number, uid))
        return True

    def answered(self, number: int, lives: bool) -> None:
        """The side has looked whether somebody lives on in a pod that others killed."""
        for leaving in self._leaving:
            if leaving.number == number and leaving.unsure:
                if lives and leaving.size:  # the victim's part comes back, the others' does not
                    leaving.kept = max(0, leaving.held - leaving.size)
                    leaving.left = max(0, leaving.left - leaving.kept)
                    leaving.held -= leaving.kept
                elif lives:
                    if leaving.killed_again:
                        leaving.killed_again = False
                        self._send(Left(number, leaving.uid))
                    else:
                        leaving.until_ns = 0
                    self.next_look_ns = 0
                    continue
                leaving.unsure = False
                leaving.until_ns = max(leaving.until_ns, leaving.gone_ns + self.bound_ns)
                self.next_look_ns = 0

    def reclaimed(self, number: int) -> None:
        """The side has had reclaimed what the kernel would give. What the kernel frees by itself has its time still."""
        for leaving in self._leaving:
            if leaving.number == number:
                leaving.until_ns = leaving.gone_ns + self.bound_ns
                self.next_look_ns = 0

    def flush(self) -> None:
        """This daemon ends: what waits for its final figure is sent as it is."""
        while self._leaving:
            self._settle(self._leaving.pop(0), time.monotonic_ns())

    # looking

    def look(self, now_ns: int) -> dict[str, Coming]:
        """Count anew; what is coming, by signal of the domain. Empty where nothing is."""
        if not self._leaving:
            return {}
        self._gauge.reread()
        for leaving in self._leaving:
            self._count(leaving, now_ns)
        watches = [watch for watch in self._gauge.watches if watch.thresholds]
        for watch in watches:
            self._grow(watch, now_ns)
        for leaving in list(self._leaving):
            if leaving.is_back or now_ns >= self._end(leaving):
                self._leaving.remove(leaving)
                self._settle(leaving, now_ns)
            elif not leaving.asked and not leaving.unsure and now_ns - leaving.moved_ns >= STAYS_NS:
                self._ask(leaving, now_ns)
        return {watch.signal: self._coming(watch, now_ns) for watch in watches} if self._leaving else {}

    def left_in(self, signal: str) -> int:
        """Bytes of the dead that are charged to a domain still, also where nobody counts on them any more."""
        return sum(one.left for one in self._leaving if signal in one.domains and not one.unsure)

    def looked(self, now_ns: int, took_ns: int) -> None:
        """A look, and what followed from it, ended at ``now_ns`` and cost ``took_ns`` of a CPU."""
        age = now_ns - max((one.moved_ns for one in self._leaving), default=now_ns)
        pace = next(pace for until, pace in PACES if age < until)
        self._rested_ns = now_ns + _REST * took_ns
        self.next_look_ns = max(now_ns + pace, self._rested_ns)

    def hasten(self) -> None:
        """Somebody moves: look as soon as the last look is paid for."""
        self.next_look_ns = min(self.next_look_ns, self._rested_ns)

    def _end(self, leaving: Leaving) -> int:
        """When it is not looked after any more. That is some time after nobody counts on it: the bound is made of how
        slow it was.
        """
        if leaving.asked or leaving.unsure or not leaving.until_ns:
            return leaving.until_ns
        return max(leaving.until_ns, leaving.gone_ns + 2 * self.bound_ns)

    def _ask(self, leaving: Leaving, now_ns: int) -> None:
        """It gives nothing back any more: have the kernel asked for it. (Not where there is no cgroup any more.)"""
        leaving.asked = True
        if leaving.cgroup_id:
            leaving.until_ns = max(leaving.until_ns, now_ns + RECLAIM_NS)
            self._send(GiveBack(leaving.number, leaving.uid))

    def _count(self, leaving: Leaving, now_ns: int) -> None:
        """What it holds now, by its own counters."""
        entry = self._registry.by_uid.get(leaving.uid)
        if entry is None or entry.cgroup_id != leaving.cgroup_id:
            leaving.cgroup_id = 0
            return
        left = max(0, self._gauge.table.working_set(entry.index) - leaving.kept)
        if left < leaving.left:
            leaving.left, leaving.moved_ns = left, now_ns
            if not leaving.unsure and leaving.until_ns:  # what keeps coming is counted on, on a slow machine too
                last_ns = min(now_ns + self.bound_ns, leaving.gone_ns + MOST_BOUND_NS)
                leaving.until_ns = max(leaving.until_ns, last_ns)

    def _grow(self, watch: Watch, now_ns: int) -> None:
        """How the others in a domain grew. A fall is taken for what pods without counters of their own gave back."""
        mine = [one for one in self._leaving if watch.signal in one.domains]
        others = self._gauge.reading(watch).used - sum(one.left for one in mine)
        growth = self._growth.setdefault(watch.signal, Growth())
        fell = growth.samples[-1][1] - others if growth.samples else 0
        for one in mine:
            if not one.cgroup_id and fell > 0:
                gave = min(fell, one.left)
                one.left, one.moved_ns = one.left - gave, now_ns
                fell, others = fell - gave, others + gave
        growth.add(now_ns, others)

    def _coming(self, watch: Watch, now_ns: int) -> Coming:
        counted = [one for one in self._leaving if watch.signal in one.domains and now_ns < one.until_ns]
        growth = self._growth[watch.signal]
        return Coming(
            sum(one.left for one in counted),
            max((one.until_ns - now_ns for one in counted), default=0),
            *growth.over(WINDOW_NS),
            *growth.over(JUMP_NS),
            self._noise,
        )

    def _domains(self, entry: PodEntry | None) -> frozenset[str]:
        """Signals of the domains that a pod's memory counts in; of one not known any more: of all."""
        return frozenset(
            watch.signal
            for watch in self._gauge.watches
            if entry is None or watch.path is None or watch.path in entry.cgroup.parents
        )

    def _settle(self, leaving: Leaving, now_ns: int) -> None:
        """Nothing more is expected of it."""
        if leaving.unsure:
            self._doubted_ns[leaving.uid] = self._doubted_ns.get(leaving.uid, 0) + now_ns - leaving.gone_ns
        elif leaving.is_back:
            took = max(0, now_ns - leaving.gone_ns)
            self._stats.observe_us("memory_return_us", took // 1000)
            if leaving.evicted is not None and not leaving.asked:
                self._learn(took)
        else:
            self._stats.add("memory_kept")
        if leaving.evicted is not None:
            freed = max(0, leaving.held - leaving.left)
            self._send(leaving.evicted._replace(freed=freed, settled_ns=now_ns))

    def _learn(self, took_ns: int) -> None:
        """The bound is twice the slowest of late."""
        self._returns.append(took_ns)
        known = max(self._returns)
        if len(self._returns) < REMEMBERED:
            known = max(known, FIRST_BOUND_NS // 2)
        self.bound_ns = min(MOST_BOUND_NS, max(LEAST_BOUND_NS, 2 * known))
        self._stats.set("return_bound_ns", self.bound_ns)
