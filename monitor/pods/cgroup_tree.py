"""The kubelet's cgroup tree: what a path says about a pod, every pod that is there, and where the tree is.

Two drivers write two shapes, the same on cgroup v1 and v2, possibly below a --cgroup-root of the kubelet:

* cgroupfs: ``kubepods/burstable/pod<uid>/<container id>`` (a Guaranteed pod has no class directory)
* systemd:  ``kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope``,
  where the uid has underscores for dashes, because a dash makes a level of slices

A name alone proves nothing: a user with a delegated cgroup makes directories of any name in it. So root owns kubepods
and all that is above it up to the mount, and no other user may write there; and kubepods is where the kubelet puts it,
or holds a pod that is known by its uid.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from monitor.kernel.cgroupfs import Hierarchy
from monitor.owner import distrust
from monitor.policy.qos import is_mirror, is_static

if TYPE_CHECKING:
    from monitor.policy.pods import Pod

_CLASSES = {"burstable": "Burstable", "besteffort": "BestEffort", "guaranteed": "Guaranteed"}
_SLICE_ROOT = re.compile(r"(?:[^/]+-)?kubepods\.slice")
_POD = re.compile(r"pod([A-Za-z0-9][A-Za-z0-9._-]*)")
#: conmon, CRI-O's per-container monitor, has a cgroup beside the container's and is no container.
_HELPER = re.compile(r"crio-conmon-")
#: How deep below the node containers are looked for that are in no kubepods.
_OUTSIDE_DEPTH = 3
#: How deep below the node a kubepods directory is looked for: kind has it at /docker/ID/kubelet.slice/.
_MAX_DEPTH = 5
#: ... and among how many directories: a machine without a kubelet may have thousands of other cgroups.
_MAX_DIRS = 4096
#: Directories watched while there is no kubepods: inotify watches are a limited good (8192 a user on small machines).
_MAX_IDLE_WATCHES = 256
#: Of a static pod's configuration: MD5.
_HASH = re.compile(r"[0-9a-f]{32}")


class KubePath(NamedTuple):
    """What a cgroup path says: the path of kubepods, and as far as it reaches the QoS class and the pod's uid."""

    root: str
    qos: str | None = None
    uid: str | None = None


def parse(path: str) -> KubePath | None:
    """Read a cgroup path (relative to the hierarchy, as in /proc/PID/cgroup); None if it is not in a kubepods tree. The
    first kubepods directory counts: a cluster inside a pod belongs to that pod. What is in a container gives that.
    """
    parts = [p for p in path.split("/") if p]
    at = next((i for i, p in enumerate(parts) if is_kubepods(p)), None)
    if at is None:
        return None
    root, rest = "/".join(parts[: at + 1]), parts[at + 1 :]
    # systemd repeats the parent's name in each slice: kubepods-burstable.slice, kubepods-burstable-podUID.slice.
    stem = "" if parts[at] == "kubepods" else parts[at].removesuffix(".slice")
    qos = _CLASSES.get(name := _own_name(rest, stem))
    if qos is not None:
        rest = rest[1:]
        name = _own_name(rest, stem and f"{stem}-{name}")
    match = _POD.fullmatch(name)
    if match is None:
        return KubePath(root, qos) if not rest else None
    return KubePath(root, qos or "Guaranteed", match[1].replace("_", "-") if stem else match[1])


def _own_name(parts: list[str], stem: str) -> str:
    """The first directory's name without what systemd repeats (``stem``; "" with the cgroupfs driver); "" if none."""
    part = parts[0] if parts else ""
    if not stem:
        return part
    return part[len(stem) + 1 : -len(".slice")] if part.startswith(f"{stem}-") and part.endswith(".slice") else ""


def container_id(name: str) -> str | None:
    """The container's id from its directory (``ID``, ``crio-ID``, ``cri-containerd-ID.scope``); None for a helper's."""
    if _HELPER.match(name) or name.endswith(".slice"):
        return None
    return name.removesuffix(".scope").rpartition("-")[2] or None


def is_kubepods(name: str) -> bool:
    return name == "kubepods" or _SLICE_ROOT.fullmatch(name) is not None


class PodDir(NamedTuple):
    uid: str
    qos: str
    path: Path


def class_dirs(kubepods: Path) -> list[Path]:
    """kubepods and its class directories that exist: the parents of pods."""
    stem = kubepods.name.removesuffix(".slice")
    names = [f"{stem}-{c}.slice" for c in _CLASSES] if kubepods.name.endswith(".slice") else list(_CLASSES)
    there = [path for name in names if (path := kubepods / name).is_dir()]
    return [kubepods, *(path for path in there if not distrust(path, path))]


def pods_in(kubepods: Path) -> Iterator[PodDir]:
    """Every pod below ``kubepods``, without a look into it."""
    for parent in class_dirs(kubepods):
        above = parent.relative_to(kubepods.parent)
        for path in children(parent):
            kube = parse(f"{above}/{path.name}")
            if kube is not None and kube.uid is not None and kube.qos is not None:
                yield PodDir(kube.uid, kube.qos, path)


def containers_in(pod_dir: Path) -> dict[str, Path]:
    """The directories of a pod's containers by container id, the sandbox's (pause) among them."""
    return {cid: path for path in children(pod_dir) if (cid := container_id(path.name))}


def outside(node: Path) -> dict[str, Path]:
    """Directories in no kubepods by container id, and by the slice that one was to be in: runc without systemd makes
    ``SLICE:PREFIX:ID`` in the cgroup of the runtime. None that a user made, which may have any name.
    """
    found: dict[str, Path] = {}
    for path in chain.from_iterable(islice(_levels(node), _OUTSIDE_DEPTH)):
        of_slice, _, own = path.name.rpartition(":")
        found |= {key: path for key in (of_slice.partition(":")[0], container_id(own)) if key}
    return found


