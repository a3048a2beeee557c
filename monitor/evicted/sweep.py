"""Finds evicted pods and deletes those that are chosen, each under the condition that nothing about it has changed.

What is done is in the API server and nowhere else: a sweep that was ended goes on with the next one. Of each pod less
than 1 KB is kept, of 10,000 pods or of 100.

Which pods are left behind is the pod garbage collector's own rule (`PodIsEvicted` in pkg/kubelet/eviction): phase
Failed and reason Evicted, both exactly. A pod that the kubelet turned away at admission ("The node had condition:
[MemoryPressure]") has them too. Another writer of the status may lose the reason: then the kubelet's condition and its
message are the evidence.
"""

from __future__ import annotations

import datetime
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from monitor.documents import shortened
from monitor.kube.client import PODS, ApiClient, Listed
from monitor.kube.errors import Conflict, Forbidden, KubeError, NotFound, TransportError, Unauthorized
from monitor.kube.retry import passes, retrying

#: Characters of a message; the kubelet's own has 100 to 300.
_MESSAGE = 300
#: Set on the pods of a Job until the Job has counted how they ended (Kubernetes 1.26; on by default since 1.23).
JOB_TRACKING = "batch.kubernetes.io/job-tracking"
_MIRROR = "kubernetes.io/config.mirror"
#: The label that the Deployment controller gives a ReplicaSet and its pods; the ReplicaSet's name ends with it.
_TEMPLATE_HASH = "pod-template-hash"
_STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
#: How an eviction is recognised: by the reason, or without one by the condition that a kubelet writes since 1.26.
BY_REASON, BY_CONDITION = "reason Evicted", "condition DisruptionTarget, TerminationByKubelet"
_BY_THE_KUBELET = ("DisruptionTarget", "True", "TerminationByKubelet")
#: What a kubelet says of its evictions (pkg/kubelet/eviction/helpers.go). It writes that condition for a shutdown and a
#: preemption too, with other messages.
_EVICTED = (
    "The node was low on resource: ",
    "Pod ephemeral local storage usage exceeds the total limit of containers ",
    "Usage of EmptyDir volume ",
)
_CONTAINER_EVICTED = re.compile(r"Container \S+ exceeded its local ephemeral storage limit ")
#: The owner kind of a pod without a controller.
BARE = "none"
Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EvictedPod:
    """``since`` (unix seconds) is the last thing that its status dates: it was evicted then, or before. ``stays`` says
    why it is not deleted, "" if it may be. ``evidence`` is `BY_REASON` or `BY_CONDITION`.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    node: str
    owner_kind: str
    owner_name: str
    since: float | None
    message: str
    stays: str
    evidence: str = BY_REASON

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def decode(found: Object) -> EvictedPod | None:
    """An evicted pod; None for all else, also for one that Failed otherwise."""
    status, metadata = _map(found.get("status")), _map(found.get("metadata"))
    if status.get("phase") != "Failed":
        return None
    reason, message, evidence = _text(status.get("reason")), _text(status.get("message")), BY_REASON
    if not reason and (said := _message_of_eviction(status)):
        message, evidence = said, BY_CONDITION
    elif reason != "Evicted":
        return None
    uid, version = _text(metadata.get("uid")), _text(metadata.get("resourceVersion"))
    if not uid or not version:  # without them a delete could hit another pod
        return None
    kind, name = _owner(metadata)
    return EvictedPod(
        _text(metadata.get("namespace")),
        _text(metadata.get("name")),
        uid,
        version,
        _text(_map(found.get("spec")).get("nodeName")),
        sys.intern(kind),
        name,
        max(_moments(metadata, status), default=None),
        shortened(" ".join(message.split()), _MESSAGE),
        _keeps(metadata, status),
        evidence,
    )


def _message_of_eviction(status: Object) -> str:
    """The kubelet's words in the condition of an eviction, or beside it in the status; "" if they are of none."""
    for one in map(_map, _list(status.get("conditions"))):
        if tuple(map(one.get, ("type", "status", "reason"))) == _BY_THE_KUBELET:
            said = (_text(of.get("message")) for of in (one, status))
            return next((text for text in said if text.startswith(_EVICTED) or _CONTAINER_EVICTED.match(text)), "")
    return ""


def _keeps(metadata: Object, status: Object) -> str:
    for one in _containers(status):
        # Kubelets before 1.22 write Failed while containers still have their grace period.
        if "running" in _map(one.get("state")):
            return f"container {_text(one.get('name'))} is still running"
    if metadata.get("deletionTimestamp"):
        return "is being deleted"
    if JOB_TRACKING in _list(metadata.get("finalizers")):
        return "its Job has not counted it yet"
    if _MIRROR in _map(metadata.get("annotations")):
        return "mirror of a static pod: its kubelet would write it again"
    return ""


def _containers(status: Object) -> Iterator[Object]:
    return (_map(one) for name in _STATUSES for one in _list(status.get(name)))


def _owner(metadata: Object) -> tuple[str, str]:
    """Kind and name of the controller; a Deployment's instead of its ReplicaSet's. A custom one has its own kind."""
    for one in map(_map, _list(metadata.get("ownerReferences"))):
        if one.get("controller") is True:
            kind, name = _text(one.get("kind")), _text(one.get("name"))
            suffix = f"-{_text(_map(metadata.get('labels')).get(_TEMPLATE_HASH))}"
            if kind == "ReplicaSet" and len(suffix) > 1 and name.endswith(suffix):
                return "Deployment", name.removesuffix(suffix)
            return kind, name
    return BARE, ""


