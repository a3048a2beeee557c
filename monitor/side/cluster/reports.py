"""What the API server is to know of pods: the status of those that are evicted, then events.

A kubelet takes a phase from the API server only until it writes its own, at its next relist, about 1 s after the kill
(measured with 1.36: patched at once and again while it was wrong 8 of 8 pods stayed Failed and Evicted, 2 s later 0 of
4, 5 s later 0 of 6). So nothing is patched after `WINDOW_S`, which has room for a slow kubelet: the pod runs again by
then. Events are sent until the server has them or refuses them, however long it is away. All of it is in memory: a
helper that is killed gets what was not stored of its incidents from the hot process again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from monitor.errors import MonitorError
from monitor.kube.client import EVENTS, PODS, ApiClient
from monitor.kube.errors import AlreadyExists, ApiError, Cancelled, Conflict, KubeError, NotFound, Unauthorized
from monitor.kube.retry import passes
from monitor.side.export.log import Log
from monitor.side.judge import ACCEPTED_S, Histogram
from monitor.side.worker import Worker

#: Statuses, and events, that wait; beyond it the oldest is dropped.
KEEP = 1000
#: Between two tries to send an event, seconds.
EVENT_RETRY_S = 5.0
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
    """What the API server does not know yet of a pod: ``patch``, its status, and v1.Events, which wait for that.

    ``in_grace``: the pod got SIGTERM, and its status waits until it has ended, but no event. Times are by the clock of
    `Reports`.
    """

    namespace: str
    name: str
    uid: str
    events: list[dict[str, Any]]
    patch: Mapping[str, Any]
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


@dataclass(eq=False)
class Reports:
    """`write_statuses` is called from a thread of its own: again when ``due`` is set. Events are a `Worker`'s, so that
    what may wait holds up no status. ``on_status_not_taken(report, fate, text)`` is called from a thread, with one of
    `FATES`.
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
        self.events_sent = 0
        self.events = Worker(
            "events", KEEP, retry_s=EVENT_RETRY_S, on_error=self._on_event_error, on_recovered=self._on_events_recovered
        )
        self.due = threading.Event()
        self._lock = threading.Lock()
        self._reports: deque[Report] = deque(maxlen=KEEP)  # oldest first

    def add(self, report: Report, age_s: float = 0.0) -> None:
        """``age_s``: since the kill. From any thread; never waits."""
        report.killed = self.clock() - age_s
        with self._lock:
            self._reports.append(report)
        if report.in_grace:
            self._send_events(report)
        self.due.set()

    def ended(self, uid: str, age_s: float) -> None:
        """The grace of a pod was over ``age_s`` ago: its status is to be written."""
        with self._lock:
            for one in self._reports:
                if one.uid == uid and one.in_grace:
                    one.killed, one.in_grace = self.clock() - age_s, False
        self.due.set()

    # statuses

    def write_statuses(self) -> float | None:
        """Do what is due; seconds until the next is, None while there is nothing."""
        while True:
            with self._lock:
                found = [one for one in self._reports if not one.in_grace]
            if not found:
                return None
            first = min(found, key=lambda one: one.due)
            if (wait_s := first.due - self.clock()) > 0:
                return wait_s
            self._step(first)

    def _step(self, report: Report) -> None:
        age_s = self.clock() - report.killed
        if age_s > LATE_S:
            self._send_events(report)
        if age_s > WINDOW_S:
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
        self._send_events(report)

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
            if report in self._reports:
                self._reports.remove(report)
        self._send_events(report)

    # events

    def _send_events(self, report: Report) -> None:
        """They waited for the status: the API server has the same CPUs as what dies."""
        found, report.events = report.events, []
        self.send(found)

    def send(self, events: Iterable[dict[str, Any]]) -> None:
        """From any thread; never waits."""
        for event in events:
            self.events.submit(partial(self._create, event), final=False)

    def _create(self, event: dict[str, Any]) -> None:
        """Raises OSError where the event is to be sent again, and MonitorError where the server will never take it: a
        right that is missing, a quota, an admission webhook, a namespace that is gone.
        """
        try:
            self.client.create(EVENTS, event, event["metadata"]["namespace"])
        except AlreadyExists:
            pass  # its answer was lost, or a helper before this one sent it
        except (MonitorError, Cancelled) as error:
            is_refusal = isinstance(error, ApiError) and 400 <= error.code < 500 and not passes(error)
            if is_refusal and not isinstance(error, Unauthorized):  # a token is renewed
                raise
            raise OSError(str(error)) from None
        self.events_sent += 1

    def _on_event_error(self, error: Exception) -> None:
        if isinstance(error, OSError):
            self.log.warning("events wait for the API server", problem=str(error), waiting=self.events.waiting)
        else:
            self.log.error("an event is refused, and not sent again", problem=str(error))

    def _on_events_recovered(self) -> None:
        self.log.info("events are sent again", waiting=self.events.waiting)


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
