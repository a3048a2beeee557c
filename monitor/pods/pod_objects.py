"""A Pod as the API server or the kubelet serves it: what of it is kept, and what is made of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from monitor.pods.manifest_files import POD_CGROUP, Manifest, manifest_of
from monitor.policy.qos import SOURCE

_METADATA = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")
#: Annotations that decide something: where a static pod comes from, and which directory it has.
_ANNOTATIONS = (SOURCE, "kubernetes.io/config.mirror", "kubernetes.io/config.hash")
_SPEC = (
    *("nodeName", "resources", "overhead", "priority", "priorityClassName", "restartPolicy"),
    "terminationGracePeriodSeconds",
)
_CONTAINER = ("name", "resources", "restartPolicy")
#: Whoever makes a pod decides how much is in it, up to 1.5 MB: this much of labels, tolerations and volumes is kept,
#: and of a text. (Kubernetes' own volumes of a pod are a few; a label's value has 63 characters at most.)
_MOST, _LONGEST = 100, 1024
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
            "annotations": _texts(_some(_map(meta, "annotations"), _ANNOTATIONS)),
            "labels": _texts(_map(meta, "labels")),
            "ownerReferences": [_some(o, ("kind", "name", "controller")) for o in _list(owners)[:_MOST]],
        },
        "spec": {
            **_some(spec, _SPEC),
            **({"tolerations": _list(spec["tolerations"])[:_MOST]} if "tolerations" in spec else {}),
            **({"volumes": [_volume(one) for one in _list(spec["volumes"])[:_MOST]]} if "volumes" in spec else {}),
            **{key: [_some(one, _CONTAINER) for one in _list(spec.get(key))] for key in _SPECS if key in spec},
        },
        "status": {
            **_texts(_some(status, _STATUS)),
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
    them (`status.containerStatuses[].allocatedResources`), not by what the spec asks for. (Kubernetes 1.36:
    evictionManager.Start has getAllocatedPods.)
    """
    status = _map(obj, "status")
    granted = {
        one["name"]: one["allocatedResources"]
        for key in _STATUSES
        for one in _list(status.get(key))
        if isinstance(one.get("name"), str)
        and isinstance(one.get("allocatedResources"), dict)
        and one["allocatedResources"]
    }
    if not granted:
        return obj
    made = copy.deepcopy(dict(obj))
    for key in _SPECS:
        for container in _list(_map(made, "spec").get(key)):
            if isinstance(container.get("name"), str) and container["name"] in granted:
                resources = container.get("resources")
                resources = dict(resources) if isinstance(resources, dict) else {}
                requests = resources.get("requests")
                asked = requests if isinstance(requests, dict) else {}
                # cpu and memory alone can be resized. What was not granted yet is none.
                resized = {name: granted[container["name"]].get(name) for name in ("cpu", "memory")}
                now = {**asked, **resized}
                now = {name: amount for name, amount in now.items() if amount is not None}
                container["resources"] = {**resources, "requests": now}
    return made


def _volume(volume: Mapping[str, Any]) -> Object:
    """Which kind it is, and how large an emptyDir may be: what a configMap or projection holds may be much."""
    return {
        key: value if key == "name" else _some(value, ("medium", "sizeLimit")) if key == "emptyDir" else {}
        for key, value in volume.items()
        if value is not None
    }


def _texts(found: Mapping[str, Any]) -> Object:
    """The first `_MOST` entries that are no longer than they may be."""
    short = ((key, value) for key, value in found.items() if not isinstance(value, str) or len(value) <= _LONGEST)
    return dict(islice(short, _MOST))


def _some(obj: Any, keys: tuple[str, ...]) -> Object:
    return {key: obj[key] for key in keys if key in obj} if isinstance(obj, Mapping) else {}


def _map(obj: Any, key: str) -> Mapping[str, Any]:
    found = obj.get(key) if isinstance(obj, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _list(found: Any) -> list[Any]:
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
