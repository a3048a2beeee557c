"""Alerts that arrive: to Alertmanagers (API v2) and webhooks, each from a thread and a queue of its own.

Whoever raises an alert only puts it into memory: a receiver that is slow or dead holds up neither him nor the others.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from monitor.side.alerts import http_post
from monitor.side.alerts.journal import journal_path, leftovers
from monitor.side.alerts.receiver import Receiver
from monitor.side.alerts.rules import Alert, fingerprint
from monitor.side.export.log import Log

#: Seconds after which Alertmanager is told again what is firing; it forgets after its resolve_timeout (5 min).
RESEND_S = 60.0
#: An alert that is in no `AlertSender.update` any more is over after this many seconds, if it does not come back.
SETTLE_S = 5.0


class AlertSender:
    """Sends every alert to every receiver. No method but `close` waits for anything but a lock held for microseconds.

    ``alertmanagers`` are base URLs and ``webhooks`` URLs, both through `check_url`; ``node`` becomes the
    label ``node`` of alerts that have none. Journals are in ``state_dir``; what they hold is read by the constructor.
    """

    def __init__(
        self,
        state_dir: Path,
        alertmanagers: Sequence[str],
        webhooks: Sequence[str],
        log: Log,
        node: str,
        resend_s: float = RESEND_S,
        generator_url: str = "",
    ) -> None:
        self._node = node
        self._log = log
        self._receivers: list[Receiver] = []
        journals: list[Path] = []
        names: Counter[str] = Counter()
        for kind, urls in (("alertmanager", alertmanagers), ("webhook", webhooks)):
            for url in dict.fromkeys(urls):
                name = f"{kind} {http_post.address(url)}"
                names[name] += 1
                if names[name] > 1:
                    name += f" #{names[name]}"  # two webhooks on one host; their paths may be secret
                journals.append(journal_path(state_dir, f"{kind} {url}"))
                receiver = Receiver(name, url, kind == "webhook", journals[-1], log, node, resend_s)
                receiver.generator_url = generator_url
                self._receivers.append(receiver)
        self._forget(state_dir, journals)

    def fire(self, alert: Alert) -> None:
        """Raise an alert. With ``ends_at`` it is resolved by itself then; without, by `resolve` or `update`."""
        alert = self._ours(alert)
        for receiver in self._receivers:
            receiver.fire(alert)

    def resolve(self, name: str, labels: Mapping[str, str], when: float) -> None:
        """What was raised under this name and these labels is over at ``when`` (Unix seconds). Else: nothing."""
        key = fingerprint(name, {"node": self._node, **labels})
        for receiver in self._receivers:
            receiver.end(key, when)

    def update(self, current: Sequence[Alert], when: float, settle_s: float = SETTLE_S) -> None:
        """Raise all of ``current``, and end what lasts and is not in it, also from before a restart.

        Its end is ``settle_s`` seconds after ``when``, and is taken back if the alert is in a later call until then: a
        value that trembles around its limit is one alert.
        """
        alerts = [self._ours(alert) for alert in current]
        keep = {alert.fingerprint for alert in alerts}
        for receiver in self._receivers:
            for alert in alerts:
                receiver.fire(alert)
            for known in receiver.active():
                if known.fingerprint not in keep:
                    receiver.end(known.fingerprint, when + settle_s)

    def start(self) -> None:
        """Start a thread for each receiver."""
        for receiver in self._receivers:
            receiver.start()

    def close(self, timeout_s: float) -> bool:
        """One more try for what waits; the rest waits in the journals. False if a receiver took longer than that."""
        deadline = time.monotonic() + timeout_s
        for receiver in self._receivers:
            receiver.close()
        in_time = [receiver.join(max(0.0, deadline - time.monotonic())) for receiver in self._receivers]
        return all(in_time)

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        """Receiver -> ``sent``, ``failed``, ``dropped``, ``waiting``."""
        return {receiver.name: receiver.counts() for receiver in self._receivers}

    def _ours(self, alert: Alert) -> Alert:
        labels = {"node": self._node, **alert.labels}
        return Alert(alert.name, labels, alert.annotations, alert.starts_at, alert.ends_at)

    def _forget(self, state_dir: Path, journals: Sequence[Path]) -> None:
        """Remove the journals of receivers that are configured no more."""
        try:
            for path in leftovers(state_dir, journals):
                path.unlink()
                self._log.warning(
                    "an alert receiver is configured no more: what it was to be told is dropped", path=str(path)
                )
        except OSError as error:
            self._log.error("an old alert journal cannot be removed", path=str(state_dir), problem=error.strerror)
