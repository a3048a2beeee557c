"""What the API server is to know of pods: the status of those that are evicted, then events.

A kubelet takes a phase from the API server only until it writes its own, at its next relist, about 1 s after the kill
(measured with 1.36: patched at once and again while it was wrong 8 of 8 pods stayed Failed and Evicted, 2 s later 0 of
4, 5 s later 0 of 6). So nothing is patched after `WINDOW_S`, which has room for a slow kubelet: the pod runs again by
then. Events are sent until the server has them, however long it is away. All of it is in memory: a helper that is
killed gets what was not stored of its incidents from the hot process again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from monitor.errors import MonitorError
from monitor.kube.client import EVENTS, PODS, ApiClient
from monitor.kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, KubeError, NotFound, Unauthorized
from monitor.kube.retry import Retry, passes
from monitor.side.export.log import Log
from monitor.side.judge import ACCEPTED_S, Histogram

#: Reports that wait; beyond it the oldest is dropped.
KEEP = 1000
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


@dataclass(slots=True, eq=False)
class Report:
    """What the API server does not know yet of a pod or node: ``patch``, the pod's status, and v1.Events.

    ``in_grace``: the pod got SIGTERM, and its status waits until it has ended. Times are by the clock of `Reports`.
    """

    namespace: str
    name: str
    uid: str
    events: list[dict[str, Any]]
    patch: Mapping[str, Any] | None = None
    in_grace: bool = False
    killed: float = 0.0
    due: float = 0.0  # the next request about the status; of a new one at once
    accepted: bool = False
    still_since: float = 0.0  # since when nothing changed
    version: str = ""
    erased: int = 0
    problem: str = ""

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def has_status(self) -> bool:
        """To be written, or looked at."""
        return self.patch is not None and not self.in_grace


@dataclass(eq=False)
class Reports:
    """`write_statuses` and `send_events` are called from a thread each, so that what may wait does not hold up a
    status: again when ``status_due`` or ``event_due`` is set. ``on_status_not_taken(report, fate, text)`` is called
    from a thread, with one of `FATES`.
    """

    client: ApiClient
    log: Log
    on_status_not_taken: Callable[[Report, str, str], object] = lambda *_: None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        # For the metrics:
        self.fates = dict.fromkeys(FATES, 0)
        self.seconds = Histogram(ACCEPTED_S)
        self.erased = 0  # times a kubelet had written another phase over a status
        self.events_sent = self.events_dropped = 0
        self.status_due, self.event_due = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._reports: list[Report] = []  # oldest first
        self._retry = Retry(self.log, first_s=0.5, clock=self.clock)

    def add(self, report: Report, age_s: float = 0.0) -> None:
        """``age_s``: since the kill. From any thread; never waits."""
        report.killed = self.clock() - age_s
        with self._lock:
            self._reports.append(report)
            if len(self._reports) > KEEP:
                # A status that is still to be written after all events.
                oldest = min(self._reports, key=lambda one: one.patch is not None)
                self.events_dropped += len(oldest.events)
                self._reports.remove(oldest)
        (self.status_due if report.has_status else self.event_due).set()

    def ended(self, uid: str, age_s: float) -> None:
        """The grace of a pod was over ``age_s`` ago: its status is to be written."""
        with self._lock:
            for one in self._reports:
                if one.uid == uid and one.in_grace:
                    one.killed, one.in_grace = self.clock() - age_s, False
        self.status_due.set()

    def _with_events(self) -> list[Report]:
        """Those with events that may be sent. They wait for a status: the API server has the same CPUs as what dies."""

        def waits(one: Report) -> bool:
            return one.has_status and not one.accepted and self.clock() - one.killed < LATE_S

        with self._lock:
            return [one for one in self._reports if one.events and not waits(one)]

    @property
    def waiting(self) -> int:
        return len(self._with_events())

    def _forget(self, report: Report) -> None:
        """The report, if nothing is left of it. Under the lock."""
        if report.patch is None and not report.events and report in self._reports:
            self._reports.remove(report)

    # statuses

    def write_statuses(self) -> float | None:
        """Do what is due; seconds until the next is, None while there is nothing."""
        while True:
            with self._lock:
                found = [one for one in self._reports if one.has_status]
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
        if pod is None or uid_of(pod) != report.uid:
            self._finish(report, GONE)
        else:
            self._judge(report, pod)

    def _patched(self, report: Report) -> Mapping[str, Any]:
        assert report.patch is not None
        about = PODS, report.name, report.patch, report.namespace
        pod = self.client.patch(*about, subresource="status", timeout_s=TIMEOUT_S)
        self._accepted(report)
        return pod

    def _accepted(self, report: Report) -> None:
        if report.accepted:
            return
        report.accepted, took_s = True, self.clock() - report.killed
        self.seconds.observe(took_s)
        about = {"pod": report.title, "uid": report.uid, "seconds": round(took_s, 4)}
        self.log.info("status of an evicted pod written", **about)
        self.event_due.set()

    def _looked(self, report: Report) -> Mapping[str, Any] | None:
        """The pod as it is, its status written (again) where it is wrong; None if it is another one."""
        pod = self.client.get(PODS, report.name, report.namespace, timeout_s=TIMEOUT_S)
        if uid_of(pod) != report.uid:
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
            self.log.warning(text, pod=report.title, problem=str(error))
        report.problem = str(error)
        if not again:
            self._finish(report, REFUSED)
            return
        asked_s = error.retry_after_s if isinstance(error, ApiError) else None
        report.due = self.clock() + max(RETRY_S, asked_s or 0.0)

    def _finish(self, report: Report, fate: str) -> None:
        self.fates[fate] += 1
        level, text = FATES[fate]
        fields: dict[str, Any] = {"pod": report.title, "uid": report.uid, "written_again": report.erased}
        if report.problem and fate in (AWAY, REFUSED):
            fields["problem"] = report.problem
        self.log(level, text, **fields)
        if level != "info":
            self.on_status_not_taken(report, fate, text)
        with self._lock:
            report.patch = None
            self._forget(report)
        self.event_due.set()

    # events

    def send_events(self) -> float | None:
        """Send what waits; seconds until the next try, None while nothing waits."""
        while waiting := self._with_events():
            if (wait_s := self._retry.due - self.clock()) > 0:
                return wait_s
            try:
                self._send(waiting[0], waiting[0].events[0])
            except MonitorError as error:
                self._retry.failed(error, "events wait for the API server", waiting=len(waiting))
                if isinstance(error, Forbidden):  # of one namespace, perhaps: the others' come first
                    with self._lock:
                        self._reports.sort(key=lambda one: one is waiting[0])
        return None

    def _send(self, report: Report, event: dict[str, Any]) -> None:
        namespace = event["metadata"]["namespace"]
        try:
            self.client.create(EVENTS, event, namespace)
            self.events_sent += 1
        except AlreadyExists:
            self.events_sent += 1  # its answer was lost, or a helper before this one sent it
        except ApiError as error:
            # An operator may give a right, and a token is renewed.
            later = isinstance(error, Unauthorized) or (isinstance(error, Forbidden) and error.by_authorizer)
            if later or passes(error) or not 400 <= error.code < 500:
                raise
            # The server will never take it: a quota, an admission webhook, a namespace that is gone.
            self.events_dropped += 1
            text = "an event is refused, and not sent again"
            self.log.error(text, namespace=namespace, pod=report.title, problem=str(error))
        self._retry.works("events are sent again", waiting=self.waiting)
        with self._lock:
            report.events.remove(event)
            self._forget(report)


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
