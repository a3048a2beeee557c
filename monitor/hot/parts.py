"""The objects of the hot process that its timers and messages reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monitor.hot.decide import Decider
    from monitor.hot.disk_signals import DiskSignals
    from monitor.hot.evictor import Evictor
    from monitor.hot.gauge import Gauge
    from monitor.hot.loop import Guard, Loop
    from monitor.hot.outbox import Outbox
    from monitor.hot.pass_record import PassRecorder
    from monitor.hot.patience import Patience
    from monitor.hot.records import Records
    from monitor.hot.registry import Registry
    from monitor.hot.supervise import Side
    from monitor.hot.sweeps import Sweeps
    from monitor.hot.trigger import Trigger
    from monitor.link.counters import SharedStats
    from monitor.settings.config import RunConfig


@dataclass
class LifeCycle:
    """Each is True from some moment on."""

    knows_pods: bool = False  # the helper has sent all pods once; the sweep that counts them follows
    is_ready: bool = False  # they are counted: decisions can be made
    is_stopping: bool = False  # set by the handler of a signal, which may run at any moment


@dataclass(frozen=True)
class Core:
    """What decisions are made with. Made once, in `monitor.hot.main`, as `Parts`. `config` is that of the start: for
    what cannot change while running (`monitor.hot.reconfigure` has the one in force).
    """

    config: RunConfig
    stats: SharedStats
    guard: Guard
    loop: Loop
    side: Side
    outbox: Outbox
    gauge: Gauge
    registry: Registry
    trigger: Trigger
    patience: Patience
    evictor: Evictor
    disks: DiskSignals
    recorder: PassRecorder | None


@dataclass(frozen=True)
class Parts(Core):
    """All of them."""

    decider: Decider
    records: Records
    sweeps: Sweeps
    life: LifeCycle