def _moments(metadata: Object, status: Object) -> Iterator[float]:
    """Whatever dates the status, in unix seconds: the latest is never before the eviction, so no age is too great.

    A kubelet writes DisruptionTarget since 1.26; before, only the time that the status field was written is left.
    """
    texts = [metadata.get("creationTimestamp"), status.get("startTime")]
    texts += [_map(one).get("lastTransitionTime") for one in _list(status.get("conditions"))]
    texts += [_map(_map(one.get("state")).get("terminated")).get("finishedAt") for one in _containers(status)]
    fields = map(_map, _list(metadata.get("managedFields")))
    texts += [one.get("time") for one in fields if one.get("subresource") == "status"]
    for text in texts:
        if (moment := parse_time(text)) is not None:
            yield moment


def parse_time(text: object) -> float | None:
    """RFC 3339 as Kubernetes writes it, in unix seconds; None if it is no such time, or Go's zero time."""
    if not isinstance(text, str) or not text or text.startswith("0001-"):
        return None
    try:
        made = datetime.datetime.fromisoformat(text)
        return made.timestamp() if made.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def _map(value: object) -> Object:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


#: Pods in a row on which the server failed for as long as it was tried again: then it is the server.
_MOST_IN_A_ROW = 3
#: Problems that are kept to be shown; the rest is counted.
_MOST_PROBLEMS = 10

#: What became of a pod: deleted; the same, but finalizers keep it; gone or made anew already; not to go any more;
#: refused.
DELETED, MARKED, GONE, CHANGED, FAILED = OUTCOMES = ("deleted", "marked", "gone", "changed", "failed")
_TEXTS = {
    DELETED: "deleted",
    MARKED: "marked for deletion, kept by their finalizers",
    GONE: "gone already",
    CHANGED: "changed meanwhile and left alone",
    FAILED: "failed",
}


def choose(
    pods: Iterable[EvictedPod], now: float, older_than_s: float | None = None, owner_kinds: Iterable[str] = ()
) -> list[EvictedPod]:
    """All pods of these owner kinds (none: all), with why each stays, oldest first: that is the order in which they go.
    ``older_than_s``: seconds; None: of any age.
    """
    kinds = {kind.lower() for kind in owner_kinds}
    found = [pod for pod in pods if not kinds or pod.owner_kind.lower() in kinds]
    found.sort(key=lambda pod: (pod.since is None, -(pod.since or 0.0), pod.key), reverse=True)
    return [replace(pod, stays=pod.stays or _too_young(pod, older_than_s, now)) for pod in found]


def _too_young(pod: EvictedPod, older_than_s: float | None, now: float) -> str:
    if older_than_s is None:
        return ""
    if pod.since is None:
        return "its age is not known"
    return "not old enough" if now - pod.since < older_than_s else ""


@dataclass
class Progress:
    total: int
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def count(self, outcome: str, problem: str = "") -> None:
        self.outcomes[outcome] += 1
        if problem and problem not in self.problems and len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(problem)

    def __str__(self) -> str:
        counts = [
            f"{self.outcomes[name]} {_TEXTS[name]}" for name in OUTCOMES if self.outcomes[name] or name == DELETED
        ]
        return f"{self.outcomes.total()} of {self.total}: {', '.join(counts)}"


class Sweep:
    """``retry_s``: how long a request is tried again while the server is away, throttles or fails."""

    def __init__(
        self,
        client: ApiClient,
        *,
        rate: float = 10.0,
        retry_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._client = client
        self._pause_s = 1.0 / rate
        self._due_s = 0.0  # when the next delete may be
        self._clock = clock
        self._wait = wait
        self._retrying = partial(retrying, total_s=retry_s, clock=clock, wait=wait)

    def find(self, namespaces: Iterable[str] = (), label_selector: str = "", node: str = "") -> list[EvictedPod]:
        """Every evicted pod of these (none: all), as etcd has them, in pages. Raises KubeError."""
        # Reason is no field that pods can be looked for by.
        fields = "status.phase=Failed" + (f",spec.nodeName={node}" if node else "")

        def listed(namespace: str) -> Listed[EvictedPod]:
            return self._client.list(
                PODS, decode, namespace=namespace, field_selector=fields, label_selector=label_selector
            )

        of_each = (self._retrying(partial(listed, namespace)) for namespace in dict.fromkeys(namespaces) or ("",))
        return [pod for found in of_each for pod in found.items]

    def delete(self, pods: Sequence[EvictedPod]) -> Iterator[Progress]:
        """Delete these, in their order; how far it is after each. Raises the KubeError that ends it all."""
        progress = Progress(len(pods))
        denied: dict[str, str] = {}  # namespace -> why
        in_a_row = 0
        for pod in pods:
            try:
                if pod.namespace in denied:
                    progress.count(FAILED, denied[pod.namespace])
                else:
                    self._pace()
                    progress.count(self._delete(pod))
                    in_a_row = 0
            except (TransportError, Unauthorized):
                raise
            except KubeError as error:
                if isinstance(error, Forbidden) and error.remedy:  # a rule is missing, for all of its namespace
                    denied[pod.namespace] = str(error)
                progress.count(FAILED, str(error))
                in_a_row = in_a_row + 1 if passes(error) else 0
                if in_a_row == _MOST_IN_A_ROW:
                    raise
            yield progress

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
        metadata = _map(left.get("metadata"))
        return MARKED if metadata.get("deletionTimestamp") and metadata.get("finalizers") else DELETED

    def _pace(self) -> None:
        if (pause_s := self._due_s - self._clock()) > 0:
            self._wait(pause_s)
        self._due_s = self._clock() + self._pause_s
