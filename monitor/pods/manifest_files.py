"""Pods as objects: in a file of manifests (YAML, JSON, v1 Lists) and as a server has them. Bad content never raises."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from monitor import documents
from monitor.documents import UnreadableError, decoded, one_line, shown
from monitor.owner import ChangeableError, mend, read_alone
from monitor.pods.model import MOST_CONTAINERS
from monitor.policy.errors import PolicyError
from monitor.policy.pods import Pod, pod_from_object
from monitor.policy.qos import SOURCE, is_mirror, is_static

SUFFIXES = (".yaml", ".yml", ".json")
POD_CGROUP = "outrace/cgroup"
#: Names end up in file names, log lines and metric labels: what Kubernetes allows in them, and in a uid a little more.
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_UID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_LISTS = ("List", "PodList")
#: Of two writes within a tick of its times the second may leave a file's stamp as it is: 2 s on vfat, 1 s on ext3; and
#: a server's clock is another one. A time in the future is as good as an old one.
_TICK_NS = 3_000_000_000


@dataclass(frozen=True)
class Manifest:
    """One Pod. ``where``: file and document, for messages; ``container_ids``: of its status, name -> bare id."""

    where: str
    pod: Pod
    container_ids: Mapping[str, str] = field(default_factory=dict)
    #: Faults that the ranking ignores: the author of a pod may not take it out of the ranking by an annotation.
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Parsed:
    """What a file holds: its pods, and one line for everything in it that is none. ``stamp`` is of the file, () if that
    may change without it.
    """

    manifests: tuple[Manifest, ...] = ()
    problems: tuple[str, ...] = ()
    stamp: tuple[int, ...] = ()


def is_manifest_name(name: str) -> bool:
    """Whether a file of this name counts: dot files and editors' temporary ones (``a.yaml~``, ``#a.yaml#``) do not."""
    return name.endswith(SUFFIXES) and not name.startswith((".", "#", "~"))


def read(path: Path, known: Parsed | None = None) -> Parsed | None:
    """Parse one file, which root alone may have written; None where there is none. Never waits for a writer, as opening
    a FIFO would. A file that is as it was when it was ``known`` is not read again.
    """
    try:
        at = os.stat(path)
        stamp = at.st_mtime_ns, at.st_ctime_ns, at.st_size, at.st_ino, at.st_dev
        if known is not None and known.stamp == stamp:
            return known
        settled = abs(time.time_ns() - max(at.st_mtime_ns, at.st_ctime_ns)) > _TICK_NS
        data = read_alone(path)
        settled &= os.path.samestat(at, os.stat(path))  # a link may lead elsewhere by now
    except ChangeableError as e:
        return Parsed(problems=(f"{path}: {e.problem}, who could have any pod killed; {mend(e.problem)}",))
    except documents.NotAFileError as e:
        return Parsed(problems=(f"{path}: {e}; remove it",))
    except OSError as e:
        # A file removed, or a link to nothing. A directory on its way may be gone although it is there (`..data`).
        if isinstance(e, FileNotFoundError) and not path.exists():
            return None
        return Parsed(problems=(f"{path}: cannot be read: {e.strerror}; make it readable or remove it",))
    return replace(parse(str(path), data), stamp=stamp if settled else ())


def parse(name: str, data: bytes) -> Parsed:
    """Parse a file's content; ``name`` decides between JSON (``.json``) and YAML, and begins every message."""
    manifests: list[Manifest] = []
    problems: list[str] = []
    try:
        text = decoded(data)
    except UnreadableError as e:
        return Parsed(problems=(f"{name}: {e}",))
    number = 0
    try:
        if name.endswith(".json"):
            found_in = iter([documents.from_json(text)] if text.strip() else [])
        else:
            found_in = documents.from_yaml(text)
        for number, document in enumerate(found_in, 1):
            if document is None:
                continue  # nothing between two "---"
            for where, item in _items(f"{name}: document {number}", document):
                found = manifest_of(where, item)
                if isinstance(found, Manifest):
                    manifests.append(found)
                    problems.extend(found.problems)
                else:
                    problems.append(found)
    except UnreadableError as e:
        problems.append(f"{name}: document {number + 1}: {e}")
    if not manifests and not problems:
        problems.append(f"{name}: holds no Pod; write one, or remove the file")
    return Parsed(tuple(manifests), tuple(problems))


def _items(where: str, document: Any) -> Iterable[tuple[str, Any]]:
    """The objects of one document: itself, or the items of a v1 List."""
    if isinstance(document, dict) and document.get("kind") in _LISTS and isinstance(document.get("items"), list):
        for i, item in enumerate(document["items"]):
            # The kubelet's and the API server's PodList leave kind out of the items.
            yield f"{where}: items[{i}]", {"kind": "Pod"} | item if isinstance(item, dict) else item
    else:
        yield where, document


