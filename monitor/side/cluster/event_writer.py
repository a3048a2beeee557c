"""Events in the API server, each once: sent until the server has them, however long it is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from monitor.errors import MonitorError
from monitor.kube.backoff import BackOff
from monitor.kube.client import ApiClient
from monitor.kube.errors import AlreadyExists, ApiError, Cancelled, Conflict, Forbidden, Invalid, NotFound
from monitor.side.cluster.record import KEEP, Record
from monitor.side.cluster.status_writer import AWAY
from monitor.side.export.log import Log

#: On the event of a pod whose status could not be written.
STATUS_NOTE = "outrace.io/status"
_NOTE = "not written: the API server was away when the pod was killed"


class EventWriter:
    """`turn` sends what can be sent. ``on_done(record)``: nothing more is to be sent of it."""

    def __init__(
        self,
        client: ApiClient,
        log: Log,
        on_done: Callable[[Record], object],
        back_off: BackOff | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sent = self.dropped = 0
        self._client = client
        self._log = log
        self._on_done = on_done
        self._back_off = back_off or BackOff(first_s=0.5)
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[str, Record] = {}
        self._due = 0.0
        self._problem = ""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def submit(self, record: Record) -> None:
        """From any thread; never waits. Of more than `KEEP` the oldest is dropped."""
        with self._lock:
            self._waiting[record.id] = record
            too_many = [self._waiting.pop(key) for key in list(self._waiting)[:-KEEP]]
        for one in too_many:
            self.dropped += len(one.events)
            self._on_done(one)

    def note_status_outcome(self, record: Record, fate: str) -> None:
        """What became of its status. It is in the event, if that still waits."""
        if fate != AWAY:
            return
        with self._lock:
            waiting = self._waiting.get(record.id)
            if waiting is not None and waiting.events:
                first = {**waiting.events[0]}
                metadata = first["metadata"]
                notes = {**metadata.get("annotations", {}), STATUS_NOTE: _NOTE}
                first["metadata"] = {**metadata, "annotations": notes}
                self._waiting[record.id] = replace(waiting, events=(first, *waiting.events[1:]))

    def turn(self) -> float | None:
        """Send what waits; seconds until the next try, None while nothing waits."""
        while self._waiting:
            if (wait_s := self._due - self._clock()) > 0:
                return wait_s
            with self._lock:
                record = next(iter(self._waiting.values()))
            try:
                self._send(record)
            except Cancelled:
                raise
            except MonitorError as error:
                self._failed(error)
        return None

    def _send(self, record: Record) -> None:
        event = record.events[0]
        try:
            self._client.create_event(event, event["metadata"]["namespace"])
            self.sent += 1
        except AlreadyExists:
            self.sent += 1  # its answer was lost, or a daemon before this one sent it
        except (NotFound, Invalid, Conflict, Forbidden) as error:
            if isinstance(error, Forbidden) and not error.has_cause("NamespaceTerminating"):
                raise
            self.dropped += 1
            self._log.error(
                "an event is refused; it stays in the state directory", pod=record.title, problem=str(error)
            )
        self._back_off.reset()
        if self._problem:
            self._problem = ""
            self._log.info("events are sent again", waiting=self.waiting)
        with self._lock:
            left = replace(record, events=record.events[1:])
            if left.events:
                self._waiting[record.id] = left
            else:
                self._waiting.pop(record.id, None)
        if not left.events:
            self._on_done(record)

    def _failed(self, error: MonitorError) -> None:
        self._due = self._clock() + self._back_off.next_s(error.retry_after_s if isinstance(error, ApiError) else None)
        if not self._problem:
            self._log.warning("events wait for the API server", waiting=self.waiting, problem=str(error))
        self._problem = str(error)
