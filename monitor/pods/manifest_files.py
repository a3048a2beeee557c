"""A file of Pod manifests, read: YAML (several documents) or JSON, Pods or v1 Lists. Never raises for bad content."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from monitor.policy.errors import PolicyError
from monitor.policy.pods import Pod, pod_from_object

SUFFIXES = (".yaml", ".yml", ".json")
#: A List of 110 pods as the API server prints it is about 1 MiB. Parsing YAML takes about a second for each.
MAX_BYTES = 8 << 20
POD_CGROUP = "outrace/cgroup"
#: Names end up in file names, log lines and metric labels: what Kubernetes allows in them, and in a uid a little more.
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_UID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_LISTS = ("List", "PodList")


@dataclass(frozen=True)
class Manifest:
    """One Pod of a file. ``where`` names file and document for messages; ``container_ids`` is what its status tells,
    container name -> id without the runtime's prefix.
    """

    where: str
    pod: Pod
    container_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def tree_uids(self) -> tuple[str, ...]:
        """The uids its directory in the kubepods tree may carry: a static pod's is the hash of its configuration."""
        hashes = (self.pod.annotations.get(f"kubernetes.io/config.{key}") for key in ("mirror", "hash"))
        return tuple(dict.fromkeys((self.pod.uid, *(h for h in hashes if h))))


@dataclass(frozen=True)
class Parsed:
    """What a file holds: its pods, and one line for everything in it that is none."""

    manifests: tuple[Manifest, ...] = ()
    problems: tuple[str, ...] = ()


def is_manifest_name(name: str) -> bool:
    """Whether a file of this name counts: dot files and editors' temporary ones (``a.yaml~``, ``#a.yaml#``) do not."""
    return name.endswith(SUFFIXES) and not name.startswith((".", "#", "~"))


def read(path: Path) -> Parsed:
    """Parse one file. Never waits for a writer, as opening a FIFO would; a network file system may still be slow."""
    try:
        # Looked at before it is opened, because opening alone makes some devices act; and again after, because it may
        # have been replaced.
        if not stat.S_ISREG(os.stat(path).st_mode):
            return _irregular(path)
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as f:
            if not stat.S_ISREG(os.fstat(f.fileno()).st_mode):
                return _irregular(path)
            data = f.read(MAX_BYTES + 1)
    except OSError as e:
        return Parsed(problems=(f"{path}: cannot be read: {e.strerror}; make it readable or remove it",))
    if len(data) > MAX_BYTES:
        return Parsed(problems=(f"{path}: larger than {MAX_BYTES >> 20} MiB; split it",))
    return parse(str(path), data)


def _irregular(path: Path) -> Parsed:
    return Parsed(problems=(f"{path}: not a regular file but a FIFO, socket or device; remove it",))


def parse(name: str, data: bytes) -> Parsed:
    """Parse a file's content; ``name`` decides between JSON (``.json``) and YAML, and begins every message."""
    manifests: list[Manifest] = []
    problems: list[str] = []
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        return Parsed(problems=(f"{name}: not UTF-8 at byte {e.start}; save it as UTF-8",))
    documents = 0
    try:
        for number, document in enumerate(_documents(name, text), 1):
            documents = number
            if document is None:
                continue  # nothing between two "---"
            for where, item in _items(f"{name}: document {number}", document):
                found = _manifest(where, item)
                if isinstance(found, Manifest):
                    manifests.append(found)
                else:
                    problems.append(found)
    except _Unreadable as e:
        problems.append(f"{name}: document {documents + 1}: {e}")
    if not manifests and not problems:
        problems.append(f"{name}: holds no Pod; write one, or remove the file")
    return Parsed(tuple(manifests), tuple(problems))


class _Unreadable(Exception):
    """The text is not YAML or JSON; says where and what to do."""


