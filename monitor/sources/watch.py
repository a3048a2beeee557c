"""The cgroups that have thresholds: the node and kubepods.

Their capacity, their ceilings, and what is available now.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from monitor.kernel import cgroupfs
from monitor.kernel.domains import MACHINE, NO_CEILING, RECLAIMABLE, Reading, ceiling_pages
from monitor.policy import signals
from monitor.policy.signals import Observation
from monitor.policy.thresholds import Threshold
from monitor.policy.thresholds import kubelets as kubelets_lines

if TYPE_CHECKING:
    from monitor.kernel.domains import Table

#: Of outrace's own signals, the formula that their entry of the table is compared by.
FORMULA = dict.fromkeys(signals.OWN_SIGNALS, RECLAIMABLE)


@dataclass(slots=True)
class Watch:
    """One domain with the thresholds of one signal; a domain with several signals has one of these for each.

    ``formula``: 0 for the kubelet's (`FORMULA`). ``compared``: the lines are those that a kubelet would have, and are
    compared only to report what it would do; outrace does not act on them.
    """

    name: str  # "node" or "kubepods"
    signal: str
    cgroup_id: int
    index: int
    capacity: int
    path: Path | None  # None: the whole machine
    usage_fd: int = -1
    limit_fd: int = -1
    thresholds: tuple[Threshold, ...] = ()  # in the order of the ceilings in the table
    lines: tuple[int, ...] = ()  # available bytes below which each of them is met
    hard_line: int = 0  # the highest of the hard ones; 0 without any
    formula: int = 0
    compared: bool = False
    limited: bool = True  # used up when its capacity is; a kubepods without a limit of its own is not

    @property
    def machine(self) -> bool:
        return self.path is None

    def close(self) -> None:
        os.close(self.usage_fd)
        os.close(self.limit_fd)

    def limit_now(self) -> int | None:
        """The cgroup's limit in bytes by one pread of a kept descriptor; None without one. Raises OSError."""
        if self.limit_fd < 0:
            return None
        return cgroupfs.limit_of(os.pread(self.limit_fd, 32, 0))

    def is_there(self) -> bool:
        """Whether the cgroup is; not another one of its name."""
        if self.path is None:
            return True
        try:
            return os.stat(self.path).st_ino == self.cgroup_id
        except OSError:
            return False

    def set_capacity(self, capacity: int) -> None:
        """Take a changed limit; the caller has to give the ceilings to the kernel anew."""
        self.capacity = capacity
        self.lines = tuple(t.quantity(capacity) for t in self.thresholds)
        hard = [line for t, line in zip(self.thresholds, self.lines, strict=True) if t.hard and not self.compared]
        self.hard_line = max(hard, default=0)

    @property
    def floor(self) -> int:
        """Available bytes below which the first of its thresholds is met; 0 without any."""
        return max(self.lines, default=0)

    def observation(self, reading: Reading, stamp_ns: int) -> Observation:
        return Observation(available=self.capacity - reading.used, capacity=self.capacity, stamp_ns=stamp_ns)

    def usage_now(self) -> int:
        """Usage by one pread of a kept descriptor (1.3 us); an upper bound of the working set. Not for the machine."""
        return int(os.pread(self.usage_fd, 32, 0))


def make_watches(
    table: Table,
    name: str,
    cgroup: Path | None,
    capacity: int,
    thresholds: Sequence[Threshold],
    version: int,
    step: int = 0,
) -> list[Watch]:
    """Watch the machine (``cgroup`` None) or a cgroup, by the kubelet's signal and by each other one with thresholds;
    where only signals of outrace's own have some, the kubelet's lines are compared as well.

    Thresholds are compared once ``arm_thresholds`` was called. A move by ``step`` bytes is reported (0: none is).
    """
    cgroup_id, flags = (1, MACHINE) if cgroup is None else (cgroup.stat().st_ino, 0)  # the root's inode on v1 and v2
    kubelets, *others = signals.OF_DOMAIN[name]
    made: list[Watch] = []
    for signal in (kubelets, *(s for s in others if any(t.signal == s for t in thresholds))):
        files = [-1, -1]
        if cgroup is not None:
            files = [os.open(cgroup / named[version], os.O_RDONLY) for named in (cgroupfs.USAGE, cgroupfs.LIMIT)]
        if made:
            formula = FORMULA[signal]
            index = table.add_formula(made[0].index, formula, path=cgroup)
        else:
            formula, index = 0, table.add(cgroup_id, flags=flags, step=step, path=cgroup)
        mine = tuple(t for t in thresholds if t.signal == signal)
        compared = signal == kubelets and not mine and any(t.signal in others for t in thresholds)
        if compared:
            mine = tuple(t for t in kubelets_lines(thresholds) if t.signal == signal)
        usage_fd, limit_fd = files
        opened = cgroup, usage_fd, limit_fd, mine
        watch = Watch(name, signal, cgroup_id, index, capacity, *opened, formula=formula, compared=compared)
        watch.set_capacity(capacity)
        made.append(watch)
    return made


def arm_thresholds(table: Table, watch: Watch, kernel_trigger: bool, above: int = 0) -> None:
    """Give the kernel the ceilings to compare; hard ones may pull the trigger there if ``kernel_trigger``. ``above``:
    one more, so many bytes above the highest hard one, as the last; 0: none.
    """
    ceilings = [ceiling_pages(watch.capacity, line) for line in watch.lines]
    hard = [ceiling for ceiling, t in zip(ceilings, watch.thresholds, strict=True) if t.hard]
    if above and watch.hard_line:
        ceilings.append(ceiling_pages(watch.capacity, watch.hard_line + above))
    pulls = kernel_trigger and hard and not watch.compared
    table.set_ceilings(watch.index, ceilings, min(hard) if pulls else NO_CEILING)


class Compared:
    """Thresholds of a kubelet where only outrace's own signals act: compared to report what a kubelet would have done.
    Nothing acts on them. ``met``: those that are met by the last look.
    """

    def __init__(self) -> None:
        self.met: tuple[Threshold, ...] = ()

    def look(self, watch: Watch, seen: Observation) -> tuple[Threshold, ...]:
        """Compare those of a domain; returns those that are no longer met."""
        now = tuple(t for t, line in zip(watch.thresholds, watch.lines, strict=True) if seen.available < line)
        over = tuple(t for t in self.met if t.signal == watch.signal and t not in now)
        self.met = (*(t for t in self.met if t.signal != watch.signal), *now)
        return over
