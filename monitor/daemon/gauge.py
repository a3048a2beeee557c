"""How much memory there is at this moment, and whether the kernel has to be asked page by page.

Owns the table of domains, the sweeps and the arming. Everything is read from memory shared with BPF, from a kept
descriptor, or by running a BPF program: nothing here opens a file after the start.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from monitor.daemon.arming import Arming
from monitor.daemon.config import RunConfig
from monitor.daemon.stats import SharedStats
from monitor.daemon.watch import KUBEPODS_SIGNAL, NODE_SIGNAL, Watch, arm_thresholds, armed_bound, make_watch
from monitor.kernel import cgroupfs, meminfo
from monitor.kernel.domains import DomainTable, Reading, Sweeper
from monitor.kernel.pins import Pins
from monitor.pods.cgroup_tree import find_kubepods
from monitor.policy.thresholds import Threshold

#: Sums are made exact by the events themselves; a sweep puts right what events of dead cgroups left behind.
SWEEP_NS = 10_000_000_000


class Gauge:
    """The watched domains and what is available in them."""

    def __init__(self, pins: Pins, config: RunConfig, thresholds: tuple[Threshold, ...], stats: SharedStats) -> None:
        self.table = DomainTable(pins)
        self.table.reset()
        self.arming = Arming(pins, config.max_fill_rate)
        self.hierarchy = cgroupfs.detect()
        self._sweeper = Sweeper(pins, self.table)
        self._stats = stats
        self._config = config
        self._thresholds = thresholds
        self._node = cgroupfs.resolve(self.hierarchy, config.node_cgroup) if config.node_cgroup else None
        self._capacity = (cgroupfs.limit(self._node) if self._node else None) or meminfo.mem_total()
        self._cpus = os.cpu_count() or 1
        self._huge_pages = _huge_pages()
        version = self.hierarchy.version
        self.watches = [
            make_watch(self.table, "node", NODE_SIGNAL, self._node, self._capacity, thresholds, version),
        ]
        self.find_kubepods()
        self.sweep_due_ns = 0

    def find_kubepods(self) -> bool:
        """Watch the kubepods cgroup as soon as there is one; True if it was found just now."""
        if len(self.watches) > 1:
            return False
        hierarchy = self.hierarchy
        path = find_kubepods(cgroupfs.Hierarchy(hierarchy.version, self._node) if self._node else hierarchy)
        if path is None:
            return False
        capacity = cgroupfs.limit(path) or max(0, self._capacity - self._config.reserved)
        self.watches.append(
            make_watch(self.table, "kubepods", KUBEPODS_SIGNAL, path, capacity, self._thresholds, hierarchy.version)
        )
        return True

    def limits_changed(self) -> bool:
        """Read the limits of the watched cgroups again; True if a capacity is another one now."""
        changed = False
        for watch in self.watches:
            if watch.path is None:
                continue
            limit = cgroupfs.limit(watch.path)
            capacity = limit or (
                self._capacity if watch.name == "node" else max(0, self._capacity - self._config.reserved)
            )
            if capacity != watch.capacity:
                watch.set_capacity(capacity)
                changed = True
        return changed

    def arm_thresholds(self) -> None:
        """Let the kernel compare from now on."""
        kernel_trigger = self._config.enforce and self._config.trigger == "kernel"
        for watch in self.watches:
            arm_thresholds(self.table, watch, kernel_trigger)

    def sweep(self, between: Callable[[], object]) -> None:
        """Make every counter exact. ``between`` is called in the midst of it, so that crossings do not wait."""
        self._sweeper.run(between)
        now = time.monotonic_ns()
        self._stats.add("sweeps")
        self._stats.set("sweep_ns", now)
        self.sweep_due_ns = now + SWEEP_NS

    def reread(self) -> None:
        """Make the usage of every watched cgroup exact; a few microseconds."""
        self._sweeper.reread()

    def reading(self, watch: Watch) -> Reading:
        """The domain's memory at this moment, without a sweep. Exact while armed."""
        if watch.machine:
            self._sweeper.touch_root()
            return self.table.reading(watch.index)
        reading = self.table.reading(watch.index)
        return Reading(watch.usage_now(), reading.inactive_file, reading.active_file)

    def look(self, now_ns: int, sweep: Callable[[], object]) -> bool:
        """Attach or detach the fine-grained programs by headroom; True if that changed."""
        self._stats.add("looks")
        changed = self.arming.decide(self._headroom(sweep), now_ns)
        armed = self.arming.armed
        if changed:
            self._stats.add("arms" if armed else "disarms")
            self._stats.set("armed", int(armed))
        bound = armed_bound(self._cpus, self._huge_pages) if armed else self.arming.unseen_bytes()
        self._stats.set("bound_bytes", bound)
        return changed

    def _headroom(self, sweep: Callable[[], object]) -> int:
        """Bytes until the nearest threshold: while detached a lower bound, made exact only when it is too close."""
        lowest = 1 << 62
        for watch in self.watches:
            if not watch.thresholds:
                continue
            room = watch.capacity - watch.floor
            if watch.machine or self.arming.armed:
                used = self.reading(watch).working_set
            else:
                used = watch.usage_now()  # as if no cache were inactive: cheap, and never too optimistic
                if room - used < self.arming.near:
                    sweep()
                    used = self.reading(watch).working_set
            lowest = min(lowest, room - used)
        return lowest

    def describe(self, watch: Watch) -> dict[str, int]:
        """What the `state` message says of a domain."""
        reading = self.table.reading(watch.index)
        return {
            "cgroup_id": watch.cgroup_id,
            "usage": reading.usage,
            "inactive_file": reading.inactive_file,
            "active_file": reading.active_file,
            "working_set": reading.working_set,
            "available": watch.capacity - reading.working_set,
            "capacity": watch.capacity,
        }


def _huge_pages() -> bool:
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled") as file:
            return "[never]" not in file.read()
    except OSError:
        return False