def manifest_of(where: str, obj: Any) -> Manifest | str:
    """A Manifest, or the line that says why it is none."""
    if not isinstance(obj, dict):
        return f"{where}: not a Pod but {shown(obj)}; a manifest is a mapping with kind: Pod"
    if obj.get("kind") != "Pod" or obj.get("apiVersion", "v1") != "v1":
        kind = f"apiVersion {shown(obj.get('apiVersion', 'v1'))}, kind {shown(obj.get('kind'))}"
        return (
            f"{where}: kind: not a v1 Pod but {kind}; give a Pod (of a Deployment, its pods: kubectl get pod -o yaml)"
        )
    try:
        pod = pod_from_object(obj)
    except (PolicyError, UnicodeEncodeError) as e:  # JSON can spell half a surrogate pair, which is no character
        return f"{where}: {one_line(e)}; correct the key"
    containers = {c.name for c in (*pod.containers, *pod.init_containers)}
    checked = [
        ("metadata.name", pod.name, _NAME),
        ("metadata.namespace", pod.namespace, _NAME),
        ("metadata.uid", pod.uid, _UID),
        *(("spec.containers[].name", name, _NAME) for name in sorted(containers)),
    ]
    for key, name, allowed in checked:
        if not allowed.fullmatch(name):
            return f"{where}: {key}: {shown(name)} is not one that Kubernetes allows; use a-z, 0-9, '-' and '.'"
    problems = [
        f"{where}: metadata.annotations[{shown(key)}]: the pod has no such container; name one that it has"
        for key in pod.annotations
        if key.startswith(f"{POD_CGROUP}.") and key.removeprefix(f"{POD_CGROUP}.") not in containers
    ]
    if is_static(pod) and not is_mirror(pod) and obj["metadata"].get("resourceVersion"):
        # Its author wrote that: what has a version is the API server's, and no static pod, which is never evicted.
        pod = replace(pod, annotations={**pod.annotations, SOURCE: "api"})
        problems.append(
            f"{where}: metadata.annotations[{SOURCE}] is ignored, because the pod is the API server's "
            "(metadata.resourceVersion); remove it"
        )
    return Manifest(where, pod, _container_ids(_map(obj, "status")), tuple(problems))


def _container_ids(status: Mapping[str, Any]) -> dict[str, str]:
    """Container name -> id from a pod's status, as ``containerd://ID`` there."""
    listed = ((one.get("name"), one.get("containerID")) for key in _STATUSES for one in _list(status.get(key)))
    return {
        name: ident.rpartition("//")[2] for name, ident in listed if isinstance(name, str) and isinstance(ident, str)
    }


# ---- a Pod as the API server or the kubelet serves it: what of it is kept, and what is made of it

#: The author of a pod decides how much is in it, up to 1.5 MB: this many labels, so many characters of a text, and
#: `MOST_CONTAINERS` of each list are kept. (A label's value has at most 63 characters.)
_MOST, _LONGEST = 100, 1024
#: Annotations that decide something: where a static pod comes from, and which directory it has.
_ANNOTATIONS = (SOURCE, "kubernetes.io/config.mirror", "kubernetes.io/config.hash")
_SPECS = ("containers", "initContainers")
_STATUSES = ("containerStatuses", "initContainerStatuses")
#: What a resize in place can change, and the resources that a policy asks for.
_RESIZED = ("cpu", "memory")
_RESOURCES = (*_RESIZED, "ephemeral-storage")
_AMOUNTS = ("requests", "limits")

Object = dict[str, Any]


def kept(obj: Any) -> Object:
    """What is needed of a Pod, and is stored: about 1 KB of 10, no environment, no command, no secret. No annotation
    ``outrace/...``: the author of a pod may not name the cgroup that is killed.
    """
    made: Object = {"apiVersion": "v1", "kind": "Pod"}
    made |= {key: _pruned(_map(obj, key), shape) for key, shape in _SHAPE.items()}
    for of_spec, of_status in zip(_SPECS, _STATUSES, strict=True):
        names = {str(one.get("name")) for one in made["spec"].get(of_spec, ())}
        statuses = (_pruned(one, _CONTAINER_STATUS) for one in _list(_map(obj, "status").get(of_status)))
        made["status"][of_status] = [one for one in statuses if str(one.get("name")) in names]
    return made


