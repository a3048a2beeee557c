"""The kubelet's cgroup tree: what a path says about a pod, and every pod that is there.

Two drivers write two shapes, the same on cgroup v1 and v2, possibly below a --cgroup-root of the kubelet:

* cgroupfs: ``kubepods/burstable/pod<uid>/<container id>`` (a Guaranteed pod has no class directory)
* systemd:  ``kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope``,
  where the uid has underscores for dashes, because a dash makes a level of slices

A pod found only here has no name, no priority and no spec: see `TreeSource` for what is made of the cgroup alone.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from monitor.errors import MonitorError
from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.pods.containers import Told, look
from monitor.pods.inotify import CGROUP_FILES, CHILDREN, Event
from monitor.pods.model import FoundPod, PodSource, Scan
from monitor.policy.pods import Pod, pod_from_object

#: How deep below the hierarchy's root a kubepods directory is looked for: kind has it at /docker/ID/kubelet.slice/.
_MAX_DEPTH = 5
#: ... and among how many directories: a machine without a kubelet may have thousands of other cgroups.
_MAX_DIRS = 4096
#: Directories watched while there is no kubepods: inotify watches are a limited good (8192 a user on small machines).
_MAX_IDLE_WATCHES = 256
#: How the API server makes a pod's uid. A static pod's is the hash of its configuration: 32 hex digits, no dashes.
_API_UID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

_CLASSES = {"burstable": "Burstable", "besteffort": "BestEffort", "guaranteed": "Guaranteed"}
_SLICE_ROOT = re.compile(r"(?:[^/]+-)?kubepods\.slice")
_POD = re.compile(r"pod([A-Za-z0-9][A-Za-z0-9._-]*)")
#: conmon, CRI-O's per-container monitor, has a cgroup beside the container's and is no container.
_HELPER = re.compile(r"crio-conmon-")


@dataclass(frozen=True)
class KubePath:
    """What a cgroup path says: the ``root`` (path of kubepods), the driver, and where the path reaches that far the QoS
    class, the pod's uid and the container's id.
    """

    root: str
    driver: str  # "cgroupfs" or "systemd"
    qos: str | None = None
    uid: str | None = None
    container: str | None = None


def parse(path: str) -> KubePath | None:
    """Read a cgroup path (relative to the hierarchy, as in /proc/PID/cgroup); None if it is not in a kubepods tree.

    The first kubepods directory counts: a cluster running inside a pod belongs to that pod. A path of a cgroup inside a
    container gives the container.
    """
    parts = [p for p in path.split("/") if p]
    at = next((i for i, p in enumerate(parts) if _is_kubepods(p)), None)
    if at is None:
        return None
    part = parts[at]
    driver = "cgroupfs" if part == "kubepods" else "systemd"
    kube = KubePath("/".join(parts[: at + 1]), driver)
    rest = parts[at + 1 :]
    # systemd repeats the parent's name in each slice: kubepods-burstable.slice, kubepods-burstable-podUID.slice.
    stem = part.removesuffix(".slice")
    name = _own_name(rest[0], driver, stem) if rest else None
    if name in _CLASSES:
        kube = replace(kube, qos=_CLASSES[name])
        stem = f"{stem}-{name}"
        rest = rest[1:]
        name = _own_name(rest[0], driver, stem) if rest else None
    uid = _uid(name, driver)
    if uid is None:
        return kube if not rest else None
    container = container_id(rest[1]) if len(rest) > 1 else None
    return replace(kube, qos=kube.qos or "Guaranteed", uid=uid, container=container)


def _own_name(part: str, driver: str, stem: str) -> str | None:
    """The last level of a directory's name, without what systemd repeats."""
    if driver == "cgroupfs":
        return part
    if part.startswith(f"{stem}-") and part.endswith(".slice"):
        return part[len(stem) + 1 : -len(".slice")]
    return None


def _uid(name: str | None, driver: str) -> str | None:
    match = _POD.fullmatch(name) if name else None
    if match is None:
        return None
    return match[1].replace("_", "-") if driver == "systemd" else match[1]


def container_id(name: str) -> str | None:
    """The container's id from its directory (``ID``, ``crio-ID``, ``cri-containerd-ID.scope``); None for a helper's."""
    if _HELPER.match(name) or name.endswith(".slice"):
        return None
    return name.removesuffix(".scope").rpartition("-")[2] or None


def find_kubepods(hierarchy: Hierarchy) -> Path | None:
    """The kubepods directory nearest to the root of the hierarchy, or None if there is no kubelet.

    Where both drivers' trees exist (the driver was changed), the one that holds pods.
    """
    level = [hierarchy.root]
    seen = 0
    for _ in range(_MAX_DEPTH):
        children = [child for parent in level for child in _children(parent)]
        found = sorted(c for c in children if _is_kubepods(c.name))
        if found:
            return next((c for c in found if any(pods_in(c))), found[0])
        seen += len(children)
        if seen > _MAX_DIRS:
            return None
        level = children
    return None


