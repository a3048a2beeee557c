"""A small node made out of one cgroup: its limit is the node's memory, its children are pods with manifests.

Used by the demo, the benchmarks and the tests, on the real kernel. Nothing outside the node's own cgroup is touched,
and it disappears however the owner ends (monitor/lab/janitor.py).
"""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Literal, Self

from monitor.errors import CannotError, MonitorError
from monitor.kernel import cgroup_procs, cgroupfs, loader, mounts
from monitor.lab.child import Child, Janitor
from monitor.lab.janitor import remove_tree, thaw

Qos = Literal["Guaranteed", "Burstable", "BestEffort"]
MIB = 1 << 20


@dataclass(frozen=True)
class LabPod:
    """A pod of the lab node: its cgroups and the manifest that names them."""

    namespace: str
    name: str
    uid: str
    qos: Qos
    cgroup: Path
    containers: dict[str, Path]
    manifest: Path


class LabNode:
    """Context manager: a cgroup `outrace-NAME-PID` limited to ``memory_bytes``, pods in it, and their manifests.

    ``with_freezer``: the pods have cgroups of the same names in cgroup v1's freezer, as those of a runtime have.
    ``parent``: the cgroup that the node's is made in, if not the root. ``swaps``: the node may swap.
    """

    def __init__(
        self,
        name: str,
        memory_bytes: int,
        *,
        with_freezer: bool = False,
        parent: Path | None = None,
        swaps: bool = False,
    ) -> None:
        self.memory_bytes = memory_bytes
        self.hierarchy = cgroupfs.detect()
        self.pods: dict[str, LabPod] = {}
        self.children: list[Child] = []
        stem = f"outrace-{name}-{os.getpid()}"
        names = (stem, *(f"{stem}-{number}" for number in range(2, 1000)))
        root = parent or self.hierarchy.root
        self.cgroup = next(path for name in names if not (path := root / name).exists())
        self._swaps = swaps
        self.manifests = Path(tempfile.gettempdir())  # until __enter__
        freezer = cgroupfs.freezer() if with_freezer and self.hierarchy.version == 1 else None
        #: The node's cgroup in v1's freezer.
        self.freezer = None if freezer is None else freezer / self.cgroup.name
        self._janitor: Janitor | None = None
        self._peak: FileIO | None = None

    def __enter__(self) -> Self:
        # The janitor first: whatever is made after it has someone to remove it.
        self._janitor = Janitor()
        try:
            self.also_remove(self.cgroup)
            self.manifests = Path(tempfile.mkdtemp(prefix=f"{self.cgroup.name}-"))
            self.also_remove(self.manifests)
            cgroupfs.make(self.cgroup)
            cgroupfs.set_limit(self.cgroup, self.memory_bytes)
            controllers = self.hierarchy.root / "cgroup.controllers"
            if self.hierarchy.version == 2 and "pids" in controllers.read_text().split():
                cgroupfs.enable_controllers(self.cgroup, ("pids",))  # as every pod of a kubelet has it
            if self.freezer is not None:
                self.also_remove(self.freezer)
                self.freezer.mkdir()
            # With swap, a full node swaps out instead of calling the OOM killer. v1's pods inherit their swappiness.
            for name in ("memory.swap.max", "memory.swappiness"):
                if not self._swaps and (self.cgroup / name).exists():
                    (self.cgroup / name).write_text("0")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the node's own processes, remove its cgroups and files. MonitorError if a cgroup would not go."""
        self.thaw()
        for child in self.children:
            child.close()
        self.children = []
        if self._peak is not None:
            self._peak.close()
        if self._janitor is None:
            return
        janitor, self._janitor = self._janitor, None
        if not janitor.finish():
            held = cgroup_procs.processes(self.cgroup)
            raise MonitorError(f"the lab's cgroup {self.cgroup} could not be removed: processes {held}")

    def also_remove(self, what: Path | int) -> None:
        """This directory or cgroup, which the owner made, is removed with the node, or this process of it ends."""
        assert self._janitor is not None, "the lab node has not been entered"
        self._janitor.send(what)

    def state_dir(self) -> Path:
        """A new state directory: it goes with the node, and so do the programs pinned for it."""
        directory = Path(tempfile.mkdtemp(prefix="outrace-state-"))
        self.also_remove(directory)
        self.also_remove(loader.instance_directory(directory))
        return directory

    def thaw(self) -> None:
        """Thaw the node, so that processes that a killed monitor froze can end."""
        if self.freezer is not None:
            thaw(str(self.freezer))

    # -- pods ----------------------------------------------------------------------------------------------------------

    def add_pod(
        self,
        name: str,
        qos: Qos = "BestEffort",
        request: int = 0,
        limit: int = 0,
        containers: int = 1,
        *,
        namespace: str = "lab",
        priority: int = 0,
        grace_s: int = 30,
        under: str = "",
    ) -> LabPod:
        """Make a pod: cgroup directories for it and its containers, and its manifest.

        ``request`` and ``limit`` are bytes of memory of the whole pod, shared evenly by the containers; a Guaranteed
        pod's limit is its request. A limit also limits the pod's cgroup. ``under``: the cgroup below the node's that
        the pod goes into, if not directly into that.
        """
        if qos == "Guaranteed":
            limit = limit or request
        uid = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.cgroup}/{namespace}/{name}"))
        cgroup = cgroupfs.make(self.cgroup / under / f"pod{uid}")
        if limit:
            cgroupfs.set_limit(cgroup, limit)
        directories = {f"c{i}": cgroupfs.make(cgroup / f"c{i}") for i in range(containers)}
        for frozen in filter(None, map(self.in_freezer, directories.values())):
            frozen.mkdir(parents=True)
        cpu = {"cpu": "100m"} if qos == "Guaranteed" else {}
        amounts = {"requests": request // containers, "limits": limit // containers}
        resources = {kind: {"memory": str(amount), **cpu} for kind, amount in amounts.items() if amount}
        spec = {
            "priority": priority,
            "terminationGracePeriodSeconds": grace_s,
            "containers": [{"name": c, "image": "lab", "resources": resources} for c in directories],
        }
        pod = LabPod(namespace, name, uid, qos, cgroup, directories, self.manifests / f"{namespace}-{name}.json")
        self._write_manifest(pod, spec)
        self.pods[name] = pod
        return pod

    def _write_manifest(self, pod: LabPod, spec: dict[str, Any]) -> None:
        relative = pod.cgroup.relative_to(self.hierarchy.root)
        containers = {f"outrace/cgroup.{name}": str(relative / name) for name in pod.containers}
        annotations = {"outrace/cgroup": str(relative), **containers}
        metadata = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "annotations": annotations}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        # Complete before it has its name: a watcher of the directory never reads half a manifest.
        unfinished = self.manifests / f".{pod.manifest.name}.new"
        unfinished.write_text(json.dumps(manifest, indent=1))
        unfinished.rename(pod.manifest)

    def in_freezer(self, cgroup: Path) -> Path | None:
        """The cgroup of the same name in v1's freezer; None where there is none."""
        return None if self.freezer is None else self.freezer / cgroup.relative_to(self.cgroup)

    def remove_pod(self, pod: LabPod) -> None:
        """Take the manifest away, end the pod's processes and remove its cgroups."""
        pod.manifest.unlink(missing_ok=True)
        frozen = self.in_freezer(pod.cgroup)
        if frozen is not None:
            thaw(str(frozen))
        remove_tree(str(pod.cgroup))
        if frozen is not None:
            remove_tree(str(frozen))
        self.pods.pop(pod.name, None)

    def start(self, where: LabPod | Path, worker: str, container: str = "c0", /, **options: object) -> Child:
        """Start a worker in a container of a pod, or a cgroup; it is ready."""
        child = self.begin(where, worker, container, **options)
        child.expect("ready")
        return child

    def begin(self, where: LabPod | Path, worker: str, container: str = "c0", /, **options: object) -> Child:
        """The same, but it is not ready yet."""
        cgroup = where if isinstance(where, Path) else where.containers[container]
        child = Child(worker, cgroup=cgroup, **options)
        self.children.append(child)
        return child

    def start_hog(self, where: LabPod | Path, container: str = "c0", **options: object) -> Child:
        """The same of a hog (options: monitor/lab/hog.py)."""
        frozen = None if isinstance(where, Path) else self.in_freezer(where.containers[container])
        return self.start(where, "monitor.lab.hog:hog", container, freezer=frozen or "", **options)

    def fill(self, pod: LabPod, mib: int, **options: Any) -> Child:
        """A hog in the first container of ``pod`` that has taken its memory."""
        hog = self.start_hog(pod, mib=mib, **options)
        hog.go()
        hog.expect("grown")
        return hog

    def end(self, child: Child) -> None:
        child.close()
        self.children.remove(child)

    # -- what the kernel counted ---------------------------------------------------------------------------------------

    def usage(self, pod: LabPod | None = None) -> int:
        """Bytes charged to the node, or to ``pod``, now."""
        return cgroupfs.read_cgroup(self.hierarchy, self.cgroup if pod is None else pod.cgroup).usage

    def oom_kills(self) -> int:
        """Processes the OOM killer killed in the node, as the kernel counts them."""
        if self.hierarchy.version == 2:  # counted with what is below it: one file, every 2 ms of a race
            return int((self.cgroup / "memory.events").read_text().partition("oom_kill ")[2].split()[0])
        directories = (self.cgroup, *cgroupfs.below(self.cgroup))
        return sum(cgroupfs.oom_kills(self.hierarchy, directory) or 0 for directory in directories)

    def reset_peak(self) -> None:
        """Start measuring `peak` anew (not on cgroup v2 before Linux 6.12). Raises CannotError where there is none."""
        path = self.cgroup / ("memory.peak" if self.hierarchy.version == 2 else "memory.max_usage_in_bytes")
        if not path.exists():
            raise CannotError("this kernel's cgroup v2 has no memory.peak", "run Linux 5.19 or newer")
        if self._peak is not None:
            self._peak.close()
        # On v2 the reset holds for reads through the same descriptor (Documentation/admin-guide/cgroup-v2).
        self._peak = FileIO(path, "r+" if os.access(path, os.W_OK) else "r")
        with suppress(OSError):
            self._peak.write(b"0")

    def peak(self) -> int:
        """The most bytes charged to the node at once since `reset_peak`."""
        assert self._peak is not None, "there was no reset"
        return int(os.pread(self._peak.fileno(), 32, 0))


def require_root(command: str) -> None:
    """Mount what is missing for a bench. CannotError if not root."""
    if os.geteuid() != 0:
        problem = f"{command} makes cgroups and loads BPF programs"
        raise CannotError(problem, f"run as root: sudo outrace {command}")
    mounts.ensure()
