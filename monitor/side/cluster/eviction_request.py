"""One request for pods/eviction, and what its answer means for the pod and for the pods after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from monitor.errors import MonitorError
from monitor.kube.backoff import BackOff
from monitor.kube.client import ApiClient
from monitor.kube.errors import (
    ApiError,
    Cancelled,
    Conflict,
    Forbidden,
    NotFound,
    TimedOut,
    TooManyRequests,
    Unauthorized,
)
from monitor.kube.resources import PODS
from monitor.kube.retry import passes
from monitor.side.export.log import Log

#: A pod that was refused is not asked for again before this: the kubelet's loop, and that of repeated decisions.
REFUSED_S = 10.0
#: After so many answers 503, 504 or 429 in a row for one pod the next candidate is tried: a pod can have its own 504.
ASKED_AGAIN = 3
ACCEPTED, BUDGET, GONE, FAILED, AWAY = "accepted", "budget", "gone", "failed", "away"
OUTCOMES = (ACCEPTED, BUDGET, GONE, FAILED, AWAY)


class Asked(NamedTuple):
    """A pod that may be evicted."""

    uid: str
    namespace: str
    name: str
    grace_s: int

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}"


class EvictionRequests:
    """`ask` gives one of `OUTCOMES`; after AWAY the next request waits until `retry_at`."""

    def __init__(self, client: ApiClient, log: Log, clock: Callable[[], float], back_off: BackOff) -> None:
        self._client = client
        self._log = log
        self._clock = clock
        self._back_off = back_off
        self._problem = ""
        self._no_right: dict[str, float] = {}  # namespace -> until when outrace evicts none of its pods
        self._unanswered = ("", 0)  # the uid of the pod that is tried again, and how often
        #: The last answer that refused a pod.
        self.refusal = ""
        self.retry_at = 0.0

    def may(self, namespace: str) -> bool:
        """False for `REFUSED_S` after the authorizer refused an eviction in this namespace."""
        return self._clock() >= self._no_right.get(namespace, 0.0)

    def ask(self, pod: Asked) -> str:
        try:
            self._client.evict(pod.name, pod.namespace, uid=pod.uid, grace_period_s=pod.grace_s)
        except Cancelled:
            raise
        except TooManyRequests as error:
            if not error.budget_blocks:
                return self._away(pod, error)
            self.refusal = str(error)
            return BUDGET
        except NotFound:
            return self._gone(pod)
        except Conflict as error:
            return self._on_conflict(pod, error)
        except Forbidden as error:
            return self._on_forbidden(pod, error)
        except MonitorError as error:
            # A pod under two budgets gets 500, every time: the next candidate is tried, not this one for ever.
            of_this_pod = isinstance(error, ApiError) and (error.code == 500 or not passes(error))
            if not of_this_pod or isinstance(error, Unauthorized):
                return self._away(pod, error)
            self.refusal = str(error)
            return FAILED
        self._back_off.reset()
        self._unanswered = "", 0
        if self._problem:
            self._log.info("the API server takes evictions again")
        self._problem = ""
        return ACCEPTED

    def _on_forbidden(self, pod: Asked, error: Forbidden) -> str:
        """Admission refuses this pod. The authorizer refuses its whole namespace: one question answers for all."""
        self.refusal = str(error)
        if error.by_authorizer:
            self._no_right[pod.namespace] = self._clock() + REFUSED_S
            if self._problem != str(error):
                self._log.error("outrace has no right to evict pods of a namespace", pod=pod.title, problem=str(error))
            self._problem = str(error)
        return FAILED

    def _on_conflict(self, pod: Asked, error: Conflict) -> str:
        """Another pod has its name now, or the API server gave up among other writers: that can be tried again."""
        try:
            metadata = self._client.get(PODS, pod.name, pod.namespace).get("metadata")
        except Cancelled:
            raise
        except NotFound:
            return self._gone(pod)
        except MonitorError as other:
            return self._away(pod, other)
        same = isinstance(metadata, Mapping) and metadata.get("uid") == pod.uid
        return self._away(pod, error) if same else self._gone(pod)

    def _gone(self, pod: Asked) -> str:
        self._log.info("a pod to be evicted is gone, or made anew under its name", pod=pod.title, uid=pod.uid)
        return GONE

    def _away(self, pod: Asked, error: MonitorError) -> str:
        uid, times = self._unanswered
        self._unanswered = pod.uid, times + 1 if uid == pod.uid else 1
        may_be_of_pod = isinstance(error, ApiError | TimedOut) and not isinstance(error, Unauthorized)
        if may_be_of_pod and self._unanswered[1] >= ASKED_AGAIN:
            self._unanswered = "", 0
            self.refusal = str(error)
            return FAILED
        asked_s = error.retry_after_s if isinstance(error, ApiError) else None
        self.retry_at = self._clock() + self._back_off.next_s(asked_s)
        if not self._problem:
            self._log.error(
                "the API server evicts nobody now, and nobody is killed; trying again",
                pod=pod.title,
                problem=str(error),
            )
        self._problem = str(error)
        return AWAY
