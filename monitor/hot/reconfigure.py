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


@dataclass(eq=False)
class Configuration:
    """What the helper sent last, until it is in force."""

    gauge: Gauge
    decider: Decider
    records: Records
    housekeeping: Housekeeping
    side: Side
    outbox: Outbox
    is_asked: bool = False
    staged: _Staged | None = None

    def ask(self, *_: object) -> None:
        """The handler of SIGHUP, which may interrupt a pass: it only notes the request."""
        self.is_asked = True

    def go_on(self) -> None:
        """After a signal, in the loop: have the configuration read again, if it was SIGHUP."""
        if self.is_asked:
            self.is_asked = False
            self.outbox.send(Reread())

    def take(self, message: Reconfigure) -> None:
        """Put it into force, or keep it until the pods that change with it are there. Where there is no descriptor for
        it, or it cannot be read, the one before stays, whole.
        """
        try:
            config = RunConfig.from_json(message.config)
            fd = config.to_memfd()
        except ValueError:  # after an upgrade the helper that was started again is the newer one
            self.outbox.stats.set("config_refused", message.number)
            return
        except OSError as error:
            TROUBLES.note("side", error)
            self.outbox.stats.set("config_refused", message.number)
            return
        self.forget()
        self.staged = _Staged(message.number, config, fd)
        if message.staged:
            self.outbox.stats.set("config_staged", message.number)
        else:
            self.apply()

    def keeps(self, message: PodSeen) -> bool:
        """Whether a message about a known pod waits for the configuration that it belongs to."""
        if self.staged is None:
            return False
        self.staged.pods[message.uid] = message
        return True

    def kept(self) -> Iterable[PodSeen]:
        """What waited."""
        return () if self.staged is None else self.staged.pods.values()

    def forget(self) -> None:
        """Its helper is gone, and with it what it was about to send: the next one uses the configuration in force."""
        if self.staged is not None:
            os.close(self.staged.fd)
            self.staged = None

    def apply(self) -> None:
        """Put what was staged into force."""
        staged = self.staged
        if staged is None:
            return
        self.staged = None
        # Crossings that wait name thresholds by their place among those of before.
        self.records.read_events()
        self.side.take_config(staged.fd)
        self._change_thresholds(staged.config)
        self.outbox.stats.set("config_number", staged.number)
        self.decider.changed = True

    def _change_thresholds(self, config: RunConfig) -> None:
        gauge, decider = self.gauge, self.decider
        after = config.pass_config(kill_at_once=True)
        decider.reconfigure(after)
        gauge.thresholds = after.thresholds
        change_thresholds(gauge.watches, after.thresholds)
        # At once: by the old ceilings the kernel would signal the pod that is prepared below. The programs compare only
        # what is counted already (bpf/pressure.c).
        gauge.arm_thresholds()
        if all(map(gauge.known, gauge.watches)):
            self.records.watch({w.index: w for w in gauge.watches})
        else:
            self.housekeeping.watch_thresholds()
        self._end_compared()
        self.housekeeping.look(time.monotonic_ns())
        decider.run_pass()
        decider.prepare()

    def _end_compared(self) -> None:
        """Of thresholds that were compared alone, and are not any more: what they began is over."""
        gauge, compared, now = self.gauge, self.decider.compared, time.monotonic_ns()
        for watch in [w for w in gauge.watches if not w.compared]:
            for over in [t for t in compared.met if t.signal == watch.signal]:
                available = watch.observation(gauge.reading(watch), now).available
                self.outbox.send(Clear(now, watch.name, over.signal, over.hard, available))
        alone = {w.signal for w in gauge.watches if w.compared}
        compared.met = tuple(t for t in compared.met if t.signal in alone)
