"""Which pods are left behind after an eviction, and what of each is kept: less than 1 KB, of 10,000 pods or of 100.

The rule is the pod garbage collector's own (`PodIsEvicted` in pkg/kubelet/eviction): phase Failed and reason Evicted,
both exactly. A pod that the kubelet turned away at admission ("The node had condition: [MemoryPressure]") has them too.
Another writer of the status may lose the reason: then the kubelet's condition and its message are the evidence.
"""

from __future__ import annotations

import datetime
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from monitor.documents import shortened

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
#: The owner kind of a pod without a controller, and of a static pod's mirror.
BARE, STATIC = "none", "Node"
Object = Mapping[str, Any]

_REPLACED = "was replaced at once; the Evicted pod stays until somebody or the pod garbage collector deletes it"
#: What the owner of a pod does after its eviction, and what deleting the pod then changes, by owner kind, as of
#: Kubernetes 1.36. Sources: pkg/controller/*, and the pull requests named.
AFTER = {
    "Deployment": _REPLACED,
    "ReplicaSet": _REPLACED,
    "ReplicationController": _REPLACED,
    # kubernetes/kubernetes 46669 (1.7) has it for Failed; 120398 and 121389 (1.29) for Succeeded as well.
    "StatefulSet": (
        "the controller deletes a Failed pod itself, then makes it anew under the same name: one that stays says that "
        "the controller does not run, or waits for a pod before it in order"
    ),
    # failedPodsBackoff: 1 s to 15 min for each node.
    "DaemonSet": (
        "the controller deletes a Failed pod itself and makes another, with a back-off of up to 15 min a node: one "
        "that stays says that the controller does not run, or that its node is gone"
    ),
    "Job": (
        "counted as a failure against backoffLimit, unless podFailurePolicy ignores DisruptionTarget; kept for its "
        "logs, and deleted with its Job (ttlSecondsAfterFinished)"
    ),
    STATIC: "a static pod: its kubelet starts it again by itself",
    BARE: "gone for good: nobody makes it again, and deleting it loses the last trace of it",
}


@dataclass(frozen=True, slots=True)
class EvictedPod:
    """``since`` (unix seconds) is the last thing that its status dates: it was evicted then, or before. ``held`` says
    why it is never deleted, "" if it may be. ``evidence`` is `BY_REASON` or `BY_CONDITION`.
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
    held: str
    evidence: str = BY_REASON

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def owner(self) -> str:
        return f"{self.owner_kind}/{self.owner_name}" if self.owner_name else self.owner_kind


def decode(found: Object) -> EvictedPod | str | None:
    """An evicted pod; the reason of one that Failed otherwise, and is nobody's business here; None for all else."""
    status, metadata = _map(found.get("status")), _map(found.get("metadata"))
    if status.get("phase") != "Failed":
        return None
    reason, message, evidence = _text(status.get("reason")), _text(status.get("message")), BY_REASON
    if not reason and (said := _message_of_eviction(status)):
        message, evidence = said, BY_CONDITION
    elif reason != "Evicted":
        return sys.intern(reason[:64] or "no reason")
    uid, version = _text(metadata.get("uid")), _text(metadata.get("resourceVersion"))
    if not uid or not version:  # without them a delete could hit another pod
        return "no uid or resourceVersion"
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
        _held(metadata, status),
        evidence,
    )


def _message_of_eviction(status: Object) -> str:
    """The kubelet's words in the condition of an eviction, or beside it in the status; "" if they are of none."""
    for one in map(_map, _list(status.get("conditions"))):
        if tuple(map(one.get, ("type", "status", "reason"))) == _BY_THE_KUBELET:
            said = (_text(of.get("message")) for of in (one, status))
            return next((text for text in said if text.startswith(_EVICTED) or _CONTAINER_EVICTED.match(text)), "")
    return ""


def _held(metadata: Object, status: Object) -> str:
    for name in _STATUSES:
        for one in _list(status.get(name)):
            # Kubelets before 1.22 write Failed while containers still have their grace period.
            if _map(one).get("state") and "running" in _map(_map(one)["state"]):
                return f"container {_text(_map(one).get('name'))} is still running"
    if metadata.get("deletionTimestamp"):
        return "is being deleted"
    if JOB_TRACKING in _list(metadata.get("finalizers")):
        return "its Job has not counted it yet"
    if _MIRROR in _map(metadata.get("annotations")):
        return "mirror of a static pod: its kubelet would write it again"
    return ""


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
    for name in _STATUSES:
        for one in _list(status.get(name)):
            texts.append(_map(_map(_map(one).get("state")).get("terminated")).get("finishedAt"))
    for one in map(_map, _list(metadata.get("managedFields"))):
        if one.get("subresource") == "status":
            texts.append(one.get("time"))
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


def after(kind: str) -> str:
    """A sentence about pods of this owner kind."""
    return AFTER.get(kind, f"what {kind} does is up to its own controller")
