"""Where the hot process's numbers come from: one hook, behind one interface.

With BPF: the pinned maps and programs. Without: files, read at a pace that the headroom allows. The readers
(gauge, registry, watch) do not know which; the table is used as it is, so nothing stands between a record of the
kernel and the policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from monitor.kernel.pins import HOOKS, Pins
from monitor.kernel.wire import EVICTION, VICTIM
from monitor.link.outbox import Outbox
from monitor.settings.config import RunConfig
from monitor.sources.arming import Arming
from monitor.sources.events import EventSource

if TYPE_CHECKING:
    from monitor.kernel.domains import Table
    from monitor.kernel.sweeping import Stepwise


@dataclass(frozen=True, slots=True)
class MemorySource:
    """The instruments of one rung. ``victim``, ``eviction``: these structs as 64-bit words, in BPF's maps or here.
    ``events``: the first finds crossings, the last OOM kills. ``is_exact``: the kernel keeps the table exact.
    """

    table: Table
    sweeper: Stepwise
    arming: Arming
    events: tuple[EventSource, ...]
    victim: memoryview
    eviction: memoryview
    is_exact: bool


def open_memory_source(config: RunConfig, outbox: Outbox) -> MemorySource:
    """The instruments of ``config.rung``. Raises MonitorError."""
    return _open_bpf(config, outbox) if config.rung in HOOKS else _open_soft(config, outbox)


def _open_bpf(config: RunConfig, outbox: Outbox) -> MemorySource:
    from monitor.kernel.domains import DomainTable
    from monitor.kernel.sweeping import Sweeper
    from monitor.sources.rings import Rings

    pins = Pins(config.pin_dir)
    table = DomainTable(pins)
    return MemorySource(
        table=table,
        sweeper=Sweeper(pins, table),
        arming=Arming(config.max_fill_rate, pins),
        events=(Rings(pins, outbox, counts=True),),
        victim=memoryview(pins.mmap("victims", VICTIM.size)).cast("Q"),
        eviction=memoryview(pins.mmap("evictions", EVICTION.size)).cast("Q"),
        is_exact=True,
    )


def _open_soft(config: RunConfig, outbox: Outbox) -> MemorySource:
    """Pinned programs record OOM kills also where none of them compares memory."""
    from monitor.kernel import cgroupfs
    from monitor.sources.polled_table import PolledSweeper, PolledTable
    from monitor.sources.poller import Poller

    table, arming = PolledTable(cgroupfs.detect()), Arming(config.max_fill_rate)
    kills: EventSource
    if config.pin_dir:
        from monitor.kernel.domains import DomainTable
        from monitor.sources.rings import Rings

        pins = Pins(config.pin_dir)
        DomainTable(pins).reset()  # of the daemon before: nothing brings it up to date
        kills = Rings(pins, outbox, counts=False)
    else:
        from monitor.sources.logged_kills import LoggedKills

        kills = LoggedKills(table, outbox)
    return MemorySource(
        table=table,
        sweeper=PolledSweeper(table),
        arming=arming,
        events=(Poller(table, arming, outbox.stats), kills),
        victim=memoryview(bytearray(VICTIM.size)).cast("Q"),
        eviction=memoryview(bytearray(EVICTION.size)).cast("Q"),
        is_exact=False,
    )