def manifest(where: str, obj: Mapping[str, Any]) -> Manifest | str:
    """The pod of a `kept` object, or the line that says why it is none."""
    return manifest_of(where, _allocated(obj))


def _allocated(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    """With the requests that the kubelet has granted while a resize in place is not done (KEP-1287): it ranks by them
    (Kubernetes 1.36: evictionManager.Start has getAllocatedPods). So of the whole pod (KEP-5419), where it has
    resources of its own.
    """
    spec, status = _map(obj, "spec"), _map(obj, "status")
    changed: Object = {}
    of_pod = _map(status, "allocatedResources") or _map(_map(status, "resources"), "requests")
    if of_pod and isinstance(spec.get("resources"), Mapping):
        changed["resources"] = _resized(spec["resources"], of_pod)
    statuses = [one for key in _STATUSES for one in _list(status.get(key))]
    granted = {str(one.get("name")): its for one in statuses if (its := _map(one, "allocatedResources"))}

    def allocated(one: Object) -> Object:
        its = granted.get(str(one.get("name")))
        return one if its is None else {**one, "resources": _resized(one.get("resources"), its)}

    changed |= {key: list(map(allocated, _list(spec.get(key)))) for key in _SPECS if granted}
    return {**obj, "spec": {**spec, **changed}} if changed else obj


def _resized(resources: Any, granted: Mapping[str, Any]) -> Object:
    """These resources with the requests that are granted. What was not granted yet is none."""
    now = {**_map(resources, "requests"), **{name: granted.get(name) for name in _RESIZED}}
    requests = {name: amount for name, amount in now.items() if amount is not None}
    return {**(resources if isinstance(resources, Mapping) else {}), "requests": requests}


def _pruned(obj: Any, shape: Any) -> Any:
    """What of an object has a place in a shape: a map of shapes, a list of one, a function of it, or None, which keeps
    all that is no text. What is no map stays, to be reported.
    """
    if callable(shape):
        return shape(obj)
    if isinstance(shape, list):
        return [_pruned(one, shape[0]) for one in _list(obj)[:MOST_CONTAINERS]]
    if shape is None or not isinstance(obj, Mapping):
        return obj[:_LONGEST] if isinstance(obj, str) else obj
    return {key: _pruned(obj[key], inner) for key, inner in shape.items() if key in obj}


def _amounts(found: Any) -> Any:
    """Of the resources that a policy reads: a tenant may name 100,000 others."""
    if not isinstance(found, Mapping):
        return found
    huge = (key for key in found if isinstance(key, str) and key.startswith("hugepages-"))
    return _some(found, (*_RESOURCES, *islice(huge, _MOST)))


def _volume(volume: Mapping[str, Any]) -> Object:
    """Which kind it is, and how large an emptyDir may be: what a configMap or projection holds may be much."""
    return {
        key: value if key == "name" else _some(value, ("medium", "sizeLimit")) if key == "emptyDir" else {}
        for key, value in volume.items()
        if value is not None
    }


def _labels(found: Any) -> Object:
    first = islice(found.items() if isinstance(found, Mapping) else (), _MOST)
    return {key: _pruned(value, None) for key, value in first}


def _some(obj: Any, keys: tuple[str, ...]) -> Object:
    return {key: obj[key] for key in keys if key in obj} if isinstance(obj, Mapping) else {}


def _map(obj: Any, key: str) -> Mapping[str, Any]:
    found = obj.get(key) if isinstance(obj, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _list(found: Any) -> list[Any]:
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


_OF_RESOURCES = dict.fromkeys(_AMOUNTS, _amounts)
_CONTAINER = {"name": None, "restartPolicy": None, "resources": _OF_RESOURCES}
_CONTAINER_STATUS = {"name": None, "containerID": None, "allocatedResources": _amounts}
_TOLERATION = dict.fromkeys(("key", "operator", "value", "effect", "tolerationSeconds"))
_SPEC = ("overhead", "priority", "priorityClassName", "restartPolicy", "terminationGracePeriodSeconds")
#: What is kept of a Pod.
_SHAPE: Mapping[str, Any] = {
    "metadata": {
        **dict.fromkeys(("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")),
        "annotations": dict.fromkeys(_ANNOTATIONS),
        "labels": _labels,
    },
    "spec": {
        **dict.fromkeys(_SPEC),
        "resources": _OF_RESOURCES,
        "tolerations": [_TOLERATION],
        "volumes": [_volume],
        **{key: [_CONTAINER] for key in _SPECS},
    },
    "status": {
        **dict.fromkeys(("phase", "qosClass", "reason", "message")),
        "allocatedResources": _amounts,
        "resources": _OF_RESOURCES,
    },
}
