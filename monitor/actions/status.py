"""What an eviction leaves behind: the pod's status and the event, as the kubelet writes them, in the state directory.

``STATE/pods/NAMESPACE_NAME_UID.json`` is a v1.Pod with its final status, ``STATE/events/`` has the v1.Event of the
same name. Files appear whole or not at all, and one that is there is never overwritten by another eviction.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monitor.policy.pods import Pod

#: NAME_MAX is 255 bytes; a namespace (63), a pod name (253) and a UID (36) together can be longer.
_MAX_STEM = 240


@dataclass(frozen=True, slots=True)
class Eviction:
    """One eviction as it is to be recorded. Times are Unix seconds; ``started`` is when the pod was first seen."""

    id: str
    pod: Pod
    qos: str
    message: str
    annotations: Mapping[str, str]
    started: float
    decided: float
    node: str


def timestamp(unix_s: float) -> str:
    """A time as Kubernetes writes it, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_s))


def pod_object(eviction: Eviction, outcome: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The v1.Pod after the eviction. ``outcome`` (the hot process's ``evicted`` message) adds what became of it."""
    pod, when = eviction.pod, timestamp(eviction.decided)
    notes = {**pod.annotations, "outrace/eviction": eviction.id}
    if outcome is not None:
        notes["outrace/freed-bytes"] = str(outcome.get("freed", 0))
        notes["outrace/pids"] = ",".join(str(pid) for pid in outcome.get("pids", ()))

    def condition(kind: str, status: str, **more: str) -> dict[str, str | None]:
        return {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": when, **more}

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
            "conditions": [
                condition("DisruptionTarget", "True", reason="TerminationByKubelet", message=eviction.message),
                condition("Ready", "False", reason="PodFailed"),
                condition("ContainersReady", "False", reason="PodFailed"),
            ],
        },
    }


def event_object(eviction: Eviction) -> dict[str, Any]:
    """The v1.Event of the eviction, with the kubelet's annotations (offending containers, starved resource)."""
    pod, when = eviction.pod, timestamp(eviction.decided)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{pod.name}.{int(eviction.decided * 1e9):x}",
            "namespace": pod.namespace,
            "creationTimestamp": when,
            "annotations": dict(eviction.annotations),
        },
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        },
        "type": "Warning",
        "reason": "Evicted",
        "message": eviction.message,
        "source": {"component": "outrace", "host": eviction.node},
        "reportingComponent": "outrace",
        "reportingInstance": eviction.node,
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
    }


def stem(pod: Pod) -> str:
    """The file name without its suffix: no path separator gets through, and it fits in a directory entry."""
    safe = f"{pod.namespace}_{pod.name}".replace("/", "-").replace("\0", "-").lstrip(".")
    uid = pod.uid.replace("/", "-").replace("\0", "-").encode()[:100].decode(errors="ignore")
    head = safe.encode()[: _MAX_STEM - len(uid.encode()) - 1].decode(errors="ignore")
    return f"{head}_{uid}"


class StatusStore:
    """Writes the files of evictions below ``state_dir``. Every method may block and raise OSError."""

    def __init__(self, state_dir: Path) -> None:
        self.pods = state_dir / "pods"
        self.events = state_dir / "events"
        self._paths: dict[str, Path] = {}  # eviction id -> its pod file, until its outcome is known

    def write(self, eviction: Eviction) -> Path:
        """Record an eviction; returns the pod's file. Trying again after an error never makes a second file."""
        path = self._paths.get(eviction.id)
        if path is None:
            path = _write_new(self.pods, stem(eviction.pod), pod_object(eviction))
            self._paths[eviction.id] = path
        _replace(self.events / path.name, event_object(eviction))
        return path

    def finish(self, eviction: Eviction, outcome: Mapping[str, Any]) -> Path:
        """Add the outcome to the file of an eviction that was written before (or write it now)."""
        path = self.write(eviction)
        _replace(path, pod_object(eviction, outcome))
        del self._paths[eviction.id]
        return path


def _write_new(directory: Path, name: str, content: Mapping[str, Any]) -> Path:
    """Write ``name.json``, or ``name.2.json`` and so on when an older eviction of the same pod has that name."""
    temporary = _temporary(directory / f"{name}.json", content)
    try:
        number = 1
        while True:
            path = directory / (f"{name}.json" if number == 1 else f"{name}.{number}.json")
            try:
                os.link(temporary, path)  # unlike a rename it fails when the name is taken
                return path
            except FileExistsError:
                number += 1
    finally:
        temporary.unlink()


def _replace(path: Path, content: Mapping[str, Any]) -> None:
    temporary = _temporary(path, content)
    try:
        temporary.replace(path)
    except OSError:
        temporary.unlink()
        raise


def _temporary(path: Path, content: Mapping[str, Any]) -> Path:
    """The content on disk beside ``path``, flushed, under a hidden name."""
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    temporary = path.parent / f".{path.stem[:200]}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary
