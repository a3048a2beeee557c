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
    if "ephemeral" in figures:
        made["ephemeral-storage"] = {"usedBytes": figures["ephemeral"]}
    return made


def _fs(figures: tuple[int, int]) -> dict[str, int]:
    return {"usedBytes": figures[0], "inodesUsed": figures[1]}


def summary(*pods: dict[str, Any], second: int = 0, **figures: int) -> dict[str, Any]:
    """An answer stamped at ``second``. Keywords are what is available: memory, kubepods, nodefs, imagefs, containerfs
    (of 100 GiB or 1,000 inodes with `_inodes`), pids of 32768.
    """
    time = {"time": f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}Z"}
    node: dict[str, Any] = {}
    for key in ("memory", "kubepods"):
        if key in figures:
            memory = {"availableBytes": figures[key], "workingSetBytes": 16 * GI - figures[key], **time}
            if key == "memory":
                node["memory"] = memory
            else:
                node["systemContainers"] = [{"name": "kubelet"}, {"name": "pods", "memory": memory}]
    for key, parent, name in (
        ("nodefs", "", "fs"),
        ("imagefs", "runtime", "imageFs"),
        ("containerfs", "runtime", "containerFs"),
    ):
        fs: dict[str, Any] = {}
        if key in figures:
            fs |= {"availableBytes": figures[key], "capacityBytes": 100 * GI, **time}
        if f"{key}_inodes" in figures:
            fs |= {"inodesFree": figures[f"{key}_inodes"], "inodes": 1000, **time}
        if fs:
            (node.setdefault(parent, {}) if parent else node)[name] = fs
    if "pids" in figures:
        node["rlimit"] = {"maxpid": 32768, "curproc": 32768 - figures["pids"], **time}
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
