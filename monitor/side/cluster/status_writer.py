"""The status of evicted pods in the API server: patched at once, and again while it is not what it has to be.

A kubelet takes a phase from the API server only until it writes its own, at its next relist, about 1 s after the kill
(measured with 1.36: patched at once and again while it was wrong 8 of 8 pods stayed Failed and Evicted, 2 s later 0 of
4, 5 s later 0 of 6). So nothing is patched after `WINDOW_S`: the pod runs again by then.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from monitor.errors import MonitorError
from monitor.kube.client import ApiClient
from monitor.kube.errors import ApiError, Conflict, KubeError, NotFound, Unauthorized
from monitor.kube.resources import PODS
from monitor.kube.retry import passes
from monitor.side.cluster.record import Record
from monitor.side.export.log import Log
from monitor.side.judge import ACCEPTED_S, Histogram

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
#: Evictions under way at a time. There is one in a pass of the policy.
_MOST = 256

TAKEN, UNCONFIRMED, AWAY, GONE, REFUSED = "taken", "unconfirmed", "away", "gone", "refused"
#: What becomes of a status -> the line of the log and its level.
FATES: Mapping[str, tuple[str, str]] = {
    TAKEN: ("info", "the kubelet has taken the status of an evicted pod"),
    UNCONFIRMED: (
        "warning",
        "the status of an evicted pod is written; the kubelet has not said how its containers ended",
    ),
    AWAY: (
        "error",
        "the API server took no status of an evicted pod in time: its kubelet runs it again, and its event is sent "
        "when the server is back",
    ),
    GONE: ("info", "an evicted pod was deleted before its kubelet had taken its status"),
    REFUSED: ("error", "the API server refuses the status of an evicted pod"),
}


@dataclass
class StatusTally:
    """For the metrics."""

    fates: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FATES, 0))
    seconds: Histogram = field(default_factory=lambda: Histogram(ACCEPTED_S))
    sent: Histogram = field(default_factory=lambda: Histogram(ACCEPTED_S))  # of that, until the request was on its way
    erased: int = 0  # times a kubelet had written another phase over it


@dataclass(slots=True)
class _Attempt:
    record: Record
    killed: float  # as all times here, by the clock of the writer
    due: float
    sent_s: float | None = None  # after the kill
    accepted: bool = False
    still_since: float = 0.0  # since when nothing changed
    version: str = ""
    erased: int = 0
    problem: str = ""


class StatusWriter:
    """`turn` does what is due, again when ``woken`` is set. There ``on_settled(record)`` is called, once or more often,
    when the server has taken the status or is late with it, and ``on_done(record, fate)`` in the end.
    """

    def __init__(
        self,
        client: ApiClient,
        log: Log,
        on_done: Callable[[Record, str], object],
        clock: Callable[[], float] = time.monotonic,
        on_settled: Callable[[Record], object] = lambda _: None,
    ) -> None:
        self.tally = StatusTally()
        self._on_settled = on_settled
        self._client = client
        self._log = log
        self._on_done = on_done
        self._clock = clock
        self._new: deque[_Attempt] = deque()
        self._attempts: list[_Attempt] = []
        self.woken = threading.Event()

    def submit(self, record: Record, age_s: float) -> None:
        """Write the status of a pod that was killed ``age_s`` seconds ago. From any thread; never waits."""
        now = self._clock()
        self._new.append(_Attempt(record, now - age_s, now))
        self.woken.set()

    def turn(self) -> float | None:
        """Do what is due; seconds until the next is, None while there is nothing."""
        self._take_new()
        for attempt in sorted(self._attempts, key=lambda one: one.due):
            if attempt.due <= self._clock():
                self._step(attempt)
                if self._new:  # a kill of now is more urgent than a look at an older one
                    return 0.0
        return max(0.0, min(one.due for one in self._attempts) - self._clock()) if self._attempts else None

    def _take_new(self) -> None:
        while self._new:
            attempt = self._new.popleft()
            self._attempts.append(attempt)
            self._step(attempt)
        while len(self._attempts) > _MOST:
            self._finish(self._attempts[0], UNCONFIRMED if self._attempts[0].accepted else AWAY)

    def _step(self, attempt: _Attempt) -> None:
        now = self._clock()
        if now - attempt.killed > WINDOW_S:
            self._finish(attempt, UNCONFIRMED if attempt.accepted else AWAY)
            return
        record = attempt.record
        try:
            pod = self._patched(attempt) if not attempt.accepted else self._looked(attempt)
        except NotFound:
            self._finish(attempt, GONE)
        except Conflict as error:
            self._on_conflict(attempt, error)
        except MonitorError as error:
            self._on_error(attempt, error)
        else:
            if pod is None or _uid(pod) != record.uid:
                self._finish(attempt, GONE)
            else:
                self._judge(attempt, pod)

    def _patched(self, attempt: _Attempt) -> Mapping[str, Any]:
        record = attempt.record

        def sent() -> None:
            if attempt.sent_s is None:
                attempt.sent_s = self._clock() - attempt.killed
                self.tally.sent.observe(attempt.sent_s)

        about = PODS, record.pod, record.patch, record.namespace
        pod = self._client.patch(*about, subresource="status", timeout_s=TIMEOUT_S, on_sent=sent)
        if not attempt.accepted:
            attempt.accepted = True
            took_s = self._clock() - attempt.killed
            self.tally.seconds.observe(took_s)
            times = {"seconds": round(took_s, 4), "sent_seconds": round(attempt.sent_s or 0.0, 4)}
            self._log.info("status of an evicted pod written", pod=record.title, uid=record.uid, **times)
            self._on_settled(record)
        return pod

    def _looked(self, attempt: _Attempt) -> Mapping[str, Any] | None:
        """The pod as it is, its status written again where it is wrong; None if it is another one."""
        record = attempt.record
        pod = self._client.get(PODS, record.pod, record.namespace)
        if _uid(pod) != record.uid:
            return None
        if _is_evicted(pod):
            return pod
        attempt.erased += 1
        self.tally.erased += 1
        return self._patched(attempt)

    def _judge(self, attempt: _Attempt, pod: Mapping[str, Any]) -> None:
        """What the kubelet has made of it so far."""
        now = self._clock()
        version = str(pod["metadata"].get("resourceVersion", ""))
        if version != attempt.version or not _have_ended(pod):
            attempt.version, attempt.still_since = version, now
        if now - attempt.still_since >= HOLD_S:
            self._finish(attempt, TAKEN)
            return
        attempt.due = now + (LOOK_S if now - attempt.killed < CALM_S else CALM_LOOK_S)

    def _on_conflict(self, attempt: _Attempt, error: Conflict) -> None:
        """Another pod has its name now, or the API server gave up among other writers: that can be tried again."""
        record = attempt.record
        try:
            same = _uid(self._client.get(PODS, record.pod, record.namespace)) == record.uid
        except NotFound:
            same = False
        except MonitorError as other:
            self._on_error(attempt, other)
            return
        if same:
            self._on_error(attempt, error)
        else:
            self._finish(attempt, GONE)

    def _on_error(self, attempt: _Attempt, error: MonitorError) -> None:
        again = not isinstance(error, KubeError) or isinstance(error, Unauthorized | Conflict) or passes(error)
        if not again:
            attempt.problem = str(error)
            self._finish(attempt, REFUSED)
            return
        if not attempt.problem:
            problem = str(error)
            self._log.warning(
                "status of an evicted pod not written; trying again", pod=attempt.record.title, problem=problem
            )
        attempt.problem = str(error)
        if not attempt.accepted and self._clock() - attempt.killed >= LATE_S:
            self._on_settled(attempt.record)
        asked_s = error.retry_after_s if isinstance(error, ApiError) else None
        attempt.due = self._clock() + max(RETRY_S, asked_s or 0.0)

    def _finish(self, attempt: _Attempt, fate: str) -> None:
        self._attempts.remove(attempt)
        self.tally.fates[fate] += 1
        level, text = FATES[fate]
        fields: dict[str, Any] = {
            "pod": attempt.record.title,
            "uid": attempt.record.uid,
            "written_again": attempt.erased,
        }
        if attempt.problem and fate in (AWAY, REFUSED):
            fields["problem"] = attempt.problem
        self._log(level, text, **fields)
        self._on_done(attempt.record, fate)


def _uid(pod: Mapping[str, Any]) -> str:
    metadata = pod.get("metadata")
    return str(metadata.get("uid", "")) if isinstance(metadata, Mapping) else ""


def _is_evicted(pod: Mapping[str, Any]) -> bool:
    status = pod.get("status") or {}
    return status.get("phase") == "Failed" and status.get("reason") == "Evicted"


def _have_ended(pod: Mapping[str, Any]) -> bool:
    """Whether the kubelet reports of every container that it has ended."""
    states = (pod.get("status") or {}).get("containerStatuses") or []
    return bool(states) and all("terminated" in (one.get("state") or {}) for one in states)
