"""How much memory there is at this moment, and whether the kernel has to be asked page by page.

Owns the table of domains, the sweeps and the arming. Everything is read from memory shared with BPF, from a kept
descriptor, or by running a BPF program. Files are opened once a second, for the limits; at a crossing at most
/proc/meminfo.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from monitor.errors import MonitorError
from monitor.kernel import bounds, cgroupfs, meminfo
from monitor.kernel.domains import Reading
from monitor.link.messages import LogLine
from monitor.link.outbox import Outbox
from monitor.pods.cgroup_tree import believed, kubepods_of
from monitor.policy.thresholds import Threshold
from monitor.settings.config import STEP, RunConfig
from monitor.sources.source import MemorySource
from monitor.sources.watch import Watch, arm_thresholds, make_watches

#: Sums are made exact by the events themselves; a sweep puts right what events of dead cgroups left behind.
SWEEP_NS = 10_000_000_000
#: From the removal of a cgroup until nothing of it is counted any more: a grace period of RCU and a work queue.
SETTLE_NS = 1_000_000_000
#: A sweep gets this much of the turn in which it is requested, 1,100 cgroups, and so much of each of the next turns.
FIRST_TURN_NS, TURN_NS = 3_000_000, 1_000_000
#: With the programs detached no sums are kept: the last ones count as right for so long.
KEPT_NS = 50_000_000
#: Sweeps in a row that come to no end.
_FAILURES = 4
_EVER_NS = 1 << 62
#: The domains themselves report a move of so many steps of a pod: not urgent, for the record of an incident.
_STEPS = 4
#: What the kernel keeps for itself is looked at so often (0.26 ms, at most 0.6, with 2 CPUs), and followed in steps of
#: this at least.
FOLLOW_NS, FOLLOW_STEP = 60_000_000_000, 16 << 20


class NodeGone(MonitorError):
    """The node's cgroup was removed: there is nothing left to watch."""


