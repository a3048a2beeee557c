"""Alerts that arrive: to Alertmanagers (API v2), each from a thread and a queue of its own.

Raising an alert only puts it into memory: a receiver that hangs or is dead delays neither the caller nor the others.
What waits when this process ends is lost after one more try: the rules of Prometheus make the same alert of the scraped
metrics. An alert is sent at once, and again until the receiver acknowledges it: after 0.1 s, doubling to 30 s.
It is of a moment: Alertmanager resolves it by itself, `HOLD_S` after it got it last.

A post is bounded in time and in bytes, follows no redirect and uses no proxy. ssl is set up (2 MB) only for https.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from urllib.parse import unquote, urlsplit

from monitor import __version__
from monitor.kernel.sched import hurry
from monitor.kube.retry import BackOff
from monitor.settings.values import ALERTMANAGER_PATH
from monitor.side.alerts.rules import HOLD_S, Alert, rfc3339
from monitor.side.export.log import Log

#: Seconds for connecting, and for every single read or write.
IO_TIMEOUT_S = 5.0
#: Seconds after which a post is cut off, even while the receiver still sends small pieces.
TOTAL_TIMEOUT_S = 15.0
#: Bytes of an answer that are read.
MAX_ANSWER = 16 << 10
#: The receiver refuses the content, and will the next time. (404 and the like may be corrected by an operator.)
_REFUSED = (400, 413, 422)


def address(url: str) -> str:
    """``host:port`` of a checked URL: what may be shown of it, without a password."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class PostError(Exception):
    """No answer: the text says why."""


def post(url: str, body: bytes) -> tuple[int, str]:
    """POST JSON; the status, and the beginning of the answer as text. Raises PostError."""
    parts = urlsplit(url)
    assert parts.hostname
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=IO_TIMEOUT_S)
    cut = threading.Timer(TOTAL_TIMEOUT_S, _cut, (connection,))
    cut.daemon = True
    try:
        connection.connect()
        cut.start()
        headers = {"Content-Type": "application/json", "User-Agent": f"outrace/{__version__}", "Connection": "close"}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        connection.request("POST", parts.path or "/", body, headers)
        answer = connection.getresponse()
        text = answer.read(MAX_ANSWER).decode(errors="replace")
    except (OSError, http.client.HTTPException, ValueError, RuntimeError) as error:
        # ValueError: a host name IDNA cannot encode. RuntimeError: no thread can be started.
        raise PostError(getattr(error, "strerror", None) or str(error) or type(error).__name__) from error
    finally:
        cut.cancel()
        connection.close()
    return answer.status, text


def _cut(connection: http.client.HTTPConnection) -> None:
    sock = connection.sock
    if sock is not None:
        with contextlib.suppress(OSError):  # it was just closed
            sock.shutdown(socket.SHUT_RDWR)


#: Pause before the second try, in seconds; it doubles to 30 s.
_FIRST_PAUSE_S = 0.1
#: Pause after a post, seconds: an incident is judged anew, with the same alerts, up to 6 times a second.
_PACE_S = 0.5
#: Alerts in one post.
_BATCH = 64
#: Alerts that wait for one receiver, at most. One takes about 1 KiB.
MAX_WAITING = 1000
_ANSWER_SHOWN = 200


def alertmanager_body(alerts: Iterable[Alert], now: float) -> bytes:
    """The array that ``POST /api/v2/alerts`` takes. ``now``: Unix seconds; they fire for `HOLD_S` seconds more."""
    items = [
        {
            # The rule file sets `source="rule"`: with both, one can inhibit the other.
            "labels": {"alertname": alert.name, "source": "push", **alert.labels},
            "annotations": dict(alert.annotations),
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
        super().__init__(name=f"alertmanager {address(url)}", daemon=True)
        self._counters: Counter[str] = Counter(sent=0, failed=0, dropped=0)
        self._url = url + ALERTMANAGER_PATH
        self._log = log
        self._waiting: dict[object, Alert] = {}  # by identity: the last of each
        self._changed = threading.Condition()
        self._closing = False
        self._backoff = BackOff(_FIRST_PAUSE_S)
        self._next_at = 0.0  # when to post next, monotonic seconds
        self._problem = ""  # of the last try; "": it went well

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
                while not self._closing and (not self._waiting or time.monotonic() < self._next_at):
                    self._changed.wait(self._next_at - time.monotonic() if self._waiting else None)
                last, batch = self._closing, list(islice(self._waiting.values(), _BATCH))
            if not (batch and self._post(batch)) and last:
                break

    def _post(self, alerts: Sequence[Alert]) -> bool:
        """Whether the receiver took them, or refused them for ever; False: they are to be sent again."""
        try:
            status, text = post(self._url, alertmanager_body(alerts, time.time()))
        except PostError as error:
            return self._failed(str(error))
        if 200 <= status < 300:
            self._over(alerts, "sent")
            if self._problem:
                self._log.info("alerts are delivered again", receiver=self.name)
            self._backoff.reset()
            self._problem = ""
            return True
        shown = " ".join(text.split())[:_ANSWER_SHOWN]
        problem = f"HTTP {status} {shown}".rstrip()
        if status in _REFUSED and len(alerts) > 1:
            # The receiver refuses one of them. It may have accepted the others, and accepts them a second time.
            return all(self._post([alert]) for alert in alerts)
        if status in _REFUSED:
            self._counters["failed"] += 1
            self._over(alerts, "dropped")
            about = {"receiver": self.name, "alert": alerts[0].name, "problem": problem}
            self._log.error("an alert was refused and is given up", **about)
            return True
        if 300 <= status < 400:
            problem += " (redirects are not followed: configure the address it points to)"
        return self._failed(problem)

    def _over(self, alerts: Sequence[Alert], what: str) -> None:
        """These wait no more, but for those of which a newer version does."""
        with self._changed:
            self._counters[what] += len(alerts)
            for alert in alerts:
                if self._waiting.get(alert.identity) is alert:
                    del self._waiting[alert.identity]
            self._next_at = time.monotonic() + _PACE_S if len(self._waiting) < _BATCH else 0.0

    def _failed(self, problem: str) -> bool:
        self._counters["failed"] += 1
        self._next_at = time.monotonic() + self._backoff.next_s()
        if problem != self._problem:
            self._log.warning("alerts cannot be delivered; trying again", receiver=self.name, problem=problem)
        self._problem = problem
        return False


#: Where the page about an alert is, in the source tree.
RUNBOOK = "docs/runbooks/{}.md"


class AlertSender:
    """Sends every alert to every receiver. No method but `close` waits for a network.

    ``urls`` are base URLs of Alertmanagers, through `check_url`.
    """

    def __init__(self, urls: Sequence[str], log: Log) -> None:
        self._receivers = [Receiver(url, log) for url in dict.fromkeys(urls)]
        for receiver in self._receivers:
            receiver.start()

    def fire(self, alert: Alert) -> None:
        alert = replace(alert, annotations={**alert.annotations, "runbook_url": RUNBOOK.format(alert.name)})
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
