"""Finds evicted pods and deletes those that are chosen, each under the condition that nothing about it has changed.

What is done is in the API server and nowhere else: a sweep that was ended goes on with the next one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from monitor.evicted.pods import EvictedPod, decode
from monitor.kube.client import ApiClient, Listed
from monitor.kube.errors import Conflict, Forbidden, KubeError, NotFound, TransportError, Unauthorized
from monitor.kube.resources import PODS
from monitor.kube.retry import passes, retrying

_T = TypeVar("_T")

#: Pods in a row on which the server failed for as long as it was tried again: then it is the server.
_MOST_IN_A_ROW = 3
#: Problems that are kept to be shown; the rest is counted.
_MOST_PROBLEMS = 10

#: What became of a pod: deleted; the same, but finalizers keep it; gone or made anew already; not to go any more;
#: refused.
DELETED, MARKED, GONE, CHANGED, FAILED = OUTCOMES = ("deleted", "marked", "gone", "changed", "failed")


@dataclass(frozen=True)
class Criteria:
    """``older_than_s`` seconds; None: of any age. What a server can look for comes first: ``namespaces`` (none: all),
    ``label_selector``, ``node``.
    """

    namespaces: tuple[str, ...] = ()
    label_selector: str = ""
    node: str = ""
    owner_kinds: frozenset[str] = frozenset()
    older_than_s: float | None = None

    @property
    def field_selector(self) -> str:
        """Reason is no field that pods can be looked for by."""
        return "status.phase=Failed" + (f",spec.nodeName={self.node}" if self.node else "")


@dataclass(frozen=True, slots=True)
class Choice:
    """A pod, and why it stays; "" if it is to go."""

    pod: EvictedPod
    stays: str

    @property
    def goes(self) -> bool:
        return not self.stays


def choose(pods: Iterable[EvictedPod], criteria: Criteria, now: float) -> tuple[Choice, ...]:
    """Of all pods of the owner kinds, oldest first: that is the order in which they go."""
    kinds = {kind.lower() for kind in criteria.owner_kinds}
    found = [pod for pod in pods if not kinds or pod.owner_kind.lower() in kinds]
    found.sort(key=lambda pod: (pod.since is None, -(pod.since or 0.0), pod.key), reverse=True)
    return tuple(Choice(pod, pod.held or _too_young(pod, criteria, now)) for pod in found)


def _too_young(pod: EvictedPod, criteria: Criteria, now: float) -> str:
    """Why its age keeps it."""
    if criteria.older_than_s is None:
        return ""
    if pod.since is None:
        return "its age is not known"
    return "not old enough" if now - pod.since < criteria.older_than_s else ""


@dataclass(frozen=True)
class Found:
    """``others``: reason -> how many pods are Failed for it, which are left alone."""

    pods: tuple[EvictedPod, ...]
    others: Counter[str]


@dataclass
class Progress:
    """How far a sweep is."""

    total: int
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    @property
    def done(self) -> int:
        return self.outcomes.total()

    def __str__(self) -> str:
        rest = ", ".join(
            f"{self.outcomes[name]} {text}" for name, text in _OUTCOME_TEXTS.items() if self.outcomes[name]
        )
        return f"{self.done} of {self.total}: {self.outcomes[DELETED]} deleted{f', {rest}' if rest else ''}"


_OUTCOME_TEXTS = {
    MARKED: "marked for deletion, kept by their finalizers",
    GONE: "gone already",
    CHANGED: "changed meanwhile and left alone",
    FAILED: "failed",
}


class Sweep:
    """``retry_s``: how long a request is tried again while the server is away, throttles or fails."""

    def __init__(
        self,
        client: ApiClient,
        criteria: Criteria,
        *,
        rate: float = 10.0,
        retry_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._client = client
        self._criteria = criteria
        self._pause_s = 1.0 / rate
        self._due_s = 0.0  # when the next delete may be
        self._retry_s = retry_s
        self._clock = clock
        self._wait = wait

    def close(self) -> None:
        self._client.close()

    def find(self) -> Found:
        """Every Failed pod of the criteria that the server looks for, as etcd has them, in pages. Raises KubeError."""
        pods: list[EvictedPod] = []
        others: Counter[str] = Counter()
        for namespace in self._criteria.namespaces or ("",):
            for one in self._list(namespace):
                if isinstance(one, EvictedPod):
                    pods.append(one)
                else:
                    others[one] += 1
        return Found(tuple(pods), others)

    def delete(self, pods: Sequence[EvictedPod], on_progress: Callable[[Progress], None] = lambda _: None) -> Progress:
        """Delete these, in their order; ``on_progress`` is called after each. Raises the KubeError that ends it all."""
        progress = Progress(len(pods))
        denied: dict[str, str] = {}  # namespace -> why
        in_a_row = 0
        for pod in pods:
            if pod.namespace in denied:
                self._count(progress, FAILED, denied[pod.namespace])
                on_progress(progress)
                continue
            self._pace()
            try:
                self._count(progress, self._delete(pod))
                in_a_row = 0
            except (TransportError, Unauthorized):
                raise
            except KubeError as error:
                if isinstance(error, Forbidden) and error.remedy:  # a rule is missing, for all of its namespace
                    denied[pod.namespace] = str(error)
                self._count(progress, FAILED, str(error))
                in_a_row = in_a_row + 1 if passes(error) else 0
                if in_a_row == _MOST_IN_A_ROW:
                    raise
            on_progress(progress)
        return progress

    def _delete(self, pod: EvictedPod) -> str:
        """One of `OUTCOMES`; raises KubeError. What has changed since it was listed is left to the next sweep."""
        call = partial(self._client.delete, PODS, pod.name, pod.namespace)
        try:
            left = self._retrying(partial(call, uid=pod.uid, resource_version=pod.resource_version))
        except NotFound:
            return GONE
        except Conflict:
            return CHANGED
        # A pod that is gone is returned as it was last; one that its finalizers keep has a deletionTimestamp.
        metadata = left.get("metadata")
        kept = isinstance(metadata, dict) and metadata.get("deletionTimestamp") and metadata.get("finalizers")
        return MARKED if kept else DELETED

    def _list(self, namespace: str) -> tuple[EvictedPod | str, ...]:
        def call() -> tuple[EvictedPod | str, ...]:
            selector, labels = self._criteria.field_selector, self._criteria.label_selector
            listed: Listed[EvictedPod | str] = self._client.list(
                PODS, decode, namespace=namespace, field_selector=selector, label_selector=labels
            )
            return listed.items

        return self._retrying(call)

    def _retrying(self, call: Callable[[], _T]) -> _T:
        return retrying(call, self._retry_s, self._clock, self._wait)

    def _pace(self) -> None:
        if (pause_s := self._due_s - self._clock()) > 0:
            self._wait(pause_s)
        self._due_s = self._clock() + self._pause_s

    def _count(self, progress: Progress, outcome: str, problem: str = "") -> None:
        progress.outcomes[outcome] += 1
        if problem and problem not in progress.problems and len(progress.problems) < _MOST_PROBLEMS:
            progress.problems.append(problem)
