"""Alerts that arrive: to Alertmanagers (API v2) and webhooks, each from a thread and a queue of its own.

Whoever raises an alert only puts it into memory: a receiver that is slow or dead holds up neither him nor the others.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from monitor.side.alerts import http_post
from monitor.side.alerts.receiver import Receiver
from monitor.side.alerts.rules import Alert
from monitor.side.alerts.state import FILE_NAME, StateFile
from monitor.side.export.log import Log

#: Seconds after which Alertmanager gets again what is firing; it forgets after its resolve_timeout (5 min).
RESEND_S = 60.0
#: An alert that is in no `AlertSender.update` any more is over after this many seconds, if it does not come back.
SETTLE_S = 5.0


class AlertSender:
    """Sends every alert to every receiver. No method but `close` waits for a network or a disk.

    ``alertmanagers`` are base URLs and ``webhooks`` URLs, both through `check_url`; ``node`` becomes the
    label ``node`` of alerts that have none. What waited when the last process ended is read by the constructor from
    ``state_dir``.
    """

    def __init__(
        self,
        state_dir: Path,
        alertmanagers: Sequence[str],
        webhooks: Sequence[str],
        log: Log,
        node: str,
        resend_s: float = RESEND_S,
    ) -> None:
        self._node = node
        self._log = log
        self._receivers: dict[str, Receiver] = {}  # by their keys in the state file
        self._state = StateFile(state_dir / FILE_NAME, self._snapshot, log)
        saved = self._state.load()
        names: Counter[str] = Counter()
        for kind, urls in (("alertmanager", alertmanagers), ("webhook", webhooks)):
            for url in dict.fromkeys(urls):
                name = f"{kind} {http_post.address(url)}"
                names[name] += 1
                if names[name] > 1:
                    name += f" #{names[name]}"  # two webhooks on one host; their paths may be secret
                key = hashlib.sha256(f"{kind} {url}".encode()).hexdigest()[:12]  # a URL may be secret
                self._receivers[key] = Receiver(
                    name,
                    url,
                    kind == "webhook",
                    log,
                    node,
                    resend_s,
                    saved.pop(key, None),
                    self._state.changed,
                )
        if saved:
            log.warning("alerts for receivers that are configured no more are dropped", receivers=len(saved))
            self._state.changed()

    def fire(self, alert: Alert) -> None:
        """Raise an alert. With ``ends_at`` it is resolved by itself then; without, by `update`."""
        alert = self._ours(alert)
        for receiver in self._receivers.values():
            receiver.fire(alert)

    def update(self, current: Sequence[Alert], when: float, settle_s: float = SETTLE_S) -> None:
        """Raise all of ``current``, and end what lasts and is not in it, also from before a restart.

        Its end is ``settle_s`` seconds after ``when``, and is taken back if the alert is in a later call until then: a
        value that trembles around its limit is one alert.
        """
        alerts = [self._ours(alert) for alert in current]
        keep = {alert.fingerprint for alert in alerts}
        for receiver in self._receivers.values():
            for alert in alerts:
                receiver.fire(alert)
            for known in receiver.active():
                if known.fingerprint not in keep:
                    receiver.end(known.fingerprint, when + settle_s)

    def start(self) -> None:
        """Start a thread for each receiver, and one for the state file."""
        self._state.start()
        for receiver in self._receivers.values():
            receiver.start()

    def close(self, timeout_s: float) -> bool:
        """One more try for what waits; the rest waits in the state file. False if a thread took longer than that."""
        deadline = time.monotonic() + timeout_s
        for receiver in self._receivers.values():
            receiver.close()
        _join(self._receivers.values(), deadline)
        self._state.close()  # last: it writes down what the others leave
        _join([self._state], deadline)
        return not any(thread.is_alive() for thread in (self._state, *self._receivers.values()))

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        """Receiver -> ``sent``, ``failed``, ``dropped``, ``waiting``."""
        return {receiver.name: receiver.counts() for receiver in self._receivers.values()}

    def _ours(self, alert: Alert) -> Alert:
        labels = {"node": self._node, **alert.labels}
        return Alert(alert.name, labels, alert.annotations, alert.starts_at, alert.ends_at)

    def _snapshot(self) -> dict[str, Any]:
        return {key: receiver.snapshot() for key, receiver in self._receivers.items()}


def _join(threads: Iterable[threading.Thread], deadline: float) -> None:
    for thread in threads:
        if thread.ident is not None:  # else it was never started
            thread.join(max(0.0, deadline - time.monotonic()))