def kubepods_of(hierarchy: Hierarchy, node: Path) -> Path | None:
    """The kubepods directory of the cgroup that is treated as the node: below it, or that cgroup itself."""
    if node != hierarchy.root and _is_kubepods(node.name):
        return node
    return find_kubepods(Hierarchy(hierarchy.version, node))


def _is_kubepods(name: str) -> bool:
    return name == "kubepods" or _SLICE_ROOT.fullmatch(name) is not None


def search_dirs(node: Path) -> list[Path]:
    """Directories to watch while there is no kubepods: two levels tell of nearly every one (kubelet.slice/...)."""
    return [node, *_children(node)[:_MAX_IDLE_WATCHES]]


def holds_pods(path: Path, hierarchy: Hierarchy) -> bool:
    """Whether a cgroup is not one pod's but a kubepods or class directory, or has kubepods below it.

    A cluster that runs inside a pod of kubepods belongs to that pod.
    """
    kube = parse(str(path.relative_to(hierarchy.root)))
    if kube is not None:
        return kube.uid is None
    return find_kubepods(Hierarchy(hierarchy.version, path)) is not None


@dataclass(frozen=True)
class PodDir:
    """A pod's directory in the kubepods tree, and its containers' directories by container id."""

    uid: str
    qos: str
    path: Path
    containers: Mapping[str, Path]


def class_dirs(kubepods: Path) -> list[Path]:
    """kubepods and its class directories that exist: the parents of pods."""
    stem = kubepods.name.removesuffix(".slice")
    names = [f"{stem}-{c}.slice" for c in _CLASSES] if kubepods.name.endswith(".slice") else list(_CLASSES)
    return [kubepods, *(path for name in names if (path := kubepods / name).is_dir())]


def pods_in(kubepods: Path) -> Iterator[PodDir]:
    """Every pod below ``kubepods``."""
    for parent in class_dirs(kubepods):
        for path in _children(parent):
            kube = parse(f"{kubepods.name}/{path.relative_to(kubepods)}")
            if kube is not None and kube.uid is not None and kube.qos is not None:
                yield PodDir(kube.uid, kube.qos, path, containers_in(path))


def containers_in(pod_dir: Path) -> dict[str, Path]:
    """The directories of a pod's containers by container id, the sandbox's (pause) among them."""
    return {cid: path for path in _children(pod_dir) if (cid := container_id(path.name))}


def find_pod(kubepods: Path, uid: str) -> Path | None:
    """The pod's directory by its uid, under whichever class it is."""
    for parent in class_dirs(kubepods):
        if kubepods.name.endswith(".slice"):
            path = parent / f"{parent.name.removesuffix('.slice')}-pod{uid.replace('-', '_')}.slice"
        else:
            path = parent / f"pod{uid}"
        if cgroupfs.exists(path):
            return path
    return None


