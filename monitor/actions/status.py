"""The status and the events of an eviction, as the kubelet writes them, in the state directory.

``STATE/pods/NAMESPACE_NAME_UID.json`` is a v1.Pod with its final status, ``STATE/events/`` has the v1.Event of the
same name and ``STATE/node-events/`` the one on the node that announced it. Files appear whole or not at all. A pod's
are those of its last eviction; the newest 1000 of each are kept.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from monitor.kernel.durable import JsonFolder
from monitor.policy.kubelet_pass import NODE_MESSAGE, NODE_REASON
from monitor.policy.pods import Pod

#: NAME_MAX is 255 bytes; a namespace (63), a pod name (253) and a UID (36) together can be longer.
_MAX_STEM = 240
#: Of an object in the API.
_MAX_NAME = 253
#: Files kept of each kind: 4 MB on most disks.
KEEP = 1000


@dataclass(frozen=True, slots=True)
class EvictedPod:
    """One eviction as it is to be recorded. Times are Unix seconds; ``started`` is when the pod was first seen."""

    id: str
    pod: Pod
    qos: str
    message: str
    annotations: Mapping[str, str]
    started: float
    decided: float
    node: str
    #: What the node was low on; None for a pod over a limit of its own, whose status then has no DisruptionTarget.
    resource: str | None = "memory"


def timestamp(unix_s: float) -> str:
    """A time as Kubernetes writes it, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_s))


def pod_object(eviction: EvictedPod, outcome: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The v1.Pod after the eviction. ``outcome`` (the hot process's ``evicted`` message) adds what became of it."""
    pod, when = eviction.pod, timestamp(eviction.decided)
    notes = {**pod.annotations, "outrace/eviction": eviction.id}
    if outcome is not None:
        pids = outcome.get("pids", ())
        notes |= {"outrace/freed-bytes": str(outcome.get("freed", 0)), "outrace/pids": ",".join(map(str, pids))}
        if outcome.get("pids_total", len(pids)) > len(pids):  # the first ones of many
            notes["outrace/pids-total"] = str(outcome["pids_total"])

    def condition(kind: str, status: str, **more: str) -> dict[str, str | None]:
        return {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": when, **more}

    conditions = [condition(kind, "False", reason="PodFailed") for kind in ("Ready", "ContainersReady")]
    if eviction.resource is not None:
        why = {"reason": "TerminationByKubelet", "message": eviction.message}
        conditions.insert(0, condition("DisruptionTarget", "True", **why))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "annotations": notes},
        "status": {
            "phase": "Failed",
            "reason": "Evicted",
            "message": eviction.message,
            "startTime": timestamp(eviction.started),
            "qosClass": eviction.qos,
            "conditions": conditions,
        },
    }


def status_patch(eviction: EvictedPod) -> dict[str, Any]:
    """The same as a strategic merge patch of pods/status, for this very pod: another one of its name has another uid.

    Without qosClass, which is immutable (422), and startTime, which the kubelet has set. Container statuses are the
    kubelet's to write: as soon as it has taken the phase it writes how each one ended.
    """
    status = pod_object(eviction)["status"]
    conditions = [{key: value for key, value in one.items() if value is not None} for one in status["conditions"]]
    phase = {key: status[key] for key in ("phase", "reason", "message")}
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


def stem(pod: Pod) -> str:
    """The file name without its suffix: no path separator gets through, and it fits in a directory entry."""
    safe = f"{pod.namespace}_{pod.name}".replace("/", "-").replace("\0", "-").lstrip(".")
    uid = pod.uid.replace("/", "-").replace("\0", "-").encode()[:100].decode(errors="ignore")
    head = safe.encode()[: _MAX_STEM - len(uid.encode()) - 1].decode(errors="ignore")
    return f"{head}_{uid}"


class StatusStore:
    """Writes the files of evictions below ``state_dir``, and keeps the newest ``keep`` of each kind."""

    def __init__(self, state_dir: Path, keep: int = KEEP) -> None:
        self._folders = [JsonFolder(state_dir / name, keep=keep) for name in ("pods", "events", "node-events")]

    def write(self, eviction: EvictedPod, outcome: Mapping[str, Any] | None = None) -> None:
        """Record an eviction, and again with what became of it. May block, and raises OSError."""
        made = (pod_object(eviction, outcome), *events_of(eviction))
        for folder, one in zip(self._folders, made, strict=False):
            folder.replace(f"{stem(eviction.pod)}.json", json.dumps(one, indent=1).encode() + b"\n")
