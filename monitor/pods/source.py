"""The one door to pods: ``open_source("manifests:DIR" | "cgroups", ...)``.

source = open_source("manifests:/etc/outrace/pods", detect(), mem_total())
while select([source.fileno()], ..., timeout=1):    # or every second, where fileno() is None
    change = source.poll()
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from monitor.errors import ConfigError
from monitor.kernel.cgroupfs import Hierarchy
from monitor.pods.model import Change, FoundPod, PodSource
from monitor.pods.spec import check_spec

__all__ = ["Change", "FoundPod", "PodSource", "open_source"]


def open_source(
    spec: str,
    hierarchy: Hierarchy,
    mem_total: int,
    node: Path | None = None,
    spared: Iterable[int] = (),
    cgroup_root: str = "",
) -> PodSource:
    """Open what ``--pods`` names. ConfigError for a bad ``spec``.

    ``mem_total`` is the machine's memory in bytes; pods lie below the cgroup ``node`` (None: the whole machine), and no
    pod may hold a process of ``spared`` (pids), because it would be killed with the pod. ``cgroup_root`` is the
    kubelet's.
    """
    try:
        kind, argument = check_spec(spec)
    except ValueError as error:
        raise ConfigError(f"--pods: {error}") from None
    if kind == "manifests":
        from monitor.pods.manifests import ManifestSource

        return ManifestSource(Path(argument), hierarchy, node, spared, cgroup_root)
    from monitor.pods.tree import TreeSource

    return TreeSource(hierarchy, mem_total, node, spared, cgroup_root)