class Gauge:
    """The watched domains and what is available in them."""

    def __init__(
        self, source: MemorySource, config: RunConfig, thresholds: tuple[Threshold, ...], outbox: Outbox
    ) -> None:
        self.table = source.table
        self.table.reset()
        self.arming = source.arming
        self.hierarchy = cgroupfs.detect()
        self._source = source
        self._sweeper = source.sweeper
        self._stats, self._send = outbox.stats, outbox.send
        self._config = config
        self.thresholds = thresholds
        self._node = cgroupfs.resolve(self.hierarchy, config.node_cgroup) if config.node_cgroup else None
        self.arming.rereads = self.arming.partial and self._node is None
        self._memory = meminfo.MemTotal()
        self._total = self._memory.now()
        self._huge_pages = self._memory.huge_pages() if config.huge_pages_apart else 0
        #: What kubepods without a limit of its own has, with what is reserved: of the machine with its huge pages.
        self._capacity = (cgroupfs.limit(self._node) if self._node else None) or self._total
        #: Whether a capacity is another one than the kernel's ceilings were made for (`arm_thresholds` does that).
        self.recapped = False
        self._share, self._share_due_ns = config.kernels_share, 0  # as it was last seen; when to look next
        self._taken = 0  # bytes that the kernel has taken since the start
        version = self.hierarchy.version
        self._step = _STEPS * STEP
        capacity = self._capacity - self._huge_pages
        self.watches = make_watches(self.table, "node", self._node, capacity, thresholds, version, self._step)
        self.find_kubepods()
        self.sweep_due_ns = 0
        #: Whether the sums are not to be relied on until the sweep is complete.
        self.unknown = True
        self._kept_until_ns = self._failed = 0
        #: Bytes to the nearest threshold at the last look.
        self.headroom = 1 << 62
        #: Whether the last look found more thresholds of the machine met than the one before (where `arming.rereads`).
        self.crossed = False
        self._met = 0
        self._look_ns = float(bounds.TURN_NS)

    def find_kubepods(self, pod: tuple[Path, str] | None = None) -> bool:
        """Watch the kubepods cgroup as soon as there is one; True if it was found just now.

        ``pod``: a pod's cgroup and uid, which tell where it is if it is not where the kubelet puts it.
        """
        if any(w.name == "kubepods" for w in self.watches):
            return False
        hierarchy = self.hierarchy
        path = kubepods_of(hierarchy, self._node or hierarchy.root, self._config.cgroup_root)
        if path is None and pod is not None and (kube := believed(hierarchy, pod[0])) and kube.uid == pod[1]:
            path = hierarchy.root / kube.root
        if path is None:
            return False
        try:
            limit = cgroupfs.limit(path)
            capacity = limit or max(0, self._capacity - self._config.reserved)
            made = make_watches(self.table, "kubepods", path, capacity, self.thresholds, hierarchy.version, self._step)
        except (OSError, MonitorError):
            return False  # removed in between: the next pod shows it
        for watch in made:
            watch.limited = limit is not None
        self.watches += made
        return True

    def limits_changed(self) -> bool:
        """Look whether the watched cgroups are there, and read their capacities again.

        True if a capacity is another one now, or kubepods is gone.

        Raises NodeGone when the node's own cgroup was removed.
        """
        gone = [watch for watch in self.watches if not watch.is_there()]
        for watch in gone:  # without kubepods the node is still watched; without the node nothing is
            if watch.name == "node":
                remedy = "start outrace again when it is there, or name another"
                raise NodeGone(f"the node's cgroup {watch.path} was removed", remedy)
            self.watches.remove(watch)
            self.table.remove(watch.cgroup_id)
            watch.close()
        if self._config.huge_pages_apart:
            self._count_huge_pages()
        if self._config.kernels_share:
            self._follow_kernel(time.monotonic_ns())
        self.take_capacities()
        return bool(gone) or self.recapped

    def _follow_kernel(self, now_ns: int) -> None:
        """What the kernel has taken since the default threshold was made is less for processes: a lower capacity. Two
        looks have to show it: pages of a large process that is going are on no list for a moment.
        """
        if now_ns < self._share_due_ns:
            return
        self._share_due_ns = now_ns + FOLLOW_NS
        with suppress(MonitorError):
            seen = meminfo.kernels_share(huge_pages_apart=self._config.huge_pages_apart)
            if not seen:  # the machine's memory is changing
                return
            self._share, share = seen, min(seen, self._share)
            taken = max(0, share - self._config.kernels_share)
            if abs(taken - self._taken) >= FOLLOW_STEP:
                self._taken = taken

    def _count_huge_pages(self) -> None:
        with suppress(MonitorError):  # no descriptor left: they are what they were
            self._huge_pages = self._memory.huge_pages()

    def take_capacities(self) -> None:
        """Take every capacity as it is now: memory is plugged and ballooned, limits are set. 2 us for each domain.

        What is observed follows at once; `recapped` asks for new ceilings in the kernel. Huge pages are counted once a
        second (20 us), and where a line of the machine is met that they raise: a program may have freed them since.
        """
        self._total = self._memory.now()
        mine = (w for w in self.watches if w.machine and self._huge_pages)
        if any(w.capacity - self.reading(w).used < w.floor for w in mine):
            self._count_huge_pages()
        for watch in self.watches:
            try:
                limit = watch.limit_now()
            except OSError:
                continue  # ENODEV: removed; `limits_changed` finds out
            watch.limited = limit is not None
            if watch.name == "node":
                self._capacity = limit or self._total
                capacity = self._capacity - self._huge_pages - self._taken
            else:
                capacity = limit or max(0, self._capacity - self._config.reserved)
            if capacity != watch.capacity:
                fields = {"domain": watch.name, "before": watch.capacity, "now": capacity}
                self._send(LogLine("info", "the capacity has changed; thresholds follow it", fields))
                watch.set_capacity(capacity)
                self.recapped = True

    def arm_thresholds(self) -> None:
        """Let the kernel compare from now on."""
        kernel_trigger = self._config.kills and self._config.trigger == "kernel"
        self.recapped, above = False, 0
        if self._config.two_steps:
            from monitor.policy.hold import MARGIN  # of no use in other modes, and 0.1 MiB

            above = MARGIN
        for watch in self.watches:
            arm_thresholds(self.table, watch, kernel_trigger, above)

    @property
    def sweeping(self) -> bool:
        """Whether a sweep has begun and is not complete."""
        return self._sweeper.runs

    def begin_sweep(self) -> None:
        """Begin to make every counter exact; `go_on_sweeping` does it.

        Where no program kept the sums for a while they are unknown until it is complete.
        """
        self.unknown = time.monotonic_ns() >= self._kept_until_ns
        self._sweeper.begin(self.unknown)
        self._stats.set("sweep_partial", 1)

    def go_on_sweeping(self, budget_ns: int, between: Callable[[], object]) -> bool:
        """Continue the sweep for so long; whether every counter is exact now.

        ``between`` is called during it, so that crossings do not wait. Raises MonitorError where sweeps no longer
        complete.
        """
        sweeper = self._sweeper
        over = sweeper.turn(budget_ns, between)
        self._stats.set("sweep_turn_max_ns", sweeper.longest_turn_ns)
        if not over:
            return False
        if sweeper.has_failed:
            self._stats.add("sweeps_given_up")
            self._failed += 1
            if self._failed >= _FAILURES:
                raise MonitorError("memory cgroups vanish faster than they can be counted", "report this")
            sweeper.begin(self.unknown)
            return False
        self._failed, self.unknown = 0, False
        now = time.monotonic_ns()
        self._stats.add("sweeps")
        self._stats.set("sweep_partial", 0)
        self._stats.set("sweep_took_ns", sweeper.took_ns)
        self._stats.set("sweep_max_ns", max(sweeper.took_ns, self._stats.get("sweep_max_ns")))
        self.arming.sweep_ns = 2 * sweeper.took_ns if sweeper.took_ns > FIRST_TURN_NS else 0
        self._kept_until_ns = _EVER_NS if self.arming.armed else now + KEPT_NS
        self.sweep_due_ns = now + (bounds.PARTIAL_SWEEP_NS if self.arming.partial else SWEEP_NS)
        return True

    def known(self, watch: Watch) -> bool:
        """Whether what is counted of a domain is what it has: not before a sweep has been over it."""
        return watch.machine or self.table.synced(watch.index) != 0

    def uncounted(self) -> Watch | None:
        """After a sweep: a domain with thresholds that the kernel's programs do not get to see."""
        return next((w for w in self.watches if w.thresholds and not self.known(w) and w.is_there()), None)

    def sweep_soon(self) -> None:
        """A pod went: sweep again when the kernel is done with its cgroups.

        Linux 7.2 hands the pages of a removed cgroup to its parent later, without an event: until the next sweep its
        page cache is counted in both.
        """
        self.sweep_due_ns = min(self.sweep_due_ns, time.monotonic_ns() + SETTLE_NS)

    def reread(self) -> None:
        """Make the usage of every watched cgroup exact; a few microseconds."""
        self._sweeper.reread()

    @property
    def is_precise(self) -> bool:
        """Whether the figures of every watched cgroup are exact while armed, its file lists too."""
        return self._source.is_exact and not self.arming.partial

    def recount(self) -> None:
        """Make the figures of every watched cgroup those of this moment; costs a sweep where nothing keeps them so.

        With more cgroups than one turn of the loop counts, usage alone: file lists are those of the last sweep then.
        """
        if self.is_precise or self._sweeper.took_ns > FIRST_TURN_NS:
            self._sweeper.reread()
            return
        runs = self.sweeping
        with suppress(MonitorError):  # cgroups vanish too fast: requested sweeps report that
            self._sweeper.run()
        if runs:
            self._sweeper.begin(self.unknown)  # the caller waits for the end of a sweep that begins after its request

    def reading(self, watch: Watch) -> Reading:
        """The domain's memory at this moment, without a sweep. Exact while armed."""
        if watch.machine or not self._source.is_exact:
            self._sweeper.touch(watch.index)
        reading = self.table.reading(watch.index)
        if watch.machine:
            return reading
        try:
            usage = watch.usage_now()
        except OSError:  # ENODEV: removed; what was known last stands until limits_changed() looks
            usage = reading.usage
        return Reading(usage, reading.inactive_file, reading.active_file, reading.reclaimable)

    def look(self, now_ns: int, sweep: Callable[[], bool]) -> bool:
        """Attach or detach the fine-grained programs by headroom; True if that changed.

        ``sweep`` makes the counters exact, and returns whether that is done.
        """
        began = time.thread_time_ns()
        self._stats.add("looks")
        self.take_capacities()
        self.headroom = self._headroom(sweep)
        wait_ns = 0
        if self.arming.rereads:
            wait_ns = bounds.reread_ns(self._ahead(), self._config.max_fill_rate, int(self._look_ns))
        changed = self.arming.decide(self.headroom, now_ns, wait_ns)
        armed = self.arming.armed
        if self.arming.rereads and armed and not changed:
            self._look_ns = bounds.turn_ns(self._look_ns, time.thread_time_ns() - began)
        if changed and (not armed or now_ns < self._kept_until_ns):
            self._kept_until_ns = _EVER_NS if armed else now_ns + KEPT_NS
        if changed:
            self._stats.add("arms" if armed else "disarms")
            self._stats.set("armed", int(armed))
        if not armed or self._source.is_exact:
            self._stats.set("wait_ns", wait_ns if armed else self.arming.wait_ns)
        return changed

    def _headroom(self, sweep: Callable[[], bool]) -> int:
        """Bytes until the nearest threshold: while detached a lower bound, made exact only when it is too close."""
        lowest = 1 << 62
        for watch in self.watches:
            if not watch.thresholds:
                continue
            room = watch.capacity - watch.floor
            if watch.machine or (self.arming.armed and self.known(watch)):
                used = self.reading(watch).used
            else:
                used = self.reading(watch).usage  # as if no cache were inactive: cheap, and never too optimistic
                if not self.arming.armed and room - used < self.arming.near and sweep():
                    used = self.reading(watch).used
            lowest = min(lowest, room - used)
        return lowest

    def _ahead(self) -> int | None:
        """Bytes to the next threshold of the machine that is not met, None if all are; notes how many are."""
        mine = [w for w in self.watches if w.machine]
        used = [self.table.reading(w.index).used for w in mine]
        rooms = [w.capacity - u - line for w, u in zip(mine, used, strict=True) for line in w.lines]
        met = sum(room < 0 for room in rooms)
        self.crossed, self._met = met > self._met, met
        return min((room for room in rooms if room >= 0), default=None)
