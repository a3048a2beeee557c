"""Where the hot process's numbers come from: one hook, behind one interface.

With BPF: the pinned maps and programs. Without: files, read at a pace that the headroom allows. The readers
(gauge, registry, watch) do not know which; `DomainTable` is used as it is, so nothing stands between a record of the
kernel and the policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from monitor.kernel.pins import HOOKS
from monitor.kernel.wire import EVICTION, VICTIM
from monitor.settings.config import RunConfig
from monitor.sources.arming import Arming, BpfArming

if TYPE_CHECKING:
    from monitor.kernel.domains import DomainTable
    from monitor.kernel.pins import Pins
    from monitor.kernel.sweeping import Stepwise
    from monitor.sources.polled_table import PolledTable

    Table = DomainTable | PolledTable


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
    from monitor.kernel.pins import Pins
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
    from monitor.kernel.pins import Pins
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
