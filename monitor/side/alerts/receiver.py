"""One receiver of alerts, an Alertmanager or a webhook: its queue and the thread that delivers.

An alert is sent at once, and again until the receiver acknowledges it: after 0.1 s, doubling to 30 s.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from monitor import __version__
from monitor.kernel.sched import hurry
from monitor.settings.values import ALERTMANAGER_PATH
from monitor.side.alerts import http_post
from monitor.side.alerts.queue import RESOLVED, Change, Outbox
from monitor.side.alerts.rules import Alert, rfc3339
from monitor.side.export.log import Log

#: Pause before the second try, and the longest one, in seconds. Half of each is random, so that a hundred nodes do not
#: try again at the same moment.
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 30.0
#: A new alert is tried at once also while the receiver is failing, but not more often than this.
_EAGER_S = 1.0
#: Alerts in one post to Alertmanager.
_BATCH = 64
#: The longest a thread sleeps: after that it looks whether the clock was set.
_LONGEST_WAIT_S = 60.0
_ANSWER_SHOWN = 200

_USER_AGENT = f"outrace/{__version__}"


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
        if change.status == RESOLVED and alert.ends_at is not None:
            item["endsAt"] = rfc3339(alert.ends_at)
        alerts.append(item)
    return json.dumps(alerts, separators=(",", ":")).encode()


def webhook_body(change: Change, node: str) -> bytes:
    """The object a webhook gets for one change (docs/alerts.md is its specification)."""
    alert = change.alert
    resolved = change.status == RESOLVED and alert.ends_at is not None
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
        "ends_at": rfc3339(alert.ends_at) if resolved and alert.ends_at is not None else None,
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
        self._pause_s = 0.0  # before the next try; 0: the last one went well
        self._tried = -_EAGER_S  # monotonic seconds, like the next two
        self._retry_at = 0.0
        self._repeat_at = 0.0
        self._problem = ""

    # for the threads that raise alerts: memory only

    def fire(self, alert: Alert) -> None:
        with self._changed:
            if not self._outbox.firing:
                self._repeat_at = time.monotonic() + self._resend_s
            if self._outbox.fire(alert):
                self._retry_at = min(self._retry_at, self._tried + _EAGER_S)
            self._changed.notify()

    def end(self, key: str, when: float) -> None:
        with self._changed:
            self._outbox.end(key, when)
            self._changed.notify()

    def active(self) -> list[Alert]:
        with self._changed:
            return self._outbox.active()

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
            if last and not (batch and self._pause_s == 0 and self._outbox.waiting):
                break

    def _batch(self) -> list[Change]:
        """What to send now; nothing while the last failure is too young."""
        now = time.monotonic()
        if self._pause_s and now < self._retry_at:
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
            waits.append(max(self._retry_at if self._pause_s else 0.0, self._repeat_at) - now)
        return max(0.0, min(waits))

    def _send(self, batch: Sequence[Change]) -> None:
        """Post ``batch`` in parts of `_BATCH`, until one fails."""
        for start in range(0, len(batch), _BATCH):
            if not self._post(batch[start : start + _BATCH]):
                return
        if not batch[0].seq:
            self._repeat_at = time.monotonic() + self._resend_s

    def _post(self, changes: Sequence[Change]) -> bool:
        """Whether the receiver acknowledged this part, or refused it for ever; False: it is to be sent again."""
        self._tried = time.monotonic()
        body = webhook_body(changes[0], self._node) if self._webhook else alertmanager_body(changes)
        try:
            answer = http_post.post(self._url, body, _USER_AGENT)
        except http_post.PostError as error:
            return self._failed(str(error))
        if answer.ok:
            self._succeeded(changes)
            return True
        shown = " ".join(answer.text.split())[:_ANSWER_SHOWN]
        problem = f"HTTP {answer.status} {shown}".rstrip()
        if answer.final and len(changes) > 1:
            # The receiver refuses one of them. It may have accepted the others, and accepts them a second time.
            return all(self._post([change]) for change in changes)
        if answer.final:
            self.counters["failed"] += 1
            with self._changed:
                self._outbox.refuse(changes[0])
            self._log.error(
                "an alert was refused and is given up", receiver=self.name, alert=changes[0].alert.name, problem=problem
            )
            return True
        if 300 <= answer.status < 400:
            problem += " (redirects are not followed: configure the address it points to)"
        return self._failed(problem)

    def _succeeded(self, changes: Sequence[Change]) -> None:
        self.counters["sent"] += sum(change.seq > 0 for change in changes)
        with self._changed:
            self._outbox.ack(changes, time.time())
        if self._problem:
            self._log.info("alerts are delivered again", receiver=self.name)
        self._pause_s, self._problem = 0.0, ""

    def _failed(self, problem: str) -> bool:
        self.counters["failed"] += 1
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S) if self._pause_s else _FIRST_PAUSE_S
        pause_s = self._pause_s * random.uniform(0.5, 1.0)
        with self._changed:
            self._retry_at = time.monotonic() + pause_s
        if problem != self._problem:
            self._log.warning("alerts cannot be delivered; trying again", receiver=self.name, problem=problem)
        self._problem = problem
        return False
