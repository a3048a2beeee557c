"""Alerts that arrive: to Alertmanagers (API v2), each from a thread and a queue of its own.

Raising an alert only puts it into memory: a receiver that hangs or is dead delays neither the caller nor the others.
What waits when this process ends is lost after one more try: the rules of Prometheus make the same alert of the scraped
metrics. An alert is sent at once, and again until the receiver acknowledges it: after 0.1 s, doubling to 30 s.
It is of a moment: Alertmanager resolves it by itself, `HOLD_S` after it got it last.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from urllib.parse import unquote, urlsplit

from monitor.errors import MonitorError
from monitor.kernel.sched import hurry
from monitor.kube.errors import ApiError
from monitor.kube.retry import Retry
from monitor.settings.values import ALERTMANAGER_PATH
from monitor.side.alerts.rules import HOLD_S, Alert, rfc3339
from monitor.side.export.log import Log

#: Seconds for connecting, and for a whole post.
CONNECT_S, TIMEOUT_S = 5.0, 15.0
#: The receiver refuses the content, and will the next time. (404 and the like may be corrected by an operator.)
_REFUSED = (400, 413, 422)
#: Pause before the second try, in seconds; it doubles to 30 s.
_FIRST_PAUSE_S = 0.1
#: Pause after a post, seconds: an incident is judged anew, with the same alerts, up to 6 times a second.
_PACE_S = 0.5
#: Where the page about an alert is, in the source tree.
RUNBOOK = "docs/runbooks/{}.md"
#: Alerts in one post.
_BATCH = 64
#: Alerts that wait for one receiver, at most. One takes about 1 KiB.
MAX_WAITING = 1000


def alertmanager_body(alerts: Iterable[Alert], now: float) -> bytes:
    """The array that ``POST /api/v2/alerts`` takes. ``now``: Unix seconds; they fire for `HOLD_S` seconds more."""
    items = [
        {
            # The rule file sets `source="rule"`: with both, one can inhibit the other.
            "labels": {"alertname": alert.name, "source": "push", **alert.labels},
            "annotations": {**alert.annotations, "runbook_url": RUNBOOK.format(alert.name)},
            "startsAt": rfc3339(alert.starts_at),
            # Later than it starts, which Alertmanager demands, also where a clock was set back.
            "endsAt": rfc3339(max(now, alert.starts_at) + HOLD_S),
        }
        for alert in alerts
    ]
    return json.dumps(items, separators=(",", ":")).encode()


class Receiver(threading.Thread):
    """One Alertmanager: its queue and its thread. ``name`` is what logs and metrics call it."""

    def __init__(self, url: str, log: Log) -> None:
        from monitor.kube.cluster import ClusterConfig, fixed, parse_server
        from monitor.kube.transport import Transport  # 2 MB that only those with receivers need

        parts, server = urlsplit(url), parse_server(url, "--alertmanager", login=True)
        login = "" if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        credentials = fixed(base64.b64encode(login.encode()).decode(), "Basic")
        super().__init__(name=f"alertmanager {server.address}", daemon=True)
        config = ClusterConfig(server, credentials=credentials)
        self._transport = Transport(config, timeout_s=TIMEOUT_S, connect_s=CONNECT_S)
        self._counters: Counter[str] = Counter(sent=0, failed=0, dropped=0)
        self._log = log
        self._waiting: dict[object, Alert] = {}  # by identity: the last of each
        self._changed = threading.Condition()
        self._closing = False
        self._retry = Retry(log, first_s=_FIRST_PAUSE_S)
        self._paced_until = 0.0

    # for the threads that raise alerts: memory only

    def fire(self, alert: Alert) -> None:
        with self._changed:
            self._waiting[alert.identity] = alert
            if len(self._waiting) > MAX_WAITING:
                # Alerts of pods before those of the node: a user makes any number of units.
                del self._waiting[min(self._waiting, key=lambda one: not self._waiting[one].labels.get("pod"))]
                self._counters["dropped"] += 1
            self._changed.notify()

    def counts(self) -> dict[str, int]:
        """Alerts ``sent``, ``dropped`` and ``waiting``; ``failed`` posts."""
        with self._changed:
            return {**self._counters, "waiting": len(self._waiting)}

    def close(self) -> None:
        """Have the thread try once more what waits, and end; `join` waits for that."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    # the thread

    def run(self) -> None:
        hurry()
        while True:
            with self._changed:
                while not self._closing and (not self._waiting or self._pause_s() > 0):
                    self._changed.wait(self._pause_s() if self._waiting else None)
                last, batch = self._closing, list(islice(self._waiting.values(), _BATCH))
            if not (batch and self._post(batch)) and last:
                break

    def _pause_s(self) -> float:
        return max(self._retry.due, self._paced_until) - time.monotonic()

    def _post(self, alerts: Sequence[Alert]) -> bool:
        """Whether the receiver took them, or refused them for ever; False: they are to be sent again."""
        try:
            with self._transport.ask(
                "POST", ALERTMANAGER_PATH, "post alerts", body=alertmanager_body(alerts, time.time())
            ):
                pass
        except MonitorError as error:
            refused = isinstance(error, ApiError) and error.code in _REFUSED
            if refused and len(alerts) > 1:
                # The receiver refuses one of them. It may have accepted the others, and accepts them a second time.
                return all(self._post([alert]) for alert in alerts)
            self._counters["failed"] += 1
            if refused:
                self._retry.reset()
                self._over(alerts, "dropped")
                about = {"receiver": self.name, "alert": alerts[0].name, "problem": str(error)}
                self._log.error("an alert was refused and is given up", **about)
            else:
                if str(error) != self._retry.problem:
                    self._retry.problem = ""  # a line of the log for each reason
                self._retry.failed(error, "alerts cannot be delivered; trying again", receiver=self.name)
            return refused
        self._over(alerts, "sent")
        self._retry.works("alerts are delivered again", receiver=self.name)
        return True

    def _over(self, alerts: Sequence[Alert], what: str) -> None:
        """These wait no more, but for those of which a newer version does."""
        with self._changed:
            self._counters[what] += len(alerts)
            for alert in alerts:
                if self._waiting.get(alert.identity) is alert:
                    del self._waiting[alert.identity]
            self._paced_until = time.monotonic() + _PACE_S if len(self._waiting) < _BATCH else 0.0


class AlertSender:
    """Sends every alert to every receiver. No method but `close` waits for a network.

    ``urls`` are base URLs of Alertmanagers, through `check_url`.
    """

    def __init__(self, urls: Sequence[str], log: Log) -> None:
        self._receivers = [Receiver(url, log) for url in dict.fromkeys(urls)]
        for receiver in self._receivers:
            receiver.start()

    def fire(self, alert: Alert) -> None:
        for receiver in self._receivers:
            receiver.fire(alert)

    def close(self, timeout_s: float) -> bool:
        """One more try for what waits; the rest is lost. False if a thread took longer than that."""
        deadline = time.monotonic() + timeout_s
        for receiver in self._receivers:
            receiver.close()
        for receiver in self._receivers:
            receiver.join(max(0.0, deadline - time.monotonic()))
        return not any(receiver.is_alive() for receiver in self._receivers)

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        """Receiver -> ``sent``, ``failed``, ``dropped``, ``waiting``."""
        return {receiver.name: receiver.counts() for receiver in self._receivers}
