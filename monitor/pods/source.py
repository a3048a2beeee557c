"""The one door to pods: ``open_source("manifests:DIR" | "cgroups", ...)``.

source = open_source("manifests:/etc/outrace/pods", detect(), mem_total())
while select([source.fileno()], ..., timeout=1):    # or every second, where fileno() is None
    change = source.poll()
    for found in change.updated: channel.send(sock, pod_message(found))
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from monitor.errors import ConfigError
from monitor.kernel.cgroupfs import Hierarchy
from monitor.pods.model import Change, FoundPod, PodSource, pod_message

__all__ = ["Change", "FoundPod", "PodSource", "check_spec", "open_source", "pod_message"]

_FORMS = "use cgroups or manifests:DIR"


def check_spec(spec: str) -> tuple[str, str]:
    """Split a ``--pods`` value into kind and argument; ValueError if this version has no such source."""
    kind, colon, argument = spec.partition(":")
    if kind in ("kubelet", "apiserver"):
        raise ValueError(f"{spec!r}: pods from the {kind} are not in this version; {_FORMS}")
    if kind not in ("manifests", "cgroups") or (kind == "cgroups" and colon):
        raise ValueError(f"{spec!r} is not a source of pods; {_FORMS}")
    if kind == "manifests" and not argument:
        raise ValueError(f"{spec!r} names no directory; {_FORMS}")
    return kind, argument


def open_source(
    spec: str, hierarchy: Hierarchy, mem_total: int, node: Path | None = None, spared: Iterable[int] = ()
) -> PodSource:
    """Open what ``--pods`` names. ConfigError for a bad ``spec``.

    ``mem_total`` is the machine's memory in bytes; pods lie below the cgroup ``node`` (None: the whole machine), and no
    pod may hold a process of ``spared`` (pids), because it would be killed with the pod.
    """
    try:
        kind, argument = check_spec(spec)
    except ValueError as error:
        raise ConfigError(f"--pods: {error}") from None
    if kind == "manifests":
        from monitor.pods.manifests import ManifestSource

        return ManifestSource(Path(argument), hierarchy, node, spared)
    from monitor.pods.cgroup_tree import TreeSource

    return TreeSource(hierarchy, mem_total, node, spared)
