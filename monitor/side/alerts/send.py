"""Alerts that arrive: to Alertmanagers (API v2) and webhooks, each from a thread and a queue of its own.

Whoever raises an alert only puts it into memory: a receiver that hangs or is dead holds up neither him nor the others.
What is not delivered is in one file of the state dir, so that it survives this process. A thread of its own writes the
whole of it to a new file, flushes that and renames it over the old one: a kill or a power cut at any moment leaves the
one or the other. Changes are gathered for `BATCH_S`, so a storm of alerts costs two writes a second, and nobody who
sends waits for a disk: under memory pressure a flush can take seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from monitor.kernel.durable import replace_file
from monitor.kernel.sched import hurry
from monitor.side.alerts import http_post
from monitor.side.alerts.receiver import Receiver
from monitor.side.alerts.rules import Alert
from monitor.side.export.log import Log

FILE_NAME = "alerts.json"
#: Pause between two writes, in seconds. The first change after a pause is written at once.
BATCH_S = 0.5
#: A file longer than this was not written by us. A full outbox is about 2 MiB.
MAX_BYTES = 64 << 20
_VERSION = 1


class StateFile(threading.Thread):
    """``snapshot`` gives what is to be written: an object for each receiver. `changed` may be called by any thread."""

    def __init__(self, path: Path, snapshot: Callable[[], Mapping[str, Any]], log: Log) -> None:
        super().__init__(name="alerts state", daemon=True)
        self._path = path
        self._snapshot = snapshot
        self._log = log
        self._wake = threading.Condition()
        self._dirty = False
        self._ended = False
        self._problem: int | None = None  # errno of the last write, while it fails

    def load(self) -> dict[str, Any]:
        """What was written last; nothing, and a line in the log, if it cannot be read."""
        try:
            with open(os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
                found = json.loads(file.read(MAX_BYTES))
            if found["version"] != _VERSION:
                raise ValueError(f"version {found['version']!r}, this outrace knows {_VERSION}")
            return dict(found["receivers"])
        except FileNotFoundError:
            return {}
        except (OSError, LookupError, TypeError, ValueError, RecursionError) as error:
            problem = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            self._log.error("alerts from before the restart cannot be read", path=str(self._path), problem=problem)
            return {}

    def changed(self) -> None:
        with self._wake:
            self._dirty = True
            self._wake.notify()

    def close(self) -> None:
        """Write what has changed, and end."""
        with self._wake:
            self._ended = True
            self._wake.notify()

    def run(self) -> None:
        hurry()
        ended = False
        while not ended:
            with self._wake:
                self._wake.wait_for(lambda: self._dirty or self._ended)
                ended, dirty, self._dirty = self._ended, self._dirty, False
            written = not dirty or self._write()
            with self._wake:
                self._dirty |= not written
                self._wake.wait_for(lambda: self._ended, BATCH_S)

    def _write(self) -> bool:
        data = json.dumps({"version": _VERSION, "receivers": self._snapshot()}, separators=(",", ":")).encode()
        try:
            replace_file(self._path, data)
        except OSError as error:
            if error.errno != self._problem:
                self._log.error(
                    "alerts that wait would not survive a restart: their state cannot be written",
                    path=str(self._path),
                    problem=error.strerror,
                )
            self._problem = error.errno
            return False
        self._problem = None
        return True


#: Seconds after which Alertmanager gets again what is firing; it forgets after its resolve_timeout (5 min).
RESEND_S = 60.0
#: An alert that is in no `AlertSender.update` any more is over after this many seconds, if it does not come back.
SETTLE_S = 5.0


class AlertSender:
    """Sends every alert to every receiver. No method but `close` waits for a network or a disk.

    ``alertmanagers`` are base URLs and ``webhooks`` URLs, both through `check_url`; ``node`` is for the body of
    webhooks. The constructor reads from ``state_dir`` what waited when the last process ended.
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
        self._log, self._node, self._resend_s = log, node, resend_s
        self._receivers: Mapping[str, Receiver] = {}  # by their keys in the state file; replaced as a whole
        self._state = StateFile(state_dir / FILE_NAME, self._snapshot, log)
        saved = self._state.load()
        self._receivers = self._made(alertmanagers, webhooks, saved)
        if saved:
            log.warning("alerts for receivers that are configured no more are dropped", receivers=len(saved))
            self._state.changed()

    def _made(
        self, alertmanagers: Sequence[str], webhooks: Sequence[str], saved: dict[str, Any]
    ) -> dict[str, Receiver]:
        """A receiver for each URL: the one there is, else a new one, with what of ``saved`` (taken out) is its own."""
        made: dict[str, Receiver] = {}
        taken = {receiver.name for receiver in self._receivers.values()}
        for kind, urls in (("alertmanager", alertmanagers), ("webhook", webhooks)):
            for url in dict.fromkeys(urls):
                key = hashlib.sha256(f"{kind} {url}".encode()).hexdigest()[:12]  # a URL may be secret
                if (known := self._receivers.get(key)) is not None:
                    made[key] = known
                    continue
                base = name = f"{kind} {http_post.address(url)}"
                for number in count(2):  # two webhooks on one host; their paths may be secret
                    if name not in taken:
                        break
                    name = f"{base} #{number}"
                taken.add(name)
                made[key] = Receiver(
                    name,
                    url,
                    kind == "webhook",
                    self._log,
                    self._node,
                    self._resend_s,
                    saved.pop(key, None),
                    self._state.changed,
                )
        return made

    def take_receivers(self, alertmanagers: Sequence[str], webhooks: Sequence[str]) -> None:
        """Send to these from now on. What waits for one that stays is sent; one that is gone gets one more try. A new
        one gets what lasts with the next `update`.
        """
        before = self._receivers
        self._receivers = self._made(alertmanagers, webhooks, {})
        for key, receiver in self._receivers.items():
            if key not in before:
                receiver.start()
        for key, receiver in before.items():
            if key not in self._receivers:
                receiver.close()
        self._state.changed()

    def fire(self, alert: Alert) -> None:
        """Raise an alert. With ``ends_at`` it is resolved by itself then; without, by `update`."""
        for receiver in self._receivers.values():
            receiver.fire(alert)

    def update(self, current: Sequence[Alert], when: float, settle_s: float = SETTLE_S) -> None:
        """Raise all of ``current``, and end what lasts and is not in it, also from before a restart.

        Its end is ``settle_s`` seconds after ``when``, and is taken back if the alert is in a later call until then: a
        value that trembles around its limit is one alert.
        """
        keep = {alert.fingerprint for alert in current}
        for receiver in self._receivers.values():
            for alert in current:
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

    def _snapshot(self) -> dict[str, Any]:
        return {key: receiver.snapshot() for key, receiver in self._receivers.items()}


def _join(threads: Iterable[threading.Thread], deadline: float) -> None:
    for thread in threads:
        if thread.ident is not None:  # else it was never started
            thread.join(max(0.0, deadline - time.monotonic()))
