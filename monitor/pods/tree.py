"""Pods by the kubepods tree alone, without names, priorities or specs."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from monitor.errors import MonitorError
from monitor.kernel import cgroup_procs, cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.procfs import Process
from monitor.pods.cgroup_tree import PodDir, class_dirs, containers_in, kubepods_of, not_believed, pods_in, search_dirs
from monitor.pods.inotify import CGROUP_FILES, CHILDREN
from monitor.pods.model import FoundPod, PodSource, Scan, Within
from monitor.policy.pods import Container, Pod, Resources
from monitor.policy.quantity import Quantity

#: How the API server makes a pod's uid. A static pod's is the hash of its configuration: 32 hex digits, no dashes.
_API_UID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class TreeSource(PodSource):
    """Pods by the kubepods tree alone (``--pods cgroups``), which are observed and never evicted.

    Namespace "", name = uid, containers by their ids (the sandbox's too). The class is the directory's. A Guaranteed
    container's request is its limit, a Burstable one's is guessed from oom_score_adj. No spec is known: no priority.
    """

    def __init__(self, mem_total: int, within: Within) -> None:
        super().__init__(within)
        self._mem_total = mem_total
        self._requests: dict[int, int] = {}  # of Burstable containers, by cgroup id: fixed once processes are in them

    def _scan(self) -> Scan:
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
        live: dict[int, int] = {}
        spared = self._spared_cgroups()
        for pod_dir in pods_in(kubepods):
            scan.watch[pod_dir.path] = CGROUP_FILES
            if vital := spared.get(pod_dir.path):
                what = f"{pod_dir.path} holds {vital}"
                scan.problems.append(f"pod {pod_dir.uid}: {what}: the pod is not watched, and never evicted by outrace")
                continue
            try:
                scan.add(self._describe(pod_dir, live, scan))
            except cgroupfs.CgroupGone:
                continue  # it went away while we looked: the next poll sees the tree without it
            except MonitorError as e:
                scan.problems.append(str(e))
        self._requests = live
        return scan

    def _describe(self, pod_dir: PodDir, live: dict[int, int], scan: Scan) -> FoundPod:
        made: list[Container] = []
        total, guaranteed = 0, pod_dir.qos == "Guaranteed"
        ids = [cgroupfs.cgroup_id(pod_dir.path)]
        containers = containers_in(pod_dir.path)
        for name, path in containers.items():
            key = cgroupfs.cgroup_id(path)
            request = None
            if guaranteed:
                request = cgroupfs.limit(path)
            elif pod_dir.qos == "Burstable":
                request = self._requests.get(key) or burstable_request(path, self._mem_total)
                if request is None:  # the runtime sets it up still, or it is the sandbox
                    scan.unsettled = True
                    scan.watch[path] = CGROUP_FILES
                else:
                    live[key] = request
            ids.append(key)
            total += request or 0
            amounts = _memory(request)
            made.append(Container(name, amounts, amounts if guaranteed else {}))
        # The pod's own limit counts what its containers do not show: overhead, init containers, ones not started yet.
        limit = cgroupfs.limit(pod_dir.path) if guaranteed else None
        whole = None if limit in (None, total) else Resources(_memory(limit), _memory(limit))
        static = "" if _API_UID.fullmatch(pod_dir.uid) else "its uid is no UUID of the API server: a static pod"
        pod = Pod(
            uid=pod_dir.uid,
            namespace="",
            name=pod_dir.uid,
            containers=tuple(made),
            resources=whole,
            qos_class_status=pod_dir.qos,
            spec_known=False,
            taken_critical=static,
        )
        return FoundPod(pod, pod_dir.path, containers, tuple(ids))


def _memory(amount: int | None) -> dict[str, Quantity]:
    return {} if amount is None else {"memory": Quantity.of_bytes(amount)}


# ---- what the processes of a container show

#: oom_score_adj the kubelet gives the containers of a Burstable pod (kubelet-eviction policy: max(3, ...), never 1000).
_BURSTABLE_ADJ = range(3, 1000)
#: The name of the program that a pod's sandbox runs, and the oom_score_adj that the container runtime gives it.
_PAUSE, _PAUSE_ADJ = "pause", -998


def burstable_request(path: Path, mem_total: int) -> int | None:
    """Bytes of a Burstable container's request by its processes' oom_score_adj; None while none has the kubelet's."""
    adjs: Counter[int] = Counter()
    for pid in cgroup_procs.processes(path):
        with Process(pid) as process:
            adj = process.oom_score_adj()
        if adj is not None and adj in _BURSTABLE_ADJ:
            adjs[adj] += 1
    # A process may raise its own value: so what most processes have, and of equals the highest.
    best, _ = max(adjs.items(), key=lambda item: (item[1], item[0]), default=(0, 0))
    return request_from_adj(best, mem_total) if best else None


def request_from_adj(adj: int, capacity: int) -> int:
    """The smallest request (bytes) that gives a Burstable container ``adj``; 999 stands for none, 3 for almost all."""
    return -(-(1000 - adj) * capacity // 1000)


def is_sandbox(hierarchy: Hierarchy, path: Path) -> bool:
    """Whether the cgroup is a pod's sandbox: one process alone in it, of a program called pause, started from outside
    the pod (by the runtime's shim), as no pod can. A runtime may leave its oom_score_adj as it was.
    """
    pids = cgroup_procs.processes(path)
    if len(pids) != 1:
        return False
    with Process(pids[0]) as process:
        adj, exe = process.oom_score_adj(), process.exe()
        # Without CAP_SYS_PTRACE the program is not readable: then the name will do, with the score.
        named = process.comm() == _PAUSE and adj == _PAUSE_ADJ if exe is None else Path(exe).name == _PAUSE
        if adj is None or not named:
            return False
        parent = process.parent()
    if not parent:
        return parent == 0  # of another pid namespace
    with Process(parent) as shim:
        above = shim.memory_cgroup(hierarchy)
    return above is None or not above.is_relative_to(path.parent)
