"""Which cgroup is what: from the ids in kernel records to paths, pods and the part a cgroup plays on the node."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from monitor.errors import MonitorError
from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.procfs import Process
from monitor.pods.cgroup_tree import believed
from monitor.pods.model import FoundPod
from monitor.side.node_state import label


class NamedCgroup(NamedTuple):
    """A cgroup: ``path`` below the hierarchy's root, ``kind`` node, kubepods, pods, pod, container or outside.

    "pods" is one above pods and below the node that is not kubepods: of a QoS class, or kubepods' own parents.
    """

    path: str
    kind: str
    pod: str | None = None  # uid
    name: str | None = None  # namespace/name


class CgroupNames:
    """The cgroups known now. Ids of removed cgroups stay known for a while: a kill is reported after it happened."""

    #: Cgroups remembered after their pod went, or that are no pod's, 1 KB each; and those that are looked at for one.
    KEPT, SEARCHED = 1024, 4096

    def __init__(self, hierarchy: Hierarchy, node: Path) -> None:
        self._hierarchy = hierarchy
        self._node = node
        self._kubepods: Path | None = None
        self._pods: Mapping[str, FoundPod] = {}
        self._live: dict[int, NamedCgroup] = {}
        self._gone: dict[int, NamedCgroup] = {}
        self._learned: dict[str, tuple[FoundPod, dict[int, NamedCgroup]]] = {}  # by uid, of the pods known now
        self._roots: list[int] = []  # ids of the node and kubepods
        self._outside: set[int] = set()  # ids of cgroups that are not below the node

    def update(self, pods: Mapping[str, FoundPod], kubepods: Path | None) -> None:
        """Learn the cgroups of these pods; cheap when they are those of the last call."""
        if pods is self._pods and kubepods == self._kubepods:
            return
        if kubepods != self._kubepods:
            self._learned = {}
        self._pods, self._kubepods = pods, kubepods
        self._learned = {uid: self._of_pod(found) for uid, found in pods.items()}
        live: dict[int, NamedCgroup] = {}
        for _, names in self._learned.values():
            live |= names
        roots = [(path, kind) for path, kind in ((self._node, "node"), (kubepods, "kubepods")) if path is not None]
        known = {at: NamedCgroup(self._name(path), kind) for path, kind in roots if (at := _id(path)) is not None}
        self._roots, live = list(known), live | known
        for at in self._live.keys() - live.keys():
            self._keep(at, self._live[at])
        self._live = live

    def _of_pod(self, found: FoundPod) -> tuple[FoundPod, dict[int, NamedCgroup]]:
        """The names of a pod's cgroups, as they were learned if it is the same pod: with 500 of them 60 ms a change."""
        uid = found.pod.uid
        known = self._learned.get(uid)
        if known is not None and known[0] is found:
            return known
        names = dict[int, NamedCgroup]()
        for parent in found.cgroup.parents:
            if not parent.is_relative_to(self._hierarchy.root):
                break
            if (at := _id(parent)) is not None:
                names[at] = NamedCgroup(self._name(parent), "pods" if self._node in parent.parents else "outside")
        paths = ((found.cgroup, "pod"), *((path, "container") for path in found.containers.values()))
        for at, (path, kind) in reversed([*zip(found.cgroup_ids, paths, strict=True)]):  # a service is both
            names[at] = NamedCgroup(self._name(path), kind, uid, label(found.pod))
        return found, names

    def ids(self) -> list[int]:
        """Of the node, kubepods and the pods that are there."""
        return [*self._roots, *(found.cgroup_ids[0] for found in self._pods.values())]

    def of_cgroup(self, cgroup_id: int, pod: str | None = None) -> NamedCgroup:
        """What is known of a cgroup. An unknown cgroup of a process of ``pod`` lies within that pod."""
        found = self._known(cgroup_id)
        if found is not None:
            return found
        if pod is not None and (known := self._pods.get(pod)) is not None:
            return NamedCgroup(f"{self._name(known.cgroup)}/#{cgroup_id}", "container", pod, label(known.pod))
        return NamedCgroup(f"#{cgroup_id}", "outside")

    def knows(self, cgroup_id: int) -> bool:
        """Whether a cgroup is known to be the node or below it; does not search the tree."""
        return self._known(cgroup_id) is not None and self.locate(cgroup_id)

    def locate(self, cgroup_id: int) -> bool:
        """Whether a cgroup is the node or below it, as far as it is found: of a service the id is not known before."""
        known = self._known(cgroup_id)
        if known is not None:
            return known.kind != "outside" or self._node == self._hierarchy.root or self._is_below(known)
        if cgroup_id in self._outside:
            return False  # an earlier search did not find it: the kernel does not use ids again
        if (path := self._search(cgroup_id)) is not None:
            self._keep(cgroup_id, self._within(path))
            return True
        if len(self._outside) >= self.KEPT:
            self._outside.clear()
        self._outside.add(cgroup_id)
        return False

    def _search(self, cgroup_id: int) -> Path | None:
        """Level by level, in `SEARCHED` cgroups, 25 us each: a user makes 60,000, below the units that root made."""
        pending, left = deque([self._node]), self.SEARCHED
        while pending and left:
            path, left = pending.popleft(), left - 1
            if _id(path) == cgroup_id:
                return path
            with suppress(OSError), os.scandir(path) as entries:
                below = (Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
                pending.extend(islice(below, max(0, left - len(pending))))
        return None

    def is_of_a_pod(self, cgroup_id: int) -> bool:
        """Whether a cgroup is a pod's or within one. Searches the tree for an unknown one, as below a container's."""
        return bool(cgroup_id) and self.locate(cgroup_id) and self.of_cgroup(cgroup_id).pod is not None

    def _within(self, path: Path) -> NamedCgroup:
        """The name of a cgroup that is no known pod's or container's: part of the pod it lies in, or "outside". A pod
        is known up to a second after it was made: until then its uid is, where the path lies in the kubelet's tree.
        """
        known = next((one for one in self._above(path) if one.pod is not None), NamedCgroup("", ""))
        uid = known.pod
        if uid is None and (kube := believed(self._hierarchy, path)) is not None:
            uid = kube.uid if self._node in (self._hierarchy.root / kube.root).parents else None
        return NamedCgroup(self._name(path), "outside" if uid is None else "container", uid, known.name)

    def _above(self, path: Path) -> Iterator[NamedCgroup]:
        for above in path.parents:
            if (named := self._known(_id(above))) is not None:
                yield named

    def _is_below(self, named: NamedCgroup) -> bool:
        return named.path == self._name(self._node) or named.path.startswith(f"{self._name(self._node)}/")

    def of_process(self, pid: int, cgroup_id: int) -> NamedCgroup:
        """Where a process is: by its cgroup's id, else, while it lives, by the nearest cgroup above that is known."""
        if self._known(cgroup_id) is None:
            with Process(pid) as process:
                path = process.memory_cgroup(self._hierarchy)
            found = None if path is None else next(self._above(path), None)
            if found is not None:
                return found
        return self.of_cgroup(cgroup_id)

    def _known(self, at: int | None) -> NamedCgroup | None:
        return None if at is None else self._live.get(at) or self._gone.get(at)

    def _keep(self, at: int, named: NamedCgroup) -> None:
        self._gone[at] = named
        while len(self._gone) > self.KEPT:
            del self._gone[next(iter(self._gone))]

    def _name(self, path: Path) -> str:
        return f"/{path.relative_to(self._hierarchy.root)}" if path != self._hierarchy.root else "/"


def _id(path: Path) -> int | None:
    """A cgroup's id; None if it is gone, or has a path that the kernel refuses."""
    try:
        return cgroupfs.cgroup_id(path)
    except MonitorError:
        return None
