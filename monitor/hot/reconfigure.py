"""Another configuration while running: the helper has read and checked it, here it comes into force in one step.

At SIGHUP the hot process only asks the helper, because reading files may take for ever. It applies the helper's answer
between two passes: the thresholds of the policy, those in the kernel and the configuration of the next helper change in
one turn of the loop, and the pass after that is the first with all of them. Options that cannot change
while running are equal in both (`monitor.settings.reload` refuses others), so no other part has to know.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from monitor.hot.decide import Decider
from monitor.hot.housekeeping import Housekeeping
from monitor.hot.records import Records
from monitor.hot.supervise import Side
from monitor.kernel.troubles import TROUBLES
from monitor.link.messages import Clear, PodSeen
from monitor.link.outbox import Outbox
from monitor.link.rare_messages import Reconfigure, Reread
from monitor.settings.config import RunConfig
from monitor.sources.gauge import Gauge
from monitor.sources.watch import change_thresholds


@dataclass(frozen=True)
class _Staged:
    """``fd`` holds the configuration for the next helper; ``pods``: what came of known ones since, by uid."""

    number: int
    config: RunConfig
    fd: int
    pods: dict[str, PodSeen] = field(default_factory=dict)


class Configuration:
    """What the helper sent last, until it is in force."""

    def __init__(
        self,
        gauge: Gauge,
        decider: Decider,
        records: Records,
        housekeeping: Housekeeping,
        side: Side,
        outbox: Outbox,
    ) -> None:
        self._gauge = gauge
        self._decider = decider
        self._records = records
        self._housekeeping = housekeeping
        self._side = side
        self._stats, self._send = outbox.stats, outbox.send
        self._is_asked = False
        self._staged: _Staged | None = None

    def ask(self, *_: object) -> None:
        """The handler of SIGHUP, which may interrupt a pass: it only notes the request."""
        self._is_asked = True

    def go_on(self) -> None:
        """After a signal, in the loop: have the configuration read again, if it was SIGHUP."""
        if self._is_asked:
            self._is_asked = False
            self._send(Reread())

    def take(self, message: Reconfigure) -> None:
        """Put it into force, or keep it until the pods that change with it are there. Where there is no descriptor for
        it, or it cannot be read, the one before stays, whole.
        """
        try:
            config = RunConfig.from_json(message.config)
            fd = config.to_memfd()
        except ValueError:  # after an upgrade the helper that was started again is the newer one
            self._stats.set("config_refused", message.number)
            return
        except OSError as error:
            TROUBLES.note("side", error)
            self._stats.set("config_refused", message.number)
            return
        self.forget()
        self._staged = _Staged(message.number, config, fd)
        if message.staged:
            self._stats.set("config_staged", message.number)
        else:
            self.apply()

    def keeps(self, message: PodSeen) -> bool:
        """Whether a message about a known pod waits for the configuration that it belongs to."""
        if self._staged is None:
            return False
        self._staged.pods[message.uid] = message
        return True

    def kept(self) -> Iterable[PodSeen]:
        """What waited."""
        return () if self._staged is None else self._staged.pods.values()

    def forget(self) -> None:
        """Its helper is gone, and with it what it was about to send: the next one uses the configuration in force."""
        if self._staged is not None:
            os.close(self._staged.fd)
            self._staged = None

    def apply(self) -> None:
        """Put what was staged into force."""
        staged = self._staged
        if staged is None:
            return
        self._staged = None
        # Crossings that wait name thresholds by their place among those of before.
        self._records.read_events()
        self._side.take_config(staged.fd)
        self._change_thresholds(staged.config)
        self._stats.set("config_number", staged.number)
        self._decider.changed = True

    def _change_thresholds(self, config: RunConfig) -> None:
        gauge, decider = self._gauge, self._decider
        after = config.pass_config(kill_at_once=True)
        decider.reconfigure(after)
        gauge.thresholds = after.thresholds
        change_thresholds(gauge.watches, after.thresholds)
        # At once: by the old ceilings the kernel would signal the pod that is prepared below. The programs compare only
        # what is counted already (bpf/pressure.c).
        gauge.arm_thresholds()
        if all(map(gauge.known, gauge.watches)):
            self._records.watch({w.index: w for w in gauge.watches})
        else:
            self._housekeeping.watch_thresholds()
        self._end_compared()
        self._housekeeping.look(time.monotonic_ns())
        decider.run_pass()
        decider.prepare()

    def _end_compared(self) -> None:
        """Of thresholds that were compared alone, and are not any more: what they began is over."""
        gauge, compared, now = self._gauge, self._decider.compared, time.monotonic_ns()
        for watch in [w for w in gauge.watches if not w.compared]:
            for over in [t for t in compared.met if t.signal == watch.signal]:
                available = watch.observation(gauge.reading(watch), now).available
                self._send(Clear(now, watch.name, over.signal, over.hard, available))
        alone = {w.signal for w in gauge.watches if w.compared}
        compared.met = tuple(t for t in compared.met if t.signal in alone)
