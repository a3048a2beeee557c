"""The kubelet's cgroup tree: what a path says about a pod, and every pod that is there.

Two drivers write two shapes, the same on cgroup v1 and v2, possibly below a --cgroup-root of the kubelet:

* cgroupfs: ``kubepods/burstable/pod<uid>/<container id>`` (a Guaranteed pod has no class directory)
* systemd:  ``kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope``,
  where the uid has underscores for dashes, because a dash makes a level of slices

All by name: whether a directory of that name is the kubelet's says `monitor.pods.kubepods`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from monitor.owner import distrust

_CLASSES = {"burstable": "Burstable", "besteffort": "BestEffort", "guaranteed": "Guaranteed"}
_SLICE_ROOT = re.compile(r"(?:[^/]+-)?kubepods\.slice")
_POD = re.compile(r"pod([A-Za-z0-9][A-Za-z0-9._-]*)")
#: conmon, CRI-O's per-container monitor, has a cgroup beside the container's and is no container.
_HELPER = re.compile(r"crio-conmon-")
#: How deep below the node, and in how many directories a level, containers are looked for that are in no kubepods.
_OUTSIDE_DEPTH, _MOST_OUTSIDE = 3, 2048


@dataclass(frozen=True)
class KubePath:
    """What a cgroup path says: the ``root`` (path of kubepods), and where the path reaches that far the QoS class, the
    pod's uid and the container's id.
    """

    root: str
    qos: str | None = None
    uid: str | None = None
    container: str | None = None


def parse(path: str) -> KubePath | None:
    """Read a cgroup path (relative to the hierarchy, as in /proc/PID/cgroup); None if it is not in a kubepods tree. The
    first kubepods directory counts: a cluster inside a pod belongs to that pod. What is in a container gives that.
    """
    parts = [p for p in path.split("/") if p]
    at = next((i for i, p in enumerate(parts) if is_kubepods(p)), None)
    if at is None:
        return None
    part = parts[at]
    driver = "cgroupfs" if part == "kubepods" else "systemd"
    kube = KubePath("/".join(parts[: at + 1]))
    rest = parts[at + 1 :]
    # systemd repeats the parent's name in each slice: kubepods-burstable.slice, kubepods-burstable-podUID.slice.
    stem = part.removesuffix(".slice")
    name = _own_name(rest, driver, stem)
    if name in _CLASSES:
        kube = replace(kube, qos=_CLASSES[name])
        rest = rest[1:]
        name = _own_name(rest, driver, f"{stem}-{name}")
    match = _POD.fullmatch(name)
    if match is None:
        return kube if not rest else None
    uid = match[1].replace("_", "-") if driver == "systemd" else match[1]
    container = container_id(rest[1]) if len(rest) > 1 else None
    return replace(kube, qos=kube.qos or "Guaranteed", uid=uid, container=container)


def _own_name(parts: list[str], driver: str, stem: str) -> str:
    """The last level of the first directory's name, without what systemd repeats; "" if there is none."""
    part = parts[0] if parts else ""
    if driver == "cgroupfs":
        return part
    return part[len(stem) + 1 : -len(".slice")] if part.startswith(f"{stem}-") and part.endswith(".slice") else ""


def container_id(name: str) -> str | None:
    """The container's id from its directory (``ID``, ``crio-ID``, ``cri-containerd-ID.scope``); None for a helper's."""
    if _HELPER.match(name) or name.endswith(".slice"):
        return None
    return name.removesuffix(".scope").rpartition("-")[2] or None


def is_kubepods(name: str) -> bool:
    """Whether a directory is called as the kubelet calls its own; `monitor.pods.kubepods` says whether it is that."""
    return name == "kubepods" or _SLICE_ROOT.fullmatch(name) is not None


class PodDir(NamedTuple):
    """A pod's directory in the kubepods tree."""

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
    """Directories in no kubepods, by what may be the id of a container, and by the slice that one was to be in: runc,
    without systemd, makes ``SLICE:PREFIX:ID`` in the cgroup of the runtime (``system.slice/containerd.service``). None
    that a user made: in a unit that is delegated to it, any number of any name.
    """
    found: dict[str, Path] = {}
    level = [node]
    for _ in range(_OUTSIDE_DEPTH):
        roots = (above for above in level if not distrust(above, above))
        level = [path for above in roots for path in children(above) if not is_kubepods(path.name)][:_MOST_OUTSIDE]
        for path in level:
            of_slice, _, own = path.name.rpartition(":")
            found |= {key: path for key in (of_slice.partition(":")[0], container_id(own)) if key}
    return found


def children(path: Path, most: int | None = None) -> list[Path]:
    """Its directories; ``most``: no more of them are read."""
    try:
        # A directory without directories in it has two links (one where they are not counted, as on btrfs). Most
        # cgroups have no children, but thirty files to go through.
        if os.stat(path).st_nlink == 2:
            return []
        with os.scandir(path) as entries:
            return sorted(islice((Path(e.path) for e in entries if e.is_dir(follow_symlinks=False)), most))
    except (FileNotFoundError, NotADirectoryError):
        return []  # gone meanwhile
