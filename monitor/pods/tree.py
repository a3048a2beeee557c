"""Pods by the kubepods tree alone, without names, priorities or specs."""

from __future__ import annotations

import re

from monitor.errors import MonitorError
from monitor.kernel import cgroupfs
from monitor.pods.cgroup_tree import PodDir, class_dirs, containers_in, not_believed, search_dirs
from monitor.pods.inotify import CHILDREN
from monitor.pods.manifest_files import Manifest
from monitor.pods.model import Scan
from monitor.pods.spec_source import SpecSource
from monitor.policy.pods import Container, Pod
from monitor.policy.quantity import Quantity

#: How the API server makes a pod's uid. A static pod's is the hash of its configuration: 32 hex digits, no dashes.
_API_UID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class TreeSource(SpecSource):
    """Pods by the kubepods tree alone (``--pods cgroups``), which are observed and never evicted.

    Namespace "", name = uid, containers by their ids (the sandbox's too). The class is the directory's. A Guaranteed
    container's request is its limit. No spec is known: no priority, and of other pods no request.
    """

    HOLDS_US = "it is never evicted by outrace"
    AWAITS = False

    def _scan(self) -> Scan:
        scan = Scan()
        self._find_kubepods()
        manifests = []
        for one in self._dirs.values():
            try:
                manifests.append(_described(one))
            except cgroupfs.CgroupGone:
                continue  # while we looked: the next poll sees the tree without it
            except MonitorError as error:
                scan.problems.append(f"pod {one.uid}: {error}")
        self._match(scan, manifests)
        if self.kubepods is None:
            scan.watch.update(dict.fromkeys(search_dirs(self.node), CHILDREN))
            why = not_believed(self.hierarchy, self.node, self._cgroup_root)
            scan.problems.append(
                f"no kubepods cgroup under {self.node}{f' ({why})' if why else ''}: no pods to watch; it appears with "
                "the kubelet, or describe pods yourself: --pods manifests:DIR"
            )
        else:
            above = self.kubepods.parent, *class_dirs(self.kubepods)
            scan.watch.update(dict.fromkeys((*above, *(found.cgroup for found in scan.pods.values())), CHILDREN))
        return scan


def _described(one: PodDir) -> Manifest:
    containers: list[Container] = []
    for name, path in containers_in(one.path).items():
        limit = cgroupfs.limit(path) if one.qos == "Guaranteed" else None
        amounts = {} if limit is None else {"memory": Quantity.of_bytes(limit)}
        containers.append(Container(name, amounts, amounts))
    static = "" if _API_UID.fullmatch(one.uid) else "its uid is no UUID of the API server: a static pod"
    pod = Pod(
        uid=one.uid,
        namespace="",
        name=one.uid,
        containers=tuple(containers),
        qos_class_status=one.qos,
        spec_known=False,
        taken_critical=static,
    )
    return Manifest(f"pod {one.uid}", pod, {container.name: container.name for container in containers})
