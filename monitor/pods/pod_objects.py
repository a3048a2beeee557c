"""A Pod as the API server or the kubelet serves it: what of it is kept, and what is made of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from monitor.pods.manifest_files import POD_CGROUP, Manifest, manifest_of
from monitor.policy.qos import SOURCE

_METADATA = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")
#: Annotations that decide something: where a static pod comes from, and which directory it has.
_ANNOTATIONS = (SOURCE, "kubernetes.io/config.mirror", "kubernetes.io/config.hash")
_SPEC = (
    *("nodeName", "resources", "overhead", "priority", "priorityClassName", "tolerations", "restartPolicy"),
    *("terminationGracePeriodSeconds", "volumes"),
)
_CONTAINER = ("name", "resources", "restartPolicy")
_STATUS = ("phase", "qosClass", "reason", "message")
_CONTAINER_STATUS = ("name", "containerID", "allocatedResources")
_SPECS = ("containers", "initContainers")
_STATUSES = ("containerStatuses", "initContainerStatuses")

Object = dict[str, Any]


def kept(obj: Any) -> Object:
    """What is needed of a Pod, and is stored: no environment, no command, no secret; about 1 KB of 10.

    Annotations ``outrace/...`` are left out: who may create pods in some namespace may not say which cgroup is killed.
    """
    meta, spec, status = (_map(obj, key) for key in ("metadata", "spec", "status"))
    owners = meta.get("ownerReferences")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **_some(meta, _METADATA),
            "annotations": _some(_map(meta, "annotations"), _ANNOTATIONS),
            "labels": meta.get("labels") or {},
            "ownerReferences": [_some(o, ("kind", "name", "controller")) for o in _list(owners)],
        },
        "spec": {
            **_some(spec, _SPEC),
            **{key: [_some(one, _CONTAINER) for one in _list(spec.get(key))] for key in _SPECS if key in spec},
        },
        "status": {
            **_some(status, _STATUS),
            **{key: [_some(one, _CONTAINER_STATUS) for one in _list(status.get(key))] for key in _STATUSES},
        },
    }


def manifest(where: str, obj: Mapping[str, Any]) -> Manifest | str:
    """The pod of a `kept` object, or the line that says why it is none."""
    found = manifest_of(where, _allocated(obj))
    if isinstance(found, str) or not any(key.startswith(POD_CGROUP) for key in found.pod.annotations):
        return found
    others = {key: text for key, text in found.pod.annotations.items() if not key.startswith(POD_CGROUP)}
    return replace(found, pod=replace(found.pod, annotations=others))


def owner(obj: Mapping[str, Any]) -> str:
    """``KIND/NAME`` of what made it, as ``ReplicaSet/web-5d4f``; "" for a pod of nobody."""
    owners = _list(_map(obj, "metadata").get("ownerReferences"))
    first: Mapping[str, Any] = next((one for one in owners if one.get("controller")), next(iter(owners), {}))
    return f"{first.get('kind')}/{first.get('name')}" if first.get("kind") else ""


def _allocated(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    """With the requests that the kubelet has granted, where a resize in place is not done yet (KEP-1287): it ranks by
    them (`status.containerStatuses[].allocatedResources`), not by what the spec asks for.
    """
    status = _map(obj, "status")
    granted = {
        one.get("name"): one["allocatedResources"]
        for key in _STATUSES
        for one in _list(status.get(key))
        if isinstance(one.get("allocatedResources"), dict) and one["allocatedResources"]
    }
    if not granted:
        return obj
    made = copy.deepcopy(dict(obj))
    for key in _SPECS:
        for container in _list(_map(made, "spec").get(key)):
            if container.get("name") in granted:
                resources = container.get("resources")
                resources = dict(resources) if isinstance(resources, dict) else {}
                requests = resources.get("requests")
                asked = requests if isinstance(requests, dict) else {}
                # Only what the container asks for: a request cannot be added by a resize of another resource.
                now = {name: granted[container["name"]].get(name, amount) for name, amount in asked.items()}
                container["resources"] = {**resources, "requests": now}
    return made


def _some(obj: Any, keys: tuple[str, ...]) -> Object:
    return {key: obj[key] for key in keys if key in obj} if isinstance(obj, Mapping) else {}


def _map(obj: Any, key: str) -> Mapping[str, Any]:
    found = obj.get(key) if isinstance(obj, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _list(found: Any) -> list[Any]:
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
