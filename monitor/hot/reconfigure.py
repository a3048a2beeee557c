"""Another configuration while running: the helper has read and checked it, here it comes into force in one step.

At SIGHUP the hot process only asks the helper, because reading files may take for ever. It applies the helper's answer
between two passes: the thresholds of the policy, those in the kernel and the configuration of the next helper change in
one turn of the loop, and the pass after that is the first with all of them. Options that cannot change
while running are equal in both (`monitor.settings.reload` refuses others), so no other part has to know.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from monitor.hot.decide import Decider
from monitor.hot.housekeeping import Housekeeping
from monitor.hot.records import Records
from monitor.hot.supervise import Side
from monitor.kernel.troubles import TROUBLES
from monitor.link.messages import Clear
from monitor.link.outbox import Outbox
from monitor.link.rare_messages import Reconfigure, Reread
from monitor.settings.config import RunConfig
from monitor.sources.gauge import Gauge
from monitor.sources.watch import change_thresholds


@dataclass(eq=False)
class Configuration:
    """Has configurations read again, and takes them."""

    gauge: Gauge
    decider: Decider
    records: Records
    housekeeping: Housekeeping
    side: Side
    outbox: Outbox
    is_asked: bool = False

    def ask(self, *_: object) -> None:
        """The handler of SIGHUP, which may interrupt a pass: it only notes the request."""
        self.is_asked = True

    def go_on(self) -> None:
        """After a signal, in the loop: have the configuration read again, if it was SIGHUP."""
        if self.is_asked:
            self.is_asked = False
            self.outbox.send(Reread())

    def take(self, message: Reconfigure) -> None:
        """Put it into force. Where there is no descriptor for it, or it cannot be read, the one before stays, whole."""
        stats = self.outbox.stats
        try:
            config = RunConfig.from_json(message.config)
            fd = config.to_memfd()  # for the next helper
        except ValueError:  # after an upgrade the helper that was started again is the newer one
            stats.set("config_refused", message.number)
            return
        except OSError as error:
            TROUBLES.note("side", error)
            stats.set("config_refused", message.number)
            return
        # Crossings that wait name thresholds by their place among those of before.
        self.records.read_events()
        self.side.take_config(fd)
        self._change_thresholds(config)
        stats.set("config_number", message.number)
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
