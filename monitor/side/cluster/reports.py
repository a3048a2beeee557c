"""What the API server is to know of pods: the status of those that are evicted, then events.

A kubelet takes a phase from the API server only until it writes its own, at its next relist, about 1 s after the kill
(measured with 1.36: patched at once and again while it was wrong 8 of 8 pods stayed Failed and Evicted, 2 s later 0 of
4, 5 s later 0 of 6). So nothing is patched after `WINDOW_S`, which has room for a slow kubelet: the pod runs again by
then. Events are sent until the server has them, however long it is away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from monitor.errors import MonitorError
from monitor.kube.client import EVENTS, PODS, ApiClient
from monitor.kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, KubeError, NotFound, Unauthorized
from monitor.kube.retry import BackOff, Retry, passes
from monitor.side.cluster.record import KEEP, Record, Records
from monitor.side.export.log import Log
from monitor.side.judge import ACCEPTED_S, Histogram
from monitor.side.worker import Worker

#: A status is written, and written again, for so long after the kill.
WINDOW_S = 10.0
#: Between two tries, and between two looks at what the kubelet makes of it: at first, and from `CALM_S` on.
RETRY_S, LOOK_S, CALM_LOOK_S, CALM_S = 0.2, 0.1, 0.5, 3.0
#: The kubelet has taken it when all containers are reported to have ended and nothing changed for so long.
HOLD_S = 3.0
#: One request. A healthy API server answers in 3-40 ms; the next try is better than a long wait.
TIMEOUT_S = 2.0
#: A status that is not accepted by then is late: the kubelet looks at its containers every second (its relist), and
#: runs the pod again.
LATE_S = 1.0
#: A pod left in its grace by an earlier daemon is out of it after so long.
_LONGEST_GRACE_S = 86_400.0

TAKEN, UNCONFIRMED, AWAY, GONE, REFUSED = "taken", "unconfirmed", "away", "gone", "refused"
#: What becomes of a status -> the line of the log and its level.
FATES: Mapping[str, tuple[str, str]] = {
    TAKEN: ("info", "the kubelet has accepted the status of an evicted pod"),
    UNCONFIRMED: (
        "warning",
        "the status of an evicted pod is written; the kubelet has not said how its containers ended",
    ),
    AWAY: (
        "error",
        "the API server took no status of an evicted pod in time: its kubelet runs it again, and its event is sent "
        "when the server is back",
    ),
    GONE: ("info", "an evicted pod was deleted before its kubelet accepted its status"),
    REFUSED: ("error", "the API server refuses the status of an evicted pod"),
}
#: Events for which a right is missing, which an operator may give, are tried again after so long at most.
_RIGHT_S = 60.0
#: Of 4xx those after which the same request may be taken: a token is renewed, a time-out, throttled.
_LATER = (401, 408, 429)


@dataclass(slots=True)
class Report:
    """A record with a status to be written or events to be sent. Times are by the clock of `Reports`."""

    record: Record
    killed: float
    has_status: bool  # that is to be written, or looked at
    due: float = 0.0  # the next request about the status; of a new one at once
    accepted: bool = False
    still_since: float = 0.0  # since when nothing changed
    version: str = ""
    erased: int = 0
    problem: str = ""


@dataclass(eq=False)
class Reports:
    """`write_statuses` and `send_events` are called from a thread each, so that what may wait does not hold up a
    status: again when ``status_due`` or ``event_due`` is set. ``files`` writes what is not over to ``STATE/cluster``,
    one job after the other. ``on_status_not_taken(record, fate, text)`` is called from a thread, with one of `FATES`.
    """

    client: ApiClient
    events_client: ApiClient
    state_dir: Path
    files: Worker
    log: Log
    on_status_not_taken: Callable[[Record, str, str], object] = lambda *_: None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        # For the metrics:
        self.fates = dict.fromkeys(FATES, 0)
        self.seconds = Histogram(ACCEPTED_S)
        self.erased = 0  # times a kubelet had written another phase over a status
        self.events_sent = self.events_dropped = 0
        self.status_due, self.event_due = threading.Event(), threading.Event()
        self._pending = Records(self.state_dir)
        self._lock = threading.RLock()
        self._reports: dict[str, Report] = {}  # by the id of the record, oldest first; `KEEP` at most
        self._retry = Retry(self.log, BackOff(first_s=0.5, clock=self.clock))
        self._paused: dict[str, float] = {}  # namespace -> until when it gets no event: a right is missing
        self._rights = Retry(self.log, BackOff(cap_s=_RIGHT_S, clock=self.clock))  # of all namespaces together

    def load(self) -> None:
        """What the previous daemon left; a status only where that still has a meaning."""
        for record in self._pending.load(
            lambda problem: self.log.warning("a stored eviction cannot be read", problem=problem)
        ):
            age_s = max(0.0, time.time() - record.killed)
            if record.in_grace and age_s < _LONGEST_GRACE_S:
                self.add(record, None, stored=True)
            else:
                has_status = record.patch and age_s < WINDOW_S
                self.add(replace(record, in_grace=False), age_s if has_status else None, stored=True)

    def add(self, record: Record, age_s: float | None, *, stored: bool = False) -> None:
        """``age_s``: since the kill; None where no status is to be written, or not yet. ``stored``: it is in the state
        dir, or need not be. From any thread; never waits.
        """
        made = Report(record, self.clock() - (age_s or 0.0), record.in_grace or age_s is not None)
        with self._lock:
            if record.in_grace and (earlier := self._in_grace(record.uid)) is not None:
                self._leave(earlier, earlier.record.events)  # it gets no status any more
            self._reports[record.id] = made
            self._leave(made, record.events, made.has_status)
            # The oldest, and a status that is still to be written after all events.
            over = max(0, len(self._reports) - KEEP)
            for one in sorted(self._reports.values(), key=lambda one: one.has_status)[:over]:
                self.events_dropped += len(one.record.events)
                self._leave(one, ())
        (self.event_due if age_s is None else self.status_due).set()
        if not stored:  # after the rest: a status cannot wait for a disk
            self.files.submit(partial(self._write, record))

    def ended(self, uid: str, age_s: float) -> None:
        """The grace of a pod was over ``age_s`` ago: its status is to be written."""
        with self._lock:
            if (found := self._in_grace(uid)) is None:
                return
            found.killed = self.clock() - age_s
            found.record = record = replace(found.record, killed=time.time() - age_s, in_grace=False)
        self.status_due.set()
        self.files.submit(partial(self._write, record))

    def _in_grace(self, uid: str) -> Report | None:
        found = (one for one in self._reports.values() if one.has_status and one.record.in_grace)
        return next((one for one in found if one.record.uid == uid), None)

    def _write(self, record: Record) -> None:
        with self._lock:
            is_open = record.id in self._reports
        if is_open:
            self._pending.write(record)

    def _with_events(self) -> list[Report]:
        """Those with events that may be sent. They wait for a status: the API server has the same CPUs as what dies."""

        def waits(one: Report) -> bool:
            is_under_way = one.has_status and not one.record.in_grace and not one.accepted
            return is_under_way and self.clock() - one.killed < LATE_S

        with self._lock:
            return [one for one in self._reports.values() if one.record.events and not waits(one)]

    @property
    def waiting(self) -> int:
        return len(self._with_events())

    def _leave(self, report: Report, events: tuple[Mapping[str, Any], ...], has_status: bool = False) -> None:
        """This is still to be done; where it is nothing, the record is over."""
        report.record, report.has_status = replace(report.record, events=events), has_status
        if not has_status and not events and self._reports.pop(report.record.id, None) is not None:
            self.files.submit(partial(self._pending.remove, report.record.id))

    # statuses

    def write_statuses(self) -> float | None:
        """Do what is due; seconds until the next is, None while there is nothing."""
        while True:
            with self._lock:
                found = [one for one in self._reports.values() if one.has_status and not one.record.in_grace]
            if not found:
                return None
            first = min(found, key=lambda one: one.due)
            if (wait_s := first.due - self.clock()) > 0:
                return wait_s
            self._step(first)

    def _step(self, report: Report) -> None:
        if self.clock() - report.killed > WINDOW_S:
            self._finish(report, UNCONFIRMED if report.accepted else AWAY)
            return
        pod: Mapping[str, Any] | None = None
        try:
            # After an error it is looked at first: it may have been written, or another pod has its name now.
            pod = self._looked(report) if report.accepted or report.problem else self._patched(report)
        except NotFound:
            pass
        except MonitorError as error:
            self._on_error(report, error)
            return
        if pod is None or uid_of(pod) != report.record.uid:
            self._finish(report, GONE)
        else:
            self._judge(report, pod)

    def _patched(self, report: Report) -> Mapping[str, Any]:
        about = PODS, report.record.pod, report.record.patch, report.record.namespace
        pod = self.client.patch(*about, subresource="status", timeout_s=TIMEOUT_S)
        self._accepted(report)
        return pod

    def _accepted(self, report: Report) -> None:
        if report.accepted:
            return
        report.accepted, took_s = True, self.clock() - report.killed
        self.seconds.observe(took_s)
        about = {"pod": report.record.title, "uid": report.record.uid, "seconds": round(took_s, 4)}
        self.log.info("status of an evicted pod written", **about)
        self.event_due.set()

    def _looked(self, report: Report) -> Mapping[str, Any] | None:
        """The pod as it is, its status written (again) where it is wrong; None if it is another one."""
        record = report.record
        pod = self.client.get(PODS, record.pod, record.namespace)
        if uid_of(pod) != record.uid:
            return None
        if _is_evicted(pod):
            self._accepted(report)
            return pod
        if report.accepted:
            report.erased += 1
            self.erased += 1
        return self._patched(report)

    def _judge(self, report: Report, pod: Mapping[str, Any]) -> None:
        """What the kubelet has made of it so far."""
        now = self.clock()
        version = str(pod["metadata"].get("resourceVersion", ""))
        if version != report.version or not _have_ended(pod):
            report.version, report.still_since = version, now
        if now - report.still_since >= HOLD_S:
            self._finish(report, TAKEN)
            return
        report.due = now + (LOOK_S if now - report.killed < CALM_S else CALM_LOOK_S)

    def _on_error(self, report: Report, error: MonitorError) -> None:
        again = not isinstance(error, KubeError) or isinstance(error, Unauthorized | Conflict) or passes(error)
        if again and not report.problem:
            text = "status of an evicted pod not written; trying again"
            self.log.warning(text, pod=report.record.title, problem=str(error))
        report.problem = str(error)
        if not again:
            self._finish(report, REFUSED)
            return
        asked_s = error.retry_after_s if isinstance(error, ApiError) else None
        report.due = self.clock() + max(RETRY_S, asked_s or 0.0)

    def _finish(self, report: Report, fate: str) -> None:
        record = report.record
        self.fates[fate] += 1
        level, text = FATES[fate]
        fields: dict[str, Any] = {"pod": record.title, "uid": record.uid, "written_again": report.erased}
        if report.problem and fate in (AWAY, REFUSED):
            fields["problem"] = report.problem
        self.log(level, text, **fields)
        if level != "info":
            self.on_status_not_taken(record, fate, text)
        with self._lock:
            self._leave(report, report.record.events)
        self.event_due.set()

    # events

    def send_events(self) -> float | None:
        """Send what waits; seconds until the next try, None while nothing waits."""
        while waiting := self._with_events():
            now = self.clock()
            if (wait_s := self._retry.due - now) > 0:
                return wait_s
            self._paused = {namespace: until for namespace, until in self._paused.items() if until > now}
            events = ((one, made) for one in waiting for made in one.record.events)
            found = next(((one, made) for one, made in events if _namespace(made) not in self._paused), None)
            if found is None:
                return min(self._paused.values(), default=now) - now  # another thread may have dropped the last
            try:
                self._send(*found)
            except MonitorError as error:
                self._retry.failed(error, "events wait for the API server", waiting=self.waiting)
        return None

    def _send(self, report: Report, event: Mapping[str, Any]) -> None:
        namespace = _namespace(event)
        try:
            self.events_client.create(EVENTS, event, namespace)
        except AlreadyExists:
            self.events_sent += 1  # its answer was lost, or a daemon before this one sent it
        except ApiError as error:
            if isinstance(error, Forbidden) and error.by_authorizer:
                self._rights.failed(error, "events wait for a right", namespace=namespace)
                self._paused[namespace] = self._rights.due
                return
            if not 400 <= error.code < 500 or error.code in _LATER:
                raise
            # The server will never take it: a quota, an admission webhook, a namespace that is gone.
            self.events_dropped += 1
            text = "an event is refused, and not sent again"
            self.log.error(text, namespace=namespace, pod=report.record.title, problem=str(error))
        else:
            self.events_sent += 1
            if not self._paused:
                self._rights.works("no event waits for a right any more")
        self._retry.works("events are sent again", waiting=self.waiting)
        name = event["metadata"]["name"]
        with self._lock:
            left = tuple([one for one in report.record.events if one["metadata"]["name"] != name])
            self._leave(report, left, report.has_status)


def uid_of(pod: Mapping[str, Any]) -> str:
    metadata = pod.get("metadata")
    return str(metadata.get("uid", "")) if isinstance(metadata, Mapping) else ""


def _is_evicted(pod: Mapping[str, Any]) -> bool:
    status = pod.get("status") or {}
    return status.get("phase") == "Failed" and status.get("reason") == "Evicted"


def _have_ended(pod: Mapping[str, Any]) -> bool:
    """Whether the kubelet reports of every container that it has ended."""
    states = (pod.get("status") or {}).get("containerStatuses") or []
    return bool(states) and all("terminated" in (one.get("state") or {}) for one in states)


def _namespace(event: Mapping[str, Any]) -> str:
    return str(event["metadata"]["namespace"])
