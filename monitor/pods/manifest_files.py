"""A file of Pod manifests, read: YAML (several documents) or JSON, Pods or v1 Lists. Never raises for bad content."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from monitor import documents
from monitor.documents import UnreadableError, decoded, one_line, shown
from monitor.owner import ChangeableError, mend, read_alone
from monitor.policy.errors import PolicyError
from monitor.policy.pods import Pod, pod_from_object
from monitor.policy.qos import SOURCE, is_mirror, is_static

SUFFIXES = (".yaml", ".yml", ".json")
POD_CGROUP = "outrace/cgroup"
#: Names end up in file names, log lines and metric labels: what Kubernetes allows in them, and in a uid a little more.
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_UID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_LISTS = ("List", "PodList")


@dataclass(frozen=True)
class Manifest:
    """One Pod. ``where``: file and document, for messages; ``container_ids``: of its status, name -> bare id."""

    where: str
    pod: Pod
    container_ids: Mapping[str, str] = field(default_factory=dict)
    #: Faults that the ranking ignores: the author of a pod may not take it out of the ranking by an annotation.
    problems: tuple[str, ...] = ()

    @property
    def is_starting(self) -> bool:
        """Whether its status does not name all of its containers' ids yet."""
        if self.pod.containers_summed:
            return False
        return self.pod.phase in ("", "Pending", "Running") and any(
            not self.container_ids.get(one.name) for one in self.pod.containers
        )


@dataclass(frozen=True)
class Parsed:
    """What a file holds: its pods, and one line for everything in it that is none."""

    manifests: tuple[Manifest, ...] = ()
    problems: tuple[str, ...] = ()


def is_manifest_name(name: str) -> bool:
    """Whether a file of this name counts: dot files and editors' temporary ones (``a.yaml~``, ``#a.yaml#``) do not."""
    return name.endswith(SUFFIXES) and not name.startswith((".", "#", "~"))


def read(path: Path) -> Parsed:
    """Parse one file, which root alone may have written. Never waits for a writer, as opening a FIFO would."""
    try:
        data = read_alone(path)
    except ChangeableError as e:
        return Parsed(problems=(f"{path}: {e.problem}, who could have any pod killed; {mend(e.problem)}",))
    except documents.NotAFileError as e:
        return Parsed(problems=(f"{path}: {e}; remove it",))
    except OSError as e:
        return Parsed(problems=(f"{path}: cannot be read: {e.strerror}; make it readable or remove it",))
    return parse(str(path), data)


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
    return Manifest(where, pod, _container_ids(obj.get("status")), tuple(problems))


def _container_ids(status: Any) -> dict[str, str]:
    """Container name -> id from a pod's status, as ``containerd://ID`` there; empty for what is no status."""
    ids: dict[str, str] = {}
    for key in ("containerStatuses", "initContainerStatuses"):
        entries = status.get(key) if isinstance(status, dict) else None
        for entry in entries if isinstance(entries, list) else ():
            name, ident = (entry.get("name"), entry.get("containerID")) if isinstance(entry, dict) else (None, None)
            if isinstance(name, str) and isinstance(ident, str):
                ids[name] = ident.rpartition("//")[2]
    return ids
