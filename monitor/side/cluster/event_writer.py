"""Events in the API server, each once: sent until the server has them, however long it is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from monitor.errors import MonitorError
from monitor.kube.backoff import BackOff
from monitor.kube.client import ApiClient
from monitor.kube.errors import AlreadyExists, ApiError, Forbidden
from monitor.kube.resources import EVENTS
from monitor.side.cluster.record import KEEP, Record
from monitor.side.cluster.status_writer import AWAY
from monitor.side.export.log import Log

#: On the event of a pod whose status could not be written.
STATUS_NOTE = "outrace.io/status"
#: Of 4xx those after which the same request may be taken: a token is renewed, a time-out, throttled.
_LATER = (401, 408, 429)
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
        rights_back_off: BackOff | None = None,
    ) -> None:
        self.sent = self.dropped = 0
        self._client = client
        self._log = log
        self._on_done = on_done
        self._back_off = back_off or BackOff(first_s=0.5)
        self._rights_back_off = rights_back_off or BackOff(first_s=0.5)
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[str, Record] = {}
        self._due = 0.0
        self._problem = ""
        self._held: set[str] = set()  # namespaces that are not asked until `_held_until`
        self._held_until = 0.0
        self._denied: set[str] = set()  # those without the right, the last time
        self._refusing: set[str] = set()  # those whose refusal is in the log

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
        """What became of its status. It is in the pod's event, if that still waits."""
        if fate != AWAY:
            return
        with self._lock:
            waiting = self._waiting.get(record.id)
            if waiting is not None:
                self._waiting[record.id] = replace(waiting, events=tuple([_noted(one) for one in waiting.events]))

    def turn(self) -> float | None:
        """Send what waits; seconds until the next try, None while nothing waits."""
        while self._waiting:
            now = self._clock()
            if (wait_s := self._due - now) > 0:
                return wait_s
            if self._held and now >= self._held_until:
                self._held.clear()
            if (found := self._next()) is None:
                return max(0.0, self._held_until - now)
            try:
                self._send(*found)
            except MonitorError as error:
                self._failed(error)
        return None

    def _next(self) -> tuple[Record, Mapping[str, Any]] | None:
        """The oldest event of a namespace that is not held."""
        with self._lock:
            waiting = list(self._waiting.values())
        return next(((one, made) for one in waiting for made in one.events if _namespace(made) not in self._held), None)

    def _send(self, record: Record, event: Mapping[str, Any]) -> None:
        namespace = _namespace(event)
        try:
            self._client.create(EVENTS, event, namespace)
            self.sent += 1
            self._refusing.discard(namespace)
        except AlreadyExists:
            self.sent += 1  # its answer was lost, or a daemon before this one sent it
        except Forbidden as error:
            if error.by_authorizer:
                self._hold(namespace, error)
                return
            self._drop(record, namespace, error)
        except ApiError as error:
            if not 400 <= error.code < 500 or error.code in _LATER:
                raise
            self._drop(record, namespace, error)
        self._back_off.reset()
        if self._problem:
            self._problem = ""
            self._log.info("events are sent again", waiting=self.waiting)
        if namespace in self._denied:
            self._denied.discard(namespace)
            self._rights_back_off.reset()
            self._log.info("events are sent again", namespace=namespace, waiting=self.waiting)
        self._take_out(record, event)

    def _take_out(self, record: Record, event: Mapping[str, Any]) -> None:
        name = event["metadata"]["name"]
        with self._lock:
            now = self._waiting.get(record.id)
            if now is None:
                return  # one of too many, and over
            left = replace(now, events=tuple(one for one in now.events if one["metadata"]["name"] != name))
            if left.events:
                self._waiting[record.id] = left
            else:
                del self._waiting[record.id]
        if not left.events:
            self._on_done(record)

    def _drop(self, record: Record, namespace: str, error: ApiError) -> None:
        """The server will never take it: a quota, an admission webhook, a namespace that is gone."""
        self.dropped += 1
        if namespace in self._refusing:
            return
        if len(self._refusing) >= KEEP:
            self._refusing.clear()
        self._refusing.add(namespace)
        self._log.error("an event is refused; it stays in the state directory", pod=record.title, problem=str(error))

    def _hold(self, namespace: str, error: Forbidden) -> None:
        """A right is missing, which somebody may give: the events of this namespace wait, those of others go first."""
        if not self._held:
            self._held_until = self._clock() + self._rights_back_off.next_s(error.retry_after_s)
        self._held.add(namespace)
        if not self._denied:
            self._log.warning("events wait for a right", namespace=namespace, waiting=self.waiting, problem=str(error))
        if len(self._denied) < KEEP:
            self._denied.add(namespace)

    def _failed(self, error: MonitorError) -> None:
        self._due = self._clock() + self._back_off.next_s(error.retry_after_s if isinstance(error, ApiError) else None)
        if not self._problem:
            self._log.warning("events wait for the API server", waiting=self.waiting, problem=str(error))
        self._problem = str(error)


def _namespace(event: Mapping[str, Any]) -> str:
    return str(event["metadata"]["namespace"])


def _noted(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """With a note that the status was not written, if it is the event on the pod."""
    if event["involvedObject"]["kind"] != "Pod":
        return event
    metadata = event["metadata"]
    notes = {**metadata.get("annotations", {}), STATUS_NOTE: _NOTE}
    return {**event, "metadata": {**metadata, "annotations": notes}}
