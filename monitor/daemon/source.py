"""Where the hot process's numbers come from: one rung of the hook ladder, behind one interface.

With BPF: the pinned maps and programs. Without: files, read at a pace that the headroom allows. Whoever reads numbers
(gauge, registry, watch) does not know which; `DomainTable` is used as it is, so nothing stands between a record of the
kernel and the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from monitor.daemon.arming import MAX_LOOK_NS, MIN_LOOK_NS, RESERVE_NS
from monitor.daemon.config import RunConfig
from monitor.kernel.domains import NO_CEILING, Reading
from monitor.kernel.rungs import BPF_RUNGS
from monitor.kernel.wire import EVICTION, VICTIM

if TYPE_CHECKING:
    from monitor.kernel.pins import Pins


class Table(Protocol):
    """The watched cgroups (`monitor.kernel.domains.DomainTable`, `monitor.kernel.softtable.SoftTable`)."""

    def index(self, cgroup_id: int) -> int | None: ...
    def read(self, cgroup_id: int) -> Reading | None: ...
    def reading(self, index: int) -> Reading: ...
    def working_set(self, index: int) -> int: ...
    def working_sets(self, indexes: Sequence[int]) -> list[int]: ...
    def room(self, index: int) -> int: ...
    def cgroup_id(self, index: int) -> int: ...
    def synced(self, index: int) -> int: ...
    def crossed(self, index: int) -> int: ...
    def reset(self) -> None: ...
    def add(
        self, cgroup_id: int, *, flags: int = 0, step: int = 0, rearm_ns: int = 5_000_000, path: Path | None = None
    ) -> int: ...
    def check_room(self, entries: int) -> None: ...
    def remove(self, cgroup_id: int) -> None: ...
    def set_ceilings(self, index: int, ceilings: list[int], pull_above: int = NO_CEILING) -> None: ...
    def clear_crossings(self, index: int, mask: int) -> None: ...


class Sweeps(Protocol):
    """Makes every sum of a table exact, a stretch at a time (`monitor.kernel.sweeping`)."""

    given_up: int
    took_ns: int
    longest_turn_ns: int

    @property
    def runs(self) -> bool: ...
    def run(self) -> int: ...
    def begin(self, forget: bool = False) -> None: ...
    def turn(self, budget_ns: int, between: Callable[[], object] | None = None) -> bool: ...
    def reread(self) -> None: ...
    def touch_root(self) -> None: ...


class Arms(Protocol):
    """Listening finely, near a threshold, or looking now and then (`monitor.daemon.arming`)."""

    next_look_ns: int
    rereads: bool
    sweep_ns: int

    @property
    def partial(self) -> bool: ...
    @property
    def armed(self) -> bool: ...
    @property
    def looks(self) -> bool: ...
    @property
    def near(self) -> int: ...
    def detach(self) -> None: ...
    def decide(self, headroom: int, now_ns: int, reread_ns: int = 0) -> bool: ...
    def unseen_bytes(self) -> int: ...


class SoftArming:
    """Reading finely or now and then: the same distances as `Arming`, but nothing is attached."""

    def __init__(self, max_fill_rate: int) -> None:
        self.rate = max_fill_rate
        self.rereads = False
        self.sweep_ns = 0  # attached is so much earlier, because until a sweep is over nothing is compared
        self.on_armed: Callable[[], None] = lambda: None
        self.next_look_ns = 0
        self._interval_ns = 0
        self._armed = False

    @property
    def partial(self) -> bool:
        """Whether something is not seen until the next sweep: not here, where everything is read."""
        return False

    @property
    def armed(self) -> bool:
        return self._armed

    @property
    def looks(self) -> bool:
        """Whether somebody has to look at headroom when `next_look_ns` comes."""
        return not self._armed

    @property
    def near(self) -> int:
        """Headroom (bytes) below which memory is read finely."""
        return self.rate * (MIN_LOOK_NS + RESERVE_NS + self.sweep_ns) // 1_000_000_000

    def detach(self) -> None:
        self._armed = False

    def decide(self, headroom: int, now_ns: int, reread_ns: int = 0) -> bool:
        """Read finely or not for this headroom (bytes to the nearest threshold); True if that changed."""
        was = self._armed
        if headroom < self.near:
            self._armed = True
        elif headroom > 2 * self.near:
            self._armed = False
        if not self._armed:
            safe = headroom * 1_000_000_000 // self.rate - RESERVE_NS - self.sweep_ns
            self._interval_ns = min(MAX_LOOK_NS, max(MIN_LOOK_NS, safe))
            self.next_look_ns = now_ns + self._interval_ns
        elif not was:
            self.on_armed()
        return was != self._armed

    def unseen_bytes(self) -> int:
        """While far from a threshold: what could be allocated before the next look."""
        return self.rate * self._interval_ns // 1_000_000_000


@dataclass(frozen=True, slots=True)
class Source:
    """The instruments of one rung. ``victim``, ``eviction``: the words of these structs, in BPF's memory or nobody's.

    ``is_exact``: the table is kept exact by the kernel. ``reread_lists(index)``: else, how a domain's file lists are
    brought up to date.
    """

    rung: str
    table: Table
    sweeper: Sweeps
    arming: Arms
    victim: memoryview
    eviction: memoryview
    pins: Pins | None
    is_exact: bool
    reread_lists: Callable[[int], None] | None = None


def open_source(config: RunConfig) -> Source:
    """The instruments of ``config.rung``. Raises MonitorError."""
    return _open_bpf(config) if config.rung in BPF_RUNGS else _open_soft(config)


def _open_bpf(config: RunConfig) -> Source:
    from monitor.daemon.arming import Arming
    from monitor.kernel.domains import DomainTable
    from monitor.kernel.pins import Pins
    from monitor.kernel.sweeping import Sweeper

    pins = Pins.open(config.pin_dir)
    table = DomainTable(pins)
    return Source(
        rung=config.rung,
        table=table,
        sweeper=Sweeper(pins, table),
        arming=Arming(pins, config.max_fill_rate),
        victim=memoryview(pins.mmap("victims", VICTIM.size)).cast("Q"),
        eviction=memoryview(pins.mmap("evictions", EVICTION.size)).cast("Q"),
        pins=pins,
        is_exact=True,
    )


def _open_soft(config: RunConfig) -> Source:
    from monitor.kernel import cgroupfs
    from monitor.kernel.softtable import SoftSweeper, SoftTable

    table = SoftTable(cgroupfs.detect())
    return Source(
        rung=config.rung,
        table=table,
        sweeper=SoftSweeper(table),
        arming=SoftArming(config.max_fill_rate),
        victim=memoryview(bytearray(VICTIM.size)).cast("Q"),
        eviction=memoryview(bytearray(EVICTION.size)).cast("Q"),
        pins=None,
        is_exact=False,
        reread_lists=lambda index: table.read_stat(table.entry(index)),
    )