def _levels(node: Path) -> Iterator[list[Path]]:
    """The directories at each depth below ``node``, without those in a kubepods, or in one that others can write."""
    level = [node]
    seen = 0
    while level and seen <= _MAX_DIRS:
        level = [path for above in level if not distrust(above, above) for path in children(above)]
        yield level
        seen += len(level)
        level = [path for path in level if not is_kubepods(path.name)]


def children(path: Path, most: int | None = None) -> list[Path]:
    """Its directories; ``most``: no more of them are read."""
    try:
        # Two links: no directories in it (btrfs has one for all). Most cgroups have no children, but thirty files.
        if os.stat(path).st_nlink == 2:
            return []
        with os.scandir(path) as entries:
            return sorted(islice((Path(e.path) for e in entries if e.is_dir(follow_symlinks=False)), most))
    except (FileNotFoundError, NotADirectoryError):
        return []  # gone meanwhile


# ---- where it is, and why it is believed to be the kubelet's


def candidate_paths(node: Path, root: Path, cgroup_root: str = "") -> list[Path]:
    """Where the kubelet puts kubepods, by either driver, whether it exists or not: below the ``node`` (or the node
    itself), or below the kubelet's ``cgroup_root`` in the node or in the hierarchy mounted at ``root``.
    """
    found = [node] if node != root and is_kubepods(node.name) else []
    parts = [part for part in cgroup_root.split("/") if part]
    bases = [node]
    if parts:
        # systemd has one level of slices for each: /a/b is a.slice/a-b.slice, a dash within a name an underscore.
        names = [part.replace("-", "_") for part in parts]
        slices = ["-".join(names[: i + 1]) + ".slice" for i in range(len(names))]
        bases += [base.joinpath(*way) for base in (node, root) for way in (parts, slices)]
    for base in dict.fromkeys(bases):
        stem = base.name.removesuffix(".slice")
        systemd = f"{stem}-kubepods.slice" if base != root else "kubepods.slice"
        found += [base / name for name in dict.fromkeys(("kubepods", "kubepods.slice", systemd))]
    return [path for path in found if path.is_relative_to(node)]


def kubepods_of(hierarchy: Hierarchy, node: Path, cgroup_root: str = "") -> Path | None:
    """The node's kubepods, where the kubelet puts it; of both drivers' trees the one that holds pods."""
    found = [
        p for p in candidate_paths(node, hierarchy.root, cgroup_root) if p.is_dir() and not distrust(p, hierarchy.root)
    ]
    return next((path for path in found if any(pods_in(path))), found[0] if found else None)


def search(hierarchy: Hierarchy, node: Path, uids: Iterable[str]) -> Path | None:
    """The kubepods nearest to the node that holds one of these pods. Directories of others are not gone into."""
    known = set(uids)
    return next((path for path in _candidates(hierarchy, node) if any(one.uid in known for one in pods_in(path))), None)


def believed(hierarchy: Hierarchy, path: Path) -> KubePath | None:
    """What the path of a cgroup says, where it lies in a kubepods that root alone made."""
    root = f"{hierarchy.root}/"
    kube = parse(os.fspath(path).removeprefix(root)) if os.fspath(path).startswith(root) else None
    return kube if kube and not distrust(hierarchy.root / kube.root, hierarchy.root) else None


def tree_uids(pod: Pod) -> tuple[str, ...]:
    """The uids that a pod's directory in the tree may carry: its own, a static pod's the hash of its configuration.

    A pod's author may write that annotation. It is believed only of pods that are never evicted because of it.
    """
    if not (is_static(pod) or is_mirror(pod)):
        return (pod.uid,)
    hashes = (pod.annotations.get(f"kubernetes.io/config.{key}", "") for key in ("mirror", "hash"))
    return tuple(dict.fromkeys((pod.uid, *(text for text in hashes if _HASH.fullmatch(text)))))


def holds_pods(hierarchy: Hierarchy, path: Path) -> bool:
    """Whether a cgroup is a kubepods or class directory, or has a kubepods of root's below it: then it is refused as
    one pod's. (A cluster inside a pod belongs to that pod.)
    """
    kube = believed(hierarchy, path)
    return kube.uid is None if kube else bool(_candidates(hierarchy, path))


def not_believed(hierarchy: Hierarchy, node: Path, cgroup_root: str = "") -> str:
    """Directories that are named like kubepods and are not, as a message; "" if there are none."""
    for path in candidate_paths(node, hierarchy.root, cgroup_root):
        if path.is_dir():
            return f"{distrust(path, hierarchy.root)}: not believed to be the kubelet's"
    for path in _candidates(hierarchy, node):
        if any(pods_in(path)):
            where = "give its cgroupRoot in --kubelet-config FILE"
            return f"{path} is not where the kubelet puts it by default: if it is, {where}"
    return ""


def _candidates(hierarchy: Hierarchy, node: Path) -> list[Path]:
    """Directories named so at the least depth below ``node`` at which there is one that root alone made."""
    for level in islice(_levels(node), _MAX_DEPTH):
        if found := [path for path in sorted(level) if is_kubepods(path.name) and not distrust(path, hierarchy.root)]:
            return found
    return []


def search_dirs(node: Path) -> list[Path]:
    """Directories to watch while there is no kubepods: two levels cover nearly every one (kubelet.slice/...)."""
    return [node, *children(node)[:_MAX_IDLE_WATCHES]]
