"""Small pods, their order, and Summary API answers for tests."""

from typing import Any

from monitor.policy.layout import SINGLE_DISK, DiskLayout
from monitor.policy.pods import Pod, pod_from_object
from monitor.policy.releases import era
from monitor.policy.stats import PodStats
from monitor.policy.victims import Ranked, rank_pods

MI, GI = 2**20, 2**30


def pod(
    name: str,
    *containers: dict[str, Any],
    annotations: dict[str, str] | None = None,
    namespace: str = "ns",
    **spec: Any,
) -> Pod:
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "annotations": annotations or {}}
    return pod_from_object({"metadata": meta, "spec": {"containers": list(containers) or [{"name": "c"}], **spec}})


def container(name: str = "c", limits: dict[str, Any] | None = None, **requests: Any) -> dict[str, Any]:
    """Requests by keyword, `ephemeral_storage` for ephemeral-storage."""
    wanted = {key.replace("_", "-"): value for key, value in requests.items()}
    return {"name": name, "resources": {"requests": wanted, "limits": limits or {}}}


def stats(name: str, memory: int | None = None, processes: int | None = None, **figures: Any) -> dict[str, Any]:
    """One pod's entry. ``rootfs``, ``logs``: (bytes, inodes) of its container c; ``volumes``: the same by name."""
    made: dict[str, Any] = {"podRef": {"name": name, "namespace": "ns", "uid": f"uid-{name}"}}
    if memory is not None:
        made["memory"] = {"workingSetBytes": memory}
    if processes is not None:
        made["process_stats"] = {"process_count": processes}
    files = {key: _fs(figures[key]) for key in ("rootfs", "logs") if key in figures}
    made["containers"] = [{"name": "c", **files, **({"memory": made["memory"]} if memory is not None else {})}]
    made["volume"] = [{"name": key, **_fs(value)} for key, value in figures.get("volumes", {}).items()]
    return made


def _fs(figures: tuple[int, int]) -> dict[str, int]:
    return {"usedBytes": figures[0], "inodesUsed": figures[1]}


def summary(*pods: dict[str, Any], **available: int) -> dict[str, Any]:
    """An answer. Keywords: memory of 16 GiB, nodefs, imagefs of 100 GiB each."""
    time = {"time": "2026-01-01T00:00:01Z"}
    disks = {key: {"availableBytes": free, "capacityBytes": 100 * GI, **time} for key, free in available.items()}
    node: dict[str, Any] = {}
    if "memory" in available:
        free = available["memory"]
        node["memory"] = {"availableBytes": free, "workingSetBytes": 16 * GI - free, **time}
    if "nodefs" in available:
        node["fs"] = disks["nodefs"]
    if "imagefs" in available:
        node["runtime"] = {"imageFs": disks["imagefs"]}
    return {"node": node, "pods": list(pods)}


IMAGEFS, SPLIT = DiskLayout(True), DiskLayout(True, True)

MEMORY = "memory.available"


def ranked(
    pods: list[Pod],
    figures: list[dict[str, Any]],
    signal: str = MEMORY,
    layout: DiskLayout = SINGLE_DISK,
    name: str = "kubelet-1.36",
) -> list[Ranked]:
    known = {one.uid: one for one in map(PodStats, figures)}
    return rank_pods(signal, pods, known, layout, era(name))
