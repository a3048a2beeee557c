"""The status and the events of an eviction, as the kubelet writes them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from monitor.policy.kubelet_pass import NODE_MESSAGE, NODE_REASON
from monitor.policy.pods import Pod

#: Of an object in the API.
_MAX_NAME = 253


@dataclass(frozen=True, slots=True)
class EvictedPod:
    """One eviction as it is to be reported. ``decided``: Unix seconds."""

    pod: Pod
    message: str
    annotations: Mapping[str, str]
    decided: float
    node: str
    #: What the node was low on; None for a pod over a limit of its own, whose status then has no DisruptionTarget.
    resource: str | None = "memory"


def timestamp(unix_s: float) -> str:
    """A time as Kubernetes writes it, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_s))


def status_patch(eviction: EvictedPod) -> dict[str, Any]:
    """A strategic merge patch of pods/status, for this very pod: another one of its name has another uid.

    Without qosClass, which is immutable (422), and startTime, which the kubelet has set. Container statuses are the
    kubelet's to write: as soon as it has taken the phase it writes how each one ended.
    """
    when = timestamp(eviction.decided)

    def condition(kind: str, status: str, **more: str) -> dict[str, str]:
        return {"type": kind, "status": status, "lastTransitionTime": when, **more}

    conditions = [condition(kind, "False", reason="PodFailed") for kind in ("Ready", "ContainersReady")]
    if eviction.resource is not None:
        why = {"reason": "TerminationByKubelet", "message": eviction.message}
        conditions.insert(0, condition("DisruptionTarget", "True", **why))
    phase = {"phase": "Failed", "reason": "Evicted", "message": eviction.message}
    return {"metadata": {"uid": eviction.pod.uid}, "status": {**phase, "conditions": conditions}}


def events_of(eviction: EvictedPod) -> list[dict[str, Any]]:
    """The v1.Event of the eviction, with the kubelet's annotations (offending containers, starved resource); then, of
    a shortage of the node, the one on it that goes before, as the kubelet sends it to namespace `default`.
    """
    pod, about = eviction.pod, (eviction.node, eviction.decided)
    involved = {"kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
    made = [event(involved, "Evicted", eviction.message, *about, annotations=eviction.annotations)]
    if eviction.resource is not None:
        involved = {"kind": "Node", "name": eviction.node, "uid": eviction.node}
        made.append(event(involved, NODE_REASON, NODE_MESSAGE % eviction.resource, *about))
    return made


def event(
    involved: Mapping[str, str],
    reason: str,
    message: str,
    node: str,
    when: float,
    *,
    annotations: Mapping[str, str] = MappingProxyType({}),
    warns: bool = True,
    suffix: str = "",
) -> dict[str, Any]:
    """A v1.Event about a pod, or about a node. ``suffix``: two of one object and moment have names of their own. The
    name is the same however often it is sent.
    """
    at, tail = timestamp(when), f".{int(when * 1e9):x}{suffix}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{involved['name'][: _MAX_NAME - len(tail)].rstrip('.-')}{tail}",
            "namespace": involved.get("namespace", "default"),
            "creationTimestamp": at,
            "annotations": dict(annotations),
        },
        "involvedObject": {"apiVersion": "v1", **involved},
        "type": "Warning" if warns else "Normal",
        "reason": reason,
        "message": message,
        "source": {"component": "outrace", "host": node},
        "reportingComponent": "outrace",
        "reportingInstance": node,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
