"""Pods by the kubepods tree alone, without names, priorities or specs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from monitor.errors import MonitorError
from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.pods.cgroup_tree import PodDir, class_dirs, pods_in
from monitor.pods.containers import InferredSpec, look
from monitor.pods.inotify import CGROUP_FILES, CHILDREN, Event
from monitor.pods.kubepods import kubepods_of, not_believed, search_dirs
from monitor.pods.model import RESCAN_S, FoundPod, PodSource, Scan
from monitor.policy.pods import Pod, pod_from_object

#: How the API server makes a pod's uid. A static pod's is the hash of its configuration: 32 hex digits, no dashes.
_API_UID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class TreeSource(PodSource):
    """Pods by the kubepods tree alone (``--pods cgroups``).

    Namespace "" and name = uid. The QoS class is the directory's. A Guaranteed container's request is its memory limit;
    a Burstable container's is recovered from its processes' oom_score_adj and is approximate. Containers are called by
    their ids. The sandbox (pause) is no container here, as it is none in a Pod. The spec is not known: no pod has a
    priority, and one that may be critical is taken for it (`_taken_critical`).
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        mem_total: int,
        node: Path | None = None,
        spared: Iterable[int] = (),
        cgroup_root: str = "",
    ) -> None:
        super().__init__(hierarchy, node, spared, cgroup_root)
        self._mem_total = mem_total
        self._settled: dict[int, InferredSpec] = {}  # by container cgroup id: fixed once processes are in it
        self._looked_s, self._again = time.monotonic(), False
        self._met_s: dict[int, float] = {}  # container cgroup id -> when it was first seen, while it is not settled
        #: Pod cgroup id -> whether a container of it had the score of a critical pod; absent while that is not known.
        self._spared_pods: dict[int, bool] = {}

    def _scan(self, events: Iterable[Event]) -> Scan:
        scan = Scan()
        kubepods = kubepods_of(self.hierarchy, self.node, self._cgroup_root)
        if kubepods is None:
            scan.watch.update(dict.fromkeys(search_dirs(self.node), CHILDREN))
            why = not_believed(self.hierarchy, self.node, self._cgroup_root)
            scan.problems.append(
                f"no kubepods cgroup under {self.node}{f' ({why})' if why else ''}: no pods to watch; it appears with "
                "the kubelet, or describe pods yourself: --pods manifests:DIR"
            )
            return scan
        for path in (kubepods.parent, *class_dirs(kubepods)):
            scan.watch[path] = CHILDREN
        self._again = time.monotonic() - self._looked_s >= RESCAN_S
        if self._again:
            self._looked_s = time.monotonic()
        live: dict[int, InferredSpec] = {}
        met: dict[int, float] = {}
        spared = self._spared_cgroups()
        for pod_dir in pods_in(kubepods):
            scan.watch[pod_dir.path] = CGROUP_FILES
            who = next((who for path, who in spared.items() if path.is_relative_to(pod_dir.path)), None)
            if who is not None:
                scan.problems.append(
                    f"pod {pod_dir.uid}: {pod_dir.path} holds {who}: the pod is not watched, and never evicted by "
                    "outrace"
                )
                continue
            try:
                scan.add(self._describe(pod_dir, live, met, scan))
            except cgroupfs.CgroupGone:
                continue  # it went away while we looked: the next poll sees the tree without it
            except MonitorError as e:
                scan.problems.append(str(e))
        self._settled, self._met_s = live, met
        known = {found.cgroup_ids[0] for found in scan.pods.values()}
        self._spared_pods = {at: spared for at, spared in self._spared_pods.items() if at in known}
        return scan

    def _describe(self, pod_dir: PodDir, live: dict[int, InferredSpec], met: dict[int, float], scan: Scan) -> FoundPod:
        containers: dict[str, Path] = {}
        specs: list[dict[str, Any]] = []
        own = cgroupfs.cgroup_id(pod_dir.path)
        ids = [own]
        for name, path in pod_dir.containers.items():
            key = cgroupfs.cgroup_id(path)
            inferred = self._settled.get(key)
            if inferred is None:
                inferred = self._look(pod_dir.qos, path, key, met)
            elif self._again and not inferred.sandbox:
                # Again once a minute: a process may have the score of a critical pod by now.
                now = self._look(pod_dir.qos, path, key, met)
                inferred = inferred._replace(spared=inferred.spared or bool(now and now.spared))
            request = None
            if inferred is None:
                scan.unsettled = True
                scan.watch[path] = CGROUP_FILES
            else:
                live[key] = inferred
                if inferred.sandbox:
                    continue
                self._spared_pods[own] = self._spared_pods.get(own, False) or inferred.spared
                request = inferred.request
            if pod_dir.qos == "Guaranteed":
                request = cgroupfs.limit(path)
            containers[name] = path
            ids.append(key)
            specs.append({"name": name, "resources": _resources(pod_dir.qos, request)})
        limit = cgroupfs.limit(pod_dir.path) if pod_dir.qos == "Guaranteed" else None
        pod = replace(_pod(pod_dir, specs, limit), taken_critical=self._taken_critical(pod_dir, own))
        return FoundPod(pod, pod_dir.path, containers, tuple(ids))

    def _look(self, qos: str, path: Path, key: int, met: dict[int, float]) -> InferredSpec | None:
        """What a container's processes show, if anything yet."""
        now = time.monotonic()
        met[key] = self._met_s.get(key, now)
        return look(self.hierarchy, qos, path, self._mem_total, now - met[key])

    def _taken_critical(self, pod_dir: PodDir, cgroup_id: int) -> str:
        """Why a pod whose spec is not known may be critical, and is never evicted; "" where its score says that it is
        not (the kubelet gives critical pods that are not system-node-critical the score of their class: those cannot
        be told apart).
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
    kinds = () if memory is None else ("requests", "limits") if qos == "Guaranteed" else ("requests",)
    return {kind: {"memory": str(memory)} for kind in kinds}


def _pod(pod_dir: PodDir, containers: list[dict[str, Any]], limit: int | None) -> Pod:
    spec: dict[str, Any] = {"containers": containers}
    requests = [c["resources"]["requests"]["memory"] for c in containers if c["resources"]]
    if limit is not None and limit != sum(map(int, requests)):
        # The pod's own limit counts what its containers do not show: overhead, init containers, ones not started yet.
        spec["resources"] = _resources("Guaranteed", limit)
    metadata, status = {"uid": pod_dir.uid, "name": pod_dir.uid}, {"qosClass": pod_dir.qos}
    pod = pod_from_object({"metadata": metadata, "spec": spec, "status": status})
    return replace(pod, namespace="", spec_known=False)
