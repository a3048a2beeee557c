"""The pending release: memory of the dead that is still charged, how fast the rest grows, and until when to wait.

The rule is `monitor.policy.pending_release.waits`; this file has its numbers, from the exact counters of the domains
and of the ended pods. It samples them often at first, then more slowly, and never for more than a fifth of a CPU.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from monitor.kernel import cgroup_procs
from monitor.kernel.cgroup_procs import CGROUPS
from monitor.kernel.wire import PAGE
from monitor.link.messages import Answer, AskLives, GiveBack, Gone
from monitor.link.outbox import Outbox
from monitor.policy.pending_release import JUMP_NS, Coming
from monitor.sources.gauge import Gauge
from monitor.sources.registry import PodEntry, Registry
from monitor.sources.watch import Watch

#: An ended pod that holds less than this, and what each CPU keeps of its charges (64 pages), has released all: the
#: kernel frees the rest with its cgroup. (Not a part of what it had: page tables are a 512th of that, and late.)
RELEASED_BELOW = (1 << 20) + 64 * PAGE * (os.cpu_count() or 1)
#: A pace of growth is measured over this.
WINDOW_NS = 10_000_000
#: How long a release may be pending, as long as none was slower here: eight times what page tables take on Linux 6.18
#: with 2 CPUs, quiet and beside 4 busy processes (19 to 25 ms).
FIRST_BOUND_NS = 200_000_000
#: From then on twice the slowest of the last so many, in these bounds.
REMEMBERED = 32
LEAST_BOUND_NS, MOST_BOUND_NS = 100_000_000, 2_000_000_000
#: After this long without progress the kernel frees no more by itself (page cache, dentries, tmpfs): the helper
#: requests reclaim.
STAYS_NS = 50_000_000
#: The daemon waits this long for the helper's reclaim.
RECLAIM_NS = 500_000_000
#: When another program kills a process, others of its pod may live on; the helper reports it within milliseconds.
CONFIRM_NS = 50_000_000
#: For the reports of one pod the daemon waits no longer than that, together, in this time.
DOUBTS_NS = 1_000_000_000
#: (Until so long after the last progress, time between samples.) A sample costs 30 us, a pass as much.
PACES = ((5_000_000, 250_000), (50_000_000, 1_000_000), (1 << 62, 2_000_000))
_REST = 4  # the pause after a sample is at least so many times its cost


@dataclass(slots=True)
class Leaving:
    """A pod that has no process left. ``held``: its most bytes, of which ``left`` are still charged."""

    number: int
    uid: str
    cgroup_id: int  # 0: its counters are gone
    domains: frozenset[str]  # signals of the domains that its memory counts in
    held: int
    left: int
    gone_ns: int
    moved_ns: int  # when the kernel last freed some of it
    until_ns: int  # until then its release is expected
    evicted: Gone | None  # the message that waits for the final figure; None: another program killed it
    unsure: bool  # whether a process of it lives on is not known yet
    asked: bool = False  # the helper has the request to reclaim it
    size: int = 0  # of processes that the OOM killer killed
    kept: int = 0  # by the processes that live on
    killed_again: bool = False  # another process of it was killed since the helper began to check

    @property
    def is_back(self) -> bool:
        return self.left < RELEASED_BELOW


#: (ns, bytes) of all but the dead in one domain, over the last `WINDOW_NS`.
_Samples = deque[tuple[int, int]]


def _growth(samples: _Samples, least_ns: int) -> tuple[int, int]:
    """Bytes and nanoseconds since the last sample that is at least so old, or since the first."""
    ended, now = samples[-1]
    began, was = next((one for one in reversed(samples) if ended - one[0] >= least_ns), samples[0])
    return now - was, ended - began


class PendingRelease:
    """Follows pending releases. `active` while there is one; ``begun`` is called when one begins."""

    def __init__(self, gauge: Gauge, registry: Registry, outbox: Outbox, begun: Callable[[], object]) -> None:
        self._gauge = gauge
        self._registry = registry
        self._stats, self._send = outbox.stats, outbox.send
        self._begun = begun
        self._leaving: dict[str, Leaving] = {}  # by uid: the memory of a pod counts once
        self._samples: dict[str, _Samples] = {}
        self._returns: deque[int] = deque(maxlen=REMEMBERED)
        self._doubted_ns: dict[str, int] = {}  # pods in which a process lived on -> how long they were waited for
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
        return self.next_look_ns if self._leaving else None

    # what begins and ends a wait

    def ended(self, uid: str, held: int, left: int, gone_ns: int, evicted: Gone) -> None:
        """The last process of an evicted pod is gone. It held ``held`` bytes, of which ``left`` are charged still.

        ``evicted`` is sent, with the final figure in ``freed``, as soon as that is known.
        """
        if (old := self._leaving.pop(uid, None)) is not None:
            if uid not in self._registry.by_uid:  # its counters were removed before this was known
                left = min(left, old.left)
            self._settle(old, gone_ns)
        self._begin(uid, held, left, gone_ns, evicted)

    def killed(self, entry: PodEntry, size: int, now_ns: int) -> None:
        """Another program killed a process of a pod, or that process is gone. ``size``: what the process had, where the
        kernel reports it (of a victim of its OOM killer); 0: not known.

        The helper checks whether a process of the pod lives on. Until it answers the pod's memory counts as pending; if
        processes live on, for no more than `CONFIRM_NS` in a second: a pod that kills its own children all the time
        does not delay its eviction.
        """
        if (one := self._leaving.get(entry.uid)) is not None:
            one.killed_again = True
            one.size += size
            if one.evicted is None and not one.unsure:  # it was killed before, and is gone only now
                one.until_ns = min(now_ns + self.bound_ns, one.gone_ns + MOST_BOUND_NS)
            return
        if now_ns - self._doubts_ns >= DOUBTS_NS:
            self._doubted_ns.clear()
            self._doubts_ns = now_ns
        if self._doubted_ns.get(entry.uid, 0) < CONFIRM_NS:
            held = self._has(entry)
            self._begin(entry.uid, held, held, now_ns, unsure=True, size=size)

    def exited(self, entry: PodEntry, size: int, now_ns: int) -> None:
        """A process of a pod exited by itself, and ``size`` bytes of it are freed late. Whether others of the pod live
        on makes no difference: it is known what was its own.
        """
        if (one := self._leaving.get(entry.uid)) is not None:
            more = min(size, one.kept)
            one.kept, one.left, one.held = one.kept - more, one.left + more, one.held + more
            return
        has = self._has(entry)
        size = min(size, has)
        self._begin(entry.uid, size, size, now_ns, kept=has - size)

    def dropped(self, entry: PodEntry, now_ns: int) -> None:
        """A pod is about to be forgotten, and its counters with it."""
        if entry.evicted or entry.uid in self._leaving:
            return
        held = self._has(entry)
        with suppress(OSError):
            if held >= RELEASED_BELOW and cgroup_procs.empty(entry.cgroup, CGROUPS):
                self._begin(entry.uid, held, held, now_ns)

    def _has(self, entry: PodEntry) -> int:
        self._gauge.reread()
        return self._gauge.table.working_set(entry.index)

    def _begin(
        self,
        uid: str,
        held: int,
        left: int,
        gone_ns: int,
        evicted: Gone | None = None,
        *,
        unsure: bool = False,
        size: int = 0,
        kept: int = 0,
    ) -> None:
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
            return
        if not self._leaving:
            self._samples.clear()
        self.next_look_ns = 0
        self._leaving[uid] = leaving
        if leaving.unsure:
            self._send(AskLives(leaving.number, uid))
        self._begun()

    def answered(self, message: Answer) -> None:
        """The helper's reclaim is over, or it has checked whether a process lives on in a pod."""
        leaving = next((one for one in self._leaving.values() if one.number == message.id), None)
        if leaving is None:
            return
        self.next_look_ns = 0
        if message.to == "giveback":  # what the kernel frees by itself has its time still
            leaving.until_ns = leaving.gone_ns + self.bound_ns
        elif leaving.unsure:
            self._checked(leaving, message.lives)

    def _checked(self, leaving: Leaving, lives: bool) -> None:
        """Whether a process lives on in a pod that another program killed."""
        if not lives or leaving.size:
            leaving.unsure = False
            leaving.until_ns = max(leaving.until_ns, leaving.gone_ns + self.bound_ns)
            # The kernel frees the victim's part, not the others'.
            leaving.kept = max(0, leaving.held - leaving.size) if lives else 0
            leaving.left = max(0, leaving.left - leaving.kept)
            leaving.held -= leaving.kept
        elif leaving.killed_again:
            leaving.killed_again = False
            self._send(AskLives(leaving.number, leaving.uid))
        else:
            leaving.until_ns = 0

    def flush(self) -> None:
        """This daemon ends: send the messages that wait for a final figure as they are."""
        for leaving in self._leaving.values():
            self._settle(leaving, time.monotonic_ns())
        self._leaving.clear()

    # samples

    def look(self, now_ns: int) -> dict[str, Coming]:
        """Sample; the pending release, by signal of the domain. Empty where there is none."""
        if not self._leaving:
            return {}
        self._gauge.reread()
        for leaving in self._leaving.values():
            self._count(leaving, now_ns)
        watches = [watch for watch in self._gauge.watches if watch.thresholds]
        for watch in watches:
            self._grow(watch, now_ns)
        for leaving in list(self._leaving.values()):
            if leaving.is_back or now_ns >= self._end(leaving):
                del self._leaving[leaving.uid]
                self._settle(leaving, now_ns)
            elif not leaving.asked and not leaving.unsure and now_ns - leaving.moved_ns >= STAYS_NS:
                self._ask(leaving, now_ns)
        return {watch.signal: self._coming(watch, now_ns) for watch in watches} if self._leaving else {}

    def left_in(self, signal: str) -> int:
        """Bytes of the dead that are still charged to a domain, also those that the daemon waits for no more."""
        return sum(one.left for one in self._leaving.values() if signal in one.domains and not one.unsure)

    def looked(self, now_ns: int, took_ns: int) -> None:
        """A sample, and what followed from it, ended at ``now_ns`` and cost ``took_ns`` of a CPU."""
        age = now_ns - max((one.moved_ns for one in self._leaving.values()), default=now_ns)
        pace = next(pace for until, pace in PACES if age < until)
        self._rested_ns = now_ns + _REST * took_ns
        self.next_look_ns = max(now_ns + pace, self._rested_ns)

    def hasten(self) -> None:
        """A pod moved: sample as soon as the pause after the last sample is over."""
        self.next_look_ns = min(self.next_look_ns, self._rested_ns)

    def _end(self, leaving: Leaving) -> int:
        """When it is not followed any more. That is some time after the daemon stops waiting for it: the bound follows
        from how slow it was.
        """
        if leaving.asked or leaving.unsure or not leaving.until_ns:
            return leaving.until_ns
        return max(leaving.until_ns, leaving.gone_ns + 2 * self.bound_ns)

    def _ask(self, leaving: Leaving, now_ns: int) -> None:
        """The kernel frees no more of it: have the helper request reclaim. (Not where the cgroup is gone.)"""
        leaving.asked = True
        if leaving.cgroup_id:
            leaving.until_ns = max(leaving.until_ns, now_ns + RECLAIM_NS)
            self._send(GiveBack(leaving.number, leaving.uid))

    def _count(self, leaving: Leaving, now_ns: int) -> None:
        entry = self._registry.by_uid.get(leaving.uid)
        if entry is None or entry.cgroup_id != leaving.cgroup_id:
            leaving.cgroup_id = 0
            return
        left = max(0, self._gauge.table.working_set(entry.index) - leaving.kept)
        if left < leaving.left:
            leaving.left, leaving.moved_ns = left, now_ns
            if not leaving.unsure and leaving.until_ns:  # a release with progress is expected, on a slow machine too
                last_ns = min(now_ns + self.bound_ns, leaving.gone_ns + MOST_BOUND_NS)
                leaving.until_ns = max(leaving.until_ns, last_ns)

    def _grow(self, watch: Watch, now_ns: int) -> None:
        """How the rest of a domain grew. A fall counts as the release of pods without counters of their own."""
        mine = [one for one in self._leaving.values() if watch.signal in one.domains]
        others = self._gauge.reading(watch).used - sum(one.left for one in mine)
        samples = self._samples.setdefault(watch.signal, deque())
        fell = samples[-1][1] - others if samples else 0
        for one in mine:
            if not one.cgroup_id and fell > 0:
                gave = min(fell, one.left)
                one.left, one.moved_ns = one.left - gave, now_ns
                fell, others = fell - gave, others + gave
        samples.append((now_ns, others))
        while len(samples) > 2 and samples[1][0] <= now_ns - WINDOW_NS:
            samples.popleft()

    def _coming(self, watch: Watch, now_ns: int) -> Coming:
        counted = [o for o in self._leaving.values() if watch.signal in o.domains and now_ns < o.until_ns]
        samples = self._samples[watch.signal]
        return Coming(
            sum(one.left for one in counted),
            max((one.until_ns - now_ns for one in counted), default=0),
            *_growth(samples, WINDOW_NS),
            *_growth(samples, JUMP_NS),
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
        """The bound is twice the slowest release of late."""
        self._returns.append(took_ns)
        known = max(self._returns)
        if len(self._returns) < REMEMBERED:
            known = max(known, FIRST_BOUND_NS // 2)
        self.bound_ns = min(MOST_BOUND_NS, max(LEAST_BOUND_NS, 2 * known))
        self._stats.set("return_bound_ns", self.bound_ns)