def _children(path: Path) -> list[Path]:
    try:
        # A directory without directories in it has two links (one where they are not counted, as on btrfs). Most
        # cgroups have no children, but thirty files to go through.
        if os.stat(path).st_nlink == 2:
            return []
        with os.scandir(path) as entries:
            return sorted(Path(e.path) for e in entries if e.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return []  # gone meanwhile


class TreeSource(PodSource):
    """Pods by the kubepods tree alone (``--pods cgroups``).

    Namespace "" and name = uid. The QoS class is the directory's. A Guaranteed container's request is its memory limit;
    a Burstable container's is recovered from its processes' oom_score_adj and is approximate. Containers are called by
    their ids. The sandbox (pause) is no container here, as it is none in a Pod. The spec is not known: no pod has a
    priority, and one that may be critical is taken for it (`_taken_critical`).
    """

    def __init__(
        self, hierarchy: Hierarchy, mem_total: int, node: Path | None = None, spared: Iterable[int] = ()
    ) -> None:
        super().__init__(hierarchy, node, spared)
        self._mem_total = mem_total
        self._settled: dict[int, Told] = {}  # by container cgroup id: fixed once processes are in it
        self._met_s: dict[int, float] = {}  # container cgroup id -> when it was first seen, while it is not settled
        #: Pod cgroup id -> whether a container of it had the score of a critical pod; absent while none has told.
        self._spared_pods: dict[int, bool] = {}

    def _scan(self, events: Iterable[Event]) -> Scan:
        scan = Scan()
        kubepods = kubepods_of(self.hierarchy, self.node)
        if kubepods is None:
            scan.watch.update(dict.fromkeys(search_dirs(self.node), CHILDREN))
            scan.problems.append(
                f"no kubepods cgroup under {self.node}: no pods to watch; it appears with the kubelet, "
                "or describe pods yourself: --pods manifests:DIR"
            )
            return scan
        for path in (kubepods.parent, *class_dirs(kubepods)):
            scan.watch[path] = CHILDREN
        live: dict[int, Told] = {}
        met: dict[int, float] = {}
        spared = self._spared_cgroups()
        for pod_dir in pods_in(kubepods):
            scan.watch[pod_dir.path] = CGROUP_FILES
            pid = next((pid for path, pid in spared.items() if path.is_relative_to(pod_dir.path)), None)
            if pid is not None:
                scan.problems.append(
                    f"pod {pod_dir.uid}: {pod_dir.path} holds outrace itself (process {pid}): the pod is not watched, "
                    "and never evicted by outrace"
                )
                continue
            try:
                scan.pods[pod_dir.uid] = self._describe(pod_dir, live, met, scan)
            except cgroupfs.CgroupGone:
                continue  # it went away while we looked: the next poll sees the tree without it
            except MonitorError as e:
                scan.problems.append(str(e))
        self._settled, self._met_s = live, met
        known = {found.cgroup_ids[0] for found in scan.pods.values()}
        self._spared_pods = {at: spared for at, spared in self._spared_pods.items() if at in known}
        return scan

    def _describe(self, pod_dir: PodDir, live: dict[int, Told], met: dict[int, float], scan: Scan) -> FoundPod:
        containers: dict[str, Path] = {}
        specs: list[dict[str, Any]] = []
        own = cgroupfs.cgroup_id(pod_dir.path)
        ids = [own]
        for name, path in pod_dir.containers.items():
            key = cgroupfs.cgroup_id(path)
            told = self._settled.get(key) or self._look(pod_dir.qos, path, key, met)
            if told is None:
                scan.unsettled = True
                scan.watch[path] = CGROUP_FILES
            else:
                live[key] = told
            if told is not None and told.sandbox:
                continue
            if told is not None:
                self._spared_pods[own] = self._spared_pods.get(own, False) or told.spared
            request = None if told is None else told.request
            if pod_dir.qos == "Guaranteed":
                request = cgroupfs.limit(path)
            containers[name] = path
            ids.append(key)
            specs.append({"name": name, "resources": _resources(pod_dir.qos, request)})
        limit = cgroupfs.limit(pod_dir.path) if pod_dir.qos == "Guaranteed" else None
        pod = replace(_pod(pod_dir, specs, limit), taken_critical=self._taken_critical(pod_dir, own))
        return FoundPod(pod, pod_dir.path, containers, tuple(ids))

    def _look(self, qos: str, path: Path, key: int, met: dict[int, float]) -> Told | None:
        """What a container's processes tell, if they do yet."""
        now = time.monotonic()
        met[key] = self._met_s.get(key, now)
        return look(self.hierarchy, qos, path, self._mem_total, now - met[key])

    def _taken_critical(self, pod_dir: PodDir, cgroup_id: int) -> str:
        """Why a pod whose spec is not known may be critical, and is never evicted; "" where its score says that it is
        not (the kubelet gives critical pods that are not system-node-critical the score of their class: for those
        nothing tells).
        """
        if not _API_UID.fullmatch(pod_dir.uid):
            return "its uid is no UUID of the API server: a static pod"
        if pod_dir.qos == "Guaranteed":
            return "its spec is not known: Guaranteed pods have the score of critical ones"
        spared = self._spared_pods.get(cgroup_id)
        if spared is None:
            return "its spec is not known, nor are its processes yet"
        return "its spec is not known, but its oom_score_adj is that of system-node-critical pods" if spared else ""


def _resources(qos: str, memory: int | None) -> dict[str, Any]:
    if memory is None:
        return {}
    amount = {"memory": str(memory)}
    return {"requests": amount, "limits": amount} if qos == "Guaranteed" else {"requests": amount}


def _pod(pod_dir: PodDir, containers: list[dict[str, Any]], limit: int | None) -> Pod:
    spec: dict[str, Any] = {"containers": containers}
    told = [c["resources"]["requests"]["memory"] for c in containers if c["resources"]]
    if limit is not None and limit != sum(map(int, told)):
        # The pod's own limit counts what its containers do not show: overhead, init containers, ones not started yet.
        spec["resources"] = _resources("Guaranteed", limit)
    pod = pod_from_object(
        {
            "metadata": {"uid": pod_dir.uid, "name": pod_dir.uid},
            "spec": spec,
            "status": {"qosClass": pod_dir.qos},
        }
    )
    return replace(pod, namespace="", spec_known=False)