def _documents(name: str, text: str) -> Iterator[Any]:
    if name.endswith(".json"):
        if not text.strip():
            return
        try:
            yield json.loads(text)
        except RecursionError:
            raise _Unreadable("nested too deeply; a Pod needs no more than 20 levels") from None
        except ValueError as e:
            raise _Unreadable(f"not JSON: {e}; correct the syntax") from None
        return
    import yaml  # 1 MB that a node without YAML manifests need not carry

    documents = yaml.load_all(text, _loader())
    while True:
        try:
            document = next(documents)
        except StopIteration:
            return
        except RecursionError:
            raise _Unreadable("nested too deeply; a Pod needs no more than 20 levels") from None
        except yaml.MarkedYAMLError as e:
            mark = e.problem_mark or e.context_mark
            line = f" at line {mark.line + 1}" if mark else ""
            reason = " ".join(str(e.problem or e.context).split())
            raise _Unreadable(f"not YAML{line}: {reason}; correct the syntax") from None
        # Besides YAMLError, PyYAML's constructors let out whatever Python raises for a scalar that does not fit its
        # explicit tag: ValueError for !!int x, KeyError for !!bool x, IndexError for an empty !!int, and so on.
        except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as e:
            raise _Unreadable(
                f"not YAML: {str(e).splitlines()[0] if str(e) else type(e).__name__}; correct it"
            ) from None
        yield document


@cache
def _loader() -> Any:
    """A YAML loader that reads what Kubernetes reads: plain JSON values. A creationTimestamp stays text."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # with libyaml 10 times faster
    resolvers = {
        first: [(tag, regexp) for tag, regexp in entries if tag != "tag:yaml.org,2002:timestamp"]
        for first, entries in base.yaml_implicit_resolvers.items()
    }
    return type("ManifestLoader", (base,), {"yaml_implicit_resolvers": resolvers})


def _items(where: str, document: Any) -> Iterable[tuple[str, Any]]:
    """The objects of one document: itself, or the items of a v1 List."""
    if isinstance(document, dict) and document.get("kind") in _LISTS and isinstance(document.get("items"), list):
        for i, item in enumerate(document["items"]):
            # The kubelet's and the API server's PodList leave kind out of the items.
            named = item if not isinstance(item, dict) or "kind" in item else {"kind": "Pod", **item}
            yield f"{where}: items[{i}]", named
    else:
        yield where, document


def _manifest(where: str, obj: Any) -> Manifest | str:
    """A Manifest, or the line that says why it is none."""
    if not isinstance(obj, dict):
        return f"{where}: not a Pod but {_shown(obj)}; a manifest is a mapping with kind: Pod"
    if obj.get("kind") != "Pod" or obj.get("apiVersion", "v1") != "v1":
        kind = f"apiVersion {_shown(obj.get('apiVersion', 'v1'))}, kind {_shown(obj.get('kind'))}"
        return (
            f"{where}: kind: not a v1 Pod but {kind}; give a Pod (of a Deployment, its pods: kubectl get pod -o yaml)"
        )
    try:
        pod = pod_from_object(obj)
    except (PolicyError, UnicodeEncodeError) as e:  # JSON can spell half a surrogate pair, which is no character
        return f"{where}: {' '.join(str(e).split())}; correct the key"
    containers = {c.name for c in (*pod.containers, *pod.init_containers)}
    checked = [
        ("metadata.name", pod.name, _NAME),
        ("metadata.namespace", pod.namespace, _NAME),
        ("metadata.uid", pod.uid, _UID),
        *(("spec.containers[].name", name, _NAME) for name in sorted(containers)),
    ]
    for key, name, allowed in checked:
        if not allowed.fullmatch(name):
            return f"{where}: {key}: {_shown(name)} is not one that Kubernetes allows; use a-z, 0-9, '-' and '.'"
    for key in pod.annotations:
        container = key.removeprefix(f"{POD_CGROUP}.")
        if container != key and container not in containers:
            return f"{where}: metadata.annotations[{_shown(key)}]: the pod has no such container; name one that it has"
    return Manifest(where, pod, _container_ids(obj.get("status")))


def _container_ids(status: Any) -> dict[str, str]:
    """Container name -> id from a pod's status, as ``containerd://ID`` there; empty for what is no status."""
    ids: dict[str, str] = {}
    for key in ("containerStatuses", "initContainerStatuses"):
        entries = status.get(key) if isinstance(status, dict) else None
        for entry in entries if isinstance(entries, list) else ():
            if (
                isinstance(entry, dict)
                and isinstance(entry.get("name"), str)
                and isinstance(entry.get("containerID"), str)
            ):
                ids[entry["name"]] = entry["containerID"].rpartition("//")[2]
    return ids


def _shown(value: Any) -> str:
    """A value for a message, in at most 40 characters of one line."""
    text = (
        "nothing" if value is None else repr(value) if isinstance(value, str) else f"{type(value).__name__} {value!r}"
    )
    return text if len(text) <= 40 else text[:37] + "..."
