"""Where the hot process's numbers come from: one hook, behind one interface.

With BPF: the pinned maps and programs. Without: files, read at a pace that the headroom allows. The readers
(gauge, registry, watch) do not know which; the table is used as it is, so nothing stands between a record of the
kernel and the policy.

Memory is followed finely near a threshold only (`Arming`): attached the fine-grained programs cost a page fault a few
percent, detached nothing. While detached, the loop looks at headroom often enough: the next look may wait as long as
the machine needs, at the fastest rate it can fault memory in, to eat the headroom down to a reserve in which attaching
(0.2 ms, measured) is safely done. If that is shorter than MIN_LOOK, they stay attached.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from monitor.errors import MonitorError
from monitor.kernel.bounds import REREAD_NS
from monitor.kernel.pins import HOOKS, TRACEPOINT, Pins, attach
from monitor.kernel.wire import EVICTION, VICTIM, Event, OomEvent
from monitor.settings.config import RunConfig

if TYPE_CHECKING:
    from monitor.kernel.domains import Table
    from monitor.kernel.sweeping import Stepwise
    from monitor.sources.watch import Watch

#: Never look more often than this; attach instead. Ten looks a second of 50 us are 0.05 % of a CPU.
MIN_LOOK_NS = 100_000_000
MAX_LOOK_NS = 10_000_000_000
#: Kept back for a late timer and for attaching itself.
RESERVE_NS = 20_000_000
#: Detach only with this much more headroom than attaching asks for, or a node at the border flaps.
_HYSTERESIS = 2


class Arming:
    """Attached or not, and until when that is safe. Without BPF nothing is attached: armed, files are read finely."""

    partial = False  # whether the hook sees charges only

    def __init__(self, max_fill_rate: int) -> None:
        self.rate = max_fill_rate
        self.armed = False
        #: Whether the whole machine is watched, which has memory that is never charged.
        self.rereads = False
        self.sweep_ns = 0  # attached is so much earlier, because until a sweep is over nothing is compared
        self.next_look_ns = 0
        self._interval_ns = 0

    @property
    def looks(self) -> bool:
        """Whether the loop has to look at headroom when `next_look_ns` comes."""
        return not self.armed or self.rereads

    @property
    def near(self) -> int:
        """Headroom (bytes) below which it is attached."""
        return self.rate * (MIN_LOOK_NS + RESERVE_NS + self.sweep_ns) // 1_000_000_000

    def attach(self) -> None:
        """Nothing if it is attached. Raises MonitorError."""
        self.armed = True

    def detach(self) -> None:
        self.armed = False

    def decide(self, headroom: int, now_ns: int, reread_ns: int = REREAD_NS) -> bool:
        """Attach or detach for this headroom (bytes to the first threshold); True if that changed.

        ``reread_ns``: when to look at what is never charged, while attached.
        """
        was = self.armed
        if headroom < self.near:
            self.attach()
        elif was and headroom > _HYSTERESIS * self.near:
            self.detach()
        if not self.armed:
            safe = (headroom * 1_000_000_000) // self.rate - RESERVE_NS - self.sweep_ns
            self._interval_ns = min(MAX_LOOK_NS, max(MIN_LOOK_NS, safe))
            self.next_look_ns = now_ns + self._interval_ns
        elif self.rereads:
            self._interval_ns = reread_ns
            self.next_look_ns = now_ns + reread_ns
        return was != self.armed

    def unseen_bytes(self) -> int:
        """Bytes that could be allocated before the next look; while attached, without a charge."""
        return self.rate * self._interval_ns // 1_000_000_000


class BpfArming(Arming):
    """The fine-grained programs, attached or not."""

    def __init__(self, pins: Pins, max_fill_rate: int) -> None:
        super().__init__(max_fill_rate)
        # Opened now: whatever becomes of the pins, attaching must not fail when it is needed.
        self._programs = {name: pins.fd(f"prog_{name}") for name in pins.pressure}
        self.partial = pins.hook != TRACEPOINT
        self._links: list[int] = []

    def attach(self) -> None:
        if self.armed:
            return
        try:
            for name, fd in self._programs.items():
                self._links.append(attach(name, fd))
        except MonitorError:  # all or none
            self.detach()
            raise
        self.armed = True

    def detach(self) -> None:
        super().detach()
        for link in self._links:
            os.close(link)
        self._links = []


class Consumer(Protocol):
    """Takes the records of every source: crossings and steps, and the steps of an OOM kill."""

    @property
    def is_calm(self) -> bool:
        """Whether no threshold is met, and no pod is being evicted."""

    def event(self, record: Event) -> None: ...

    def oom(self, event: OomEvent) -> None: ...


class Epoll(Protocol):
    """Of the hot loop."""

    def register(self, fd: int, handler: Callable[[int], object]) -> None: ...

    def unregister(self, fd: int) -> None: ...

    @property
    def modify(self) -> Callable[[int, int], None]: ...


class EventSource:
    """Finds crossings, steps or OOM kills, and hands them on as records. Methods that do nothing are for sources that
    have something to do then.
    """

    def open(self, epoll: Epoll, consumer: Consumer) -> None:
        """Have the descriptors in the epoll, and hand records on from now on."""
        self._epoll, self._consumer = epoll, consumer

    def read_events(self) -> None:
        """Read crossings and steps now."""

    def catch_up(self) -> None:
        """Read the steps before a crossing that is acted on now."""

    def watch(self, watches: Mapping[int, Watch]) -> None:
        """The domains with thresholds, by index."""

    def due_ns(self) -> int | None:
        """When `go_on` is due."""
        return None

    def go_on(self, now_ns: int) -> None:
        """Go on where the budget of a turn ended."""

    def look_after(self) -> None:
        """Once a second."""

    def pods_came(self) -> None:
        """A sweep has been over new pods."""

    def pod_went(self) -> None:
        """An eviction is over."""


@dataclass(frozen=True, slots=True)
class MemorySource:
    """The instruments of one rung. ``victim``, ``eviction``: these structs as 64-bit words, in BPF's maps or here.
    ``pins``: of BPF; of the poller those that record OOM kills, None where there are none.

    ``is_exact``: the kernel keeps the table exact.
    """

    table: Table
    sweeper: Stepwise
    arming: Arming
    victim: memoryview
    eviction: memoryview
    pins: Pins | None
    is_exact: bool


def open_memory_source(config: RunConfig) -> MemorySource:
    """The instruments of ``config.rung``. Raises MonitorError."""
    return _open_bpf(config) if config.rung in HOOKS else _open_soft(config)


def _open_bpf(config: RunConfig) -> MemorySource:
    from monitor.kernel.domains import DomainTable
    from monitor.kernel.sweeping import Sweeper

    pins = Pins(config.pin_dir)
    table = DomainTable(pins)
    return MemorySource(
        table=table,
        sweeper=Sweeper(pins, table),
        arming=BpfArming(pins, config.max_fill_rate),
        victim=memoryview(pins.mmap("victims", VICTIM.size)).cast("Q"),
        eviction=memoryview(pins.mmap("evictions", EVICTION.size)).cast("Q"),
        pins=pins,
        is_exact=True,
    )


def _open_soft(config: RunConfig) -> MemorySource:
    from monitor.kernel import cgroupfs
    from monitor.sources.polled_table import PolledSweeper, PolledTable

    table = PolledTable(cgroupfs.detect())
    return MemorySource(
        table=table,
        sweeper=PolledSweeper(table),
        arming=Arming(config.max_fill_rate),
        victim=memoryview(bytearray(VICTIM.size)).cast("Q"),
        eviction=memoryview(bytearray(EVICTION.size)).cast("Q"),
        pins=Pins(config.pin_dir) if config.pin_dir else None,
        is_exact=False,
    )
