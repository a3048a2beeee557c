"""Alerts that arrive: to Alertmanagers (API v2) and webhooks, each from a thread and a queue of its own.

Raising an alert only puts it into memory: a receiver that hangs or is dead delays neither the caller nor the others.
What waits when this process ends is lost after one more try: the rules of Prometheus find it in the scraped metrics.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count

from monitor.side.alerts import http_post
from monitor.side.alerts.receiver import Receiver
from monitor.side.alerts.rules import Alert
from monitor.side.export.log import Log

#: Seconds after which Alertmanager gets again what is firing; it forgets after its resolve_timeout (5 min).
RESEND_S = 60.0
#: An alert that `AlertSender.update` no longer gets is over after this many seconds, unless it gets it again by then.
SETTLE_S = 5.0


class AlertSender:
    """Sends every alert to every receiver. No method but `close` waits for a network.

    ``alertmanagers`` are base URLs and ``webhooks`` URLs, both through `check_url`; ``node`` is for the body of
    webhooks; ``runbooks`` is the base URL of the pages about alerts, "" for their path in the source tree.
    """

    def __init__(
        self,
        alertmanagers: Sequence[str],
        webhooks: Sequence[str],
        log: Log,
        node: str,
        resend_s: float = RESEND_S,
        runbooks: str = "",
    ) -> None:
        self._log, self._node, self._resend_s, self._runbooks = log, node, resend_s, runbooks
        self._receivers: Mapping[tuple[str, str], Receiver] = {}  # by kind and URL; replaced as a whole
        self._receivers = self._made(alertmanagers, webhooks)

    def _made(self, alertmanagers: Sequence[str], webhooks: Sequence[str]) -> dict[tuple[str, str], Receiver]:
        """A receiver for each URL: the present one, else a new one."""
        made: dict[tuple[str, str], Receiver] = {}
        taken = {receiver.name for receiver in self._receivers.values()}
        for kind, urls in (("alertmanager", alertmanagers), ("webhook", webhooks)):
            for url in dict.fromkeys(urls):
                key = kind, url
                if (known := self._receivers.get(key)) is not None:
                    made[key] = known
                    continue
                base = name = f"{kind} {http_post.address(url)}"
                for number in count(2):  # two webhooks on one host; their paths may be secret
                    if name not in taken:
                        break
                    name = f"{base} #{number}"
                taken.add(name)
                made[key] = Receiver(name, url, kind == "webhook", self._log, self._node, self._resend_s)
        return made

    def take_receivers(self, alertmanagers: Sequence[str], webhooks: Sequence[str]) -> None:
        """Send to these from now on. A receiver that stays keeps its queue; one that is removed tries once more. A new
        one gets the alerts that last with the next `update`.
        """
        before = self._receivers
        self._receivers = self._made(alertmanagers, webhooks)
        for key, receiver in self._receivers.items():
            if key not in before:
                receiver.start()
        for key, receiver in before.items():
            if key not in self._receivers:
                receiver.close()

    def fire(self, alert: Alert) -> None:
        """Raise an alert. With ``ends_at`` it is resolved by itself then; without, by `update`."""
        if self._runbooks:
            link = f"{self._runbooks}/{alert.name}.md"
            alert = replace(alert, annotations={**alert.annotations, "runbook_url": link})
        for receiver in self._receivers.values():
            receiver.fire(alert)

    def update(self, current: Sequence[Alert], when: float, settle_s: float = SETTLE_S) -> None:
        """Raise all of ``current``, and end what lasts and is not in it.

        Its end is ``settle_s`` seconds after ``when``. The end is cancelled if a call until then has the alert again: a
        value that trembles around its limit is one alert.
        """
        keep = {alert.fingerprint for alert in current}
        for alert in current:
            self.fire(alert)
        for receiver in self._receivers.values():
            for known in receiver.active():
                if known.fingerprint not in keep:
                    receiver.end(known.fingerprint, when + settle_s)

    def start(self) -> None:
        """Start a thread for each receiver."""
        for receiver in self._receivers.values():
            receiver.start()

    def close(self, timeout_s: float) -> bool:
        """One more try for what waits; the rest is lost. False if a thread took longer than that."""
        deadline = time.monotonic() + timeout_s
        for receiver in self._receivers.values():
            receiver.close()
        for receiver in self._receivers.values():
            if receiver.ident is not None:  # else it was never started
                receiver.join(max(0.0, deadline - time.monotonic()))
        return not any(receiver.is_alive() for receiver in self._receivers.values())

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        """Receiver -> ``sent``, ``failed``, ``dropped``, ``waiting``."""
        return {receiver.name: receiver.counts() for receiver in self._receivers.values()}
