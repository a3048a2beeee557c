"""Alerts that arrive: to Alertmanagers (API v2) and webhooks, each from a thread and a queue of its own.

Raising an alert only puts it into memory: a receiver that hangs or is dead delays neither the caller nor the others.
What waits when this process ends is lost after one more try: the rules of Prometheus make the same alert of the scraped
metrics. An alert is sent at once, and again until the receiver acknowledges it: after 0.1 s, doubling to 30 s.

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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any
from urllib.parse import unquote, urlsplit

from monitor import __version__
from monitor.kernel.sched import hurry
from monitor.kube.retry import BackOff
from monitor.settings.values import ALERTMANAGER_PATH
from monitor.side.alerts.queue import Change, Outbox
from monitor.side.alerts.rules import Alert, rfc3339
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
    """``host:port`` of a checked URL: what may be shown of it. A path or query may hold a secret."""
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
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", target, body, headers)
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
#: Alerts in one post to Alertmanager.
_BATCH = 64
#: The longest a thread sleeps: after that it looks whether the clock was set.
_LONGEST_WAIT_S = 60.0
_ANSWER_SHOWN = 200


def alertmanager_body(changes: Sequence[Change]) -> bytes:
    """The array that ``POST /api/v2/alerts`` takes.

    What is firing has no ``endsAt``: Alertmanager then counts its ``resolve_timeout`` by its own clock, which need not
    agree with ours.
    """
    alerts = []
    for change in changes:
        alert = change.alert
        item: dict[str, Any] = {
            # The rule file sets `source="rule"`: with both, one can inhibit the other.
            "labels": {"alertname": alert.name, "source": "push", **alert.labels},
            "annotations": dict(alert.annotations),
            "startsAt": rfc3339(alert.starts_at),
        }
        if change.ends_at is not None:
            item["endsAt"] = rfc3339(change.ends_at)
        alerts.append(item)
    return json.dumps(alerts, separators=(",", ":")).encode()


def webhook_body(change: Change, node: str) -> bytes:
    """The object a webhook gets for one change (docs/alerts.md is its specification)."""
    alert = change.alert
    message = {
        "version": 1,
        "id": change.id,
        "status": change.status,
        "fingerprint": alert.fingerprint,
        "name": alert.name,
        "node": node,
        "labels": dict(alert.labels),
        "annotations": dict(alert.annotations),
        "starts_at": rfc3339(alert.starts_at),
        "ends_at": None if change.ends_at is None else rfc3339(change.ends_at),
    }
    return json.dumps(message, separators=(",", ":")).encode()


class Receiver(threading.Thread):
    """One receiver: its queue and its thread. ``name`` is what logs and metrics call it."""

    def __init__(self, name: str, url: str, webhook: bool, log: Log, node: str, resend_s: float) -> None:
        super().__init__(name=name, daemon=True)
        self.counters: Counter[str] = Counter(sent=0, failed=0)
        self._url = url if webhook else url + ALERTMANAGER_PATH
        self._webhook = webhook
        self._log = log
        self._node = node
        self._resend_s = resend_s
        self._outbox = Outbox(webhook)
        self._changed = threading.Condition()
        self._closing = False
        self._backoff = BackOff(_FIRST_PAUSE_S)
        self._retry_at = self._repeat_at = 0.0  # monotonic seconds
        self._problem = ""  # of the last try; "": it went well

    # for the threads that raise alerts: memory only

    def fire(self, alert: Alert) -> None:
        with self._changed:
            if not self._outbox.firing:
                self._repeat_at = time.monotonic() + self._resend_s
            self._outbox.fire(alert)
            self._changed.notify()

    def end_others(self, keys: Collection[str], when: float) -> None:
        with self._changed:
            if self._outbox.end_others(keys, when):  # each second: else its thread would wake for nothing
                self._changed.notify()

    def counts(self) -> dict[str, int]:
        """``sent`` and ``dropped`` changes, ``failed`` posts, changes ``waiting``."""
        with self._changed:
            return {**self.counters, "dropped": self._outbox.dropped, "waiting": self._outbox.waiting}

    def close(self) -> None:
        """Have the thread try once more what waits, and end; `join` waits for that."""
        with self._changed:
            self._closing = True
            self._retry_at = 0.0
            self._changed.notify()

    # the thread

    def run(self) -> None:
        hurry()
        while True:
            with self._changed:
                due = self._outbox.tick(time.time())
                last = self._closing
                batch = self._batch()
                if not (batch or last):
                    self._changed.wait(self._idle_s(due))
                    continue
            if batch:
                self._send(batch)
            if last and not (batch and not self._problem and self._outbox.waiting):
                break

    def _batch(self) -> list[Change]:
        """What to send now; nothing while the last failure is too young."""
        now = time.monotonic()
        if now < self._retry_at:
            return []
        batch = self._outbox.batch(_BATCH)
        if not batch and not self._webhook and now >= self._repeat_at and not self._closing:
            batch = self._outbox.repeats()
        return batch

    def _idle_s(self, due: float | None) -> float:
        """How long nothing will be to do."""
        waits = [_LONGEST_WAIT_S]
        if due is not None:
            waits.append(due - time.time())
        now = time.monotonic()
        if self._outbox.waiting:
            waits.append(self._retry_at - now)
        elif not self._webhook and self._outbox.firing:
            waits.append(max(self._retry_at, self._repeat_at) - now)
        return max(0.0, min(waits))

    def _send(self, batch: Sequence[Change]) -> None:
        """Post ``batch`` in parts of `_BATCH`, until one fails."""
        for start in range(0, len(batch), _BATCH):
            if not self._post(batch[start : start + _BATCH]):
                return
        if batch[0].key is None:
            self._repeat_at = time.monotonic() + self._resend_s

    def _post(self, changes: Sequence[Change]) -> bool:
        """Whether the receiver acknowledged this part, or refused it for ever; False: it is to be sent again."""
        body = webhook_body(changes[0], self._node) if self._webhook else alertmanager_body(changes)
        try:
            status, text = post(self._url, body)
        except PostError as error:
            return self._failed(str(error))
        if 200 <= status < 300:
            self._succeeded(changes)
            return True
        shown = " ".join(text.split())[:_ANSWER_SHOWN]
        problem = f"HTTP {status} {shown}".rstrip()
        if status in _REFUSED and len(changes) > 1:
            # The receiver refuses one of them. It may have accepted the others, and accepts them a second time.
            return all(self._post([change]) for change in changes)
        if status in _REFUSED:
            self.counters["failed"] += 1
            with self._changed:
                self._outbox.refuse(changes[0])
            self._log.error(
                "an alert was refused and is given up", receiver=self.name, alert=changes[0].alert.name, problem=problem
            )
            return True
        if 300 <= status < 400:
            problem += " (redirects are not followed: configure the address it points to)"
        return self._failed(problem)

    def _succeeded(self, changes: Sequence[Change]) -> None:
        self.counters["sent"] += sum(change.key is not None for change in changes)
        with self._changed:
            self._outbox.ack(changes, time.time())
        if self._problem:
            self._log.info("alerts are delivered again", receiver=self.name)
        self._backoff.reset()
        self._retry_at, self._problem = 0.0, ""

    def _failed(self, problem: str) -> bool:
        self.counters["failed"] += 1
        with self._changed:
            self._retry_at = time.monotonic() + self._backoff.next_s()
        if problem != self._problem:
            self._log.warning("alerts cannot be delivered; trying again", receiver=self.name, problem=problem)
        self._problem = problem
        return False


#: Seconds after which Alertmanager gets again what is firing; it forgets after its resolve_timeout (5 min).
RESEND_S = 60.0
#: Where the pages about alerts are, in the source tree.
RUNBOOKS = "docs/runbooks"
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
        self._log, self._node, self._resend_s, self._runbooks = log, node, resend_s, runbooks or RUNBOOKS
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
                base = name = f"{kind} {address(url)}"
                for number in count(2):  # two webhooks on one host; their paths may be secret
                    if name not in taken:
                        break
                    name = f"{base} #{number}"
                taken.add(name)
                made[key] = Receiver(name, url, kind == "webhook", self._log, self._node, self._resend_s)
                made[key].start()
        return made

    def take_receivers(self, alertmanagers: Sequence[str], webhooks: Sequence[str]) -> None:
        """Send to these from now on. A receiver that stays keeps its queue; one that is removed tries once more. A new
        one gets the alerts that last with the next `update`.
        """
        before, self._receivers = self._receivers, self._made(alertmanagers, webhooks)
        for key, receiver in before.items():
            if key not in self._receivers:
                receiver.close()

    def fire(self, alert: Alert) -> None:
        """Raise an alert. With ``ends_at`` it is resolved by itself then; without, by `update`."""
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
            receiver.end_others(keep, when + settle_s)

    def close(self, timeout_s: float) -> bool:
        """One more try for what waits; the rest is lost. False if a thread took longer than that."""
        deadline = time.monotonic() + timeout_s
        for receiver in self._receivers.values():
            receiver.close()
        for receiver in self._receivers.values():
            receiver.join(max(0.0, deadline - time.monotonic()))
        return not any(receiver.is_alive() for receiver in self._receivers.values())

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        """Receiver -> ``sent``, ``failed``, ``dropped``, ``waiting``."""
        return {receiver.name: receiver.counts() for receiver in self._receivers.values()}
