"""Where the kubelet's pods are, and why a directory named kubepods is believed to be that.

Whoever has a cgroup delegated to them makes directories of any name in it. So kubepods, and all that is above it up to
the mount, belongs to root and is writable by nobody else; and it is where the kubelet puts it, or holds a pod that is
known by its uid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from monitor.kernel.cgroupfs import Hierarchy
from monitor.owner import distrust
from monitor.pods.cgroup_tree import KubePath, children, is_kubepods, parse, pods_in
from monitor.policy.qos import is_mirror, is_static

if TYPE_CHECKING:
    from monitor.pods.model import FoundPod
    from monitor.policy.pods import Pod

#: How deep below the node a kubepods directory is looked for: kind has it at /docker/ID/kubelet.slice/.
_MAX_DEPTH = 5
#: ... and among how many directories: a machine without a kubelet may have thousands of other cgroups.
_MAX_DIRS = 4096
#: Directories watched while there is no kubepods: inotify watches are a limited good (8192 a user on small machines).
_MAX_IDLE_WATCHES = 256
#: Of a static pod's configuration: MD5.
_HASH = re.compile(r"[0-9a-f]{32}")


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
        systemd = f"{stem}-kubepods.slice" if base not in (node, root) else "kubepods.slice"
        found += [base / name for name in dict.fromkeys(("kubepods", "kubepods.slice", systemd))]
    return [path for path in found if path.is_relative_to(node)]


def kubepods_of(hierarchy: Hierarchy, node: Path, cgroup_root: str = "") -> Path | None:
    """The kubepods directory of the cgroup that is treated as the node, where the kubelet puts it. Where both drivers'
    trees exist (the driver was changed), the one that holds pods.
    """
    found = [
        p for p in candidate_paths(node, hierarchy.root, cgroup_root) if p.is_dir() and not distrust(p, hierarchy.root)
    ]
    return next((path for path in found if any(pods_in(path))), found[0] if found else None)


def search(hierarchy: Hierarchy, node: Path, uids: Iterable[str]) -> Path | None:
    """The kubepods nearest to the node that holds one of these pods. Directories of others are not gone into."""
    known = set(uids)
    return next((path for path in _candidates(hierarchy, node) if any(one.uid in known for one in pods_in(path))), None)


def of_pod(hierarchy: Hierarchy, cgroup: Path, uids: Iterable[str]) -> Path | None:
    """The kubepods that a pod with one of these uids lies in, by the pod's cgroup; None if that is not believed."""
    if not cgroup.is_relative_to(hierarchy.root):
        return None
    kube = _believed(hierarchy, cgroup)
    return hierarchy.root / kube.root if kube and kube.uid in tuple(uids) else None


def _believed(hierarchy: Hierarchy, path: Path) -> KubePath | None:
    """What a path says, where it lies in a kubepods that root alone made."""
    kube = parse(str(path.relative_to(hierarchy.root)))
    return kube if kube and not distrust(hierarchy.root / kube.root, hierarchy.root) else None


def of_pods(hierarchy: Hierarchy, node: Path, pods: Iterable[FoundPod], cgroup_root: str = "") -> Path | None:
    """The node's kubepods, where the kubelet puts it or where known pods are."""
    return kubepods_of(hierarchy, node, cgroup_root) or next(
        (path for found in pods if (path := of_pod(hierarchy, found.cgroup, tree_uids(found.pod))) is not None), None
    )


def tree_uids(pod: Pod) -> tuple[str, ...]:
    """The uids that a pod's directory in the kubepods tree may carry: its own, a static pod's the hash of its
    configuration.

    Whoever may write a pod's annotations may write these. So they are believed of pods alone that are never evicted
    because of them, and only what is a hash and no other pod's uid.
    """
    if not (is_static(pod) or is_mirror(pod)):
        return (pod.uid,)
    hashes = (pod.annotations.get(f"kubernetes.io/config.{key}", "") for key in ("mirror", "hash"))
    return tuple(dict.fromkeys((pod.uid, *(text for text in hashes if _HASH.fullmatch(text)))))


def whose(hierarchy: Hierarchy, path: Path) -> str | None:
    """The uid of the pod of a kubelet that a cgroup is, or lies in; None if of none that is believed."""
    kube = _believed(hierarchy, path)
    return kube.uid if kube else None


def holds_pods(hierarchy: Hierarchy, path: Path) -> bool:
    """Whether a cgroup is not one pod's but a kubepods or class directory, or has kubepods below it.

    A cluster that runs inside a pod of kubepods belongs to that pod. Where root made a directory of that name it is
    believed here, wherever it is: the cgroup is then refused.
    """
    kube = _believed(hierarchy, path)
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
    level = [node]
    seen = 0
    for _ in range(_MAX_DEPTH):
        below = [child for parent in level for child in children(parent) if not distrust(child, child)]
        found = [c for c in sorted(below) if is_kubepods(c.name) and not distrust(c, hierarchy.root)]
        if found:
            return found
        seen += len(below)
        if seen > _MAX_DIRS:
            return []
        level = below
    return []


def search_dirs(node: Path) -> list[Path]:
    """Directories to watch while there is no kubepods: two levels cover nearly every one (kubelet.slice/...)."""
    return [node, *children(node)[:_MAX_IDLE_WATCHES]]
