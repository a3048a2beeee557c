"""The one door to pods: ``open_source("manifests:DIR" | "cgroups", ...)``.

source = open_source("manifests:/etc/outrace/pods", detect(), mem_total())
while select([source.fileno()], ..., timeout=1):    # or every second, where fileno() is None
    change = source.poll()
    for found in change.updated: channel.send(sock, pod_message(found))
"""

from __future__ import annotations

from pathlib import Path

from monitor.errors import ConfigError
from monitor.kernel.cgroupfs import Hierarchy
from monitor.pods.model import Change, FoundPod, PodSource, pod_message

__all__ = ["Change", "FoundPod", "PodSource", "check_spec", "open_source", "pod_message"]

_FORMS = "give manifests:DIR or cgroups"


def check_spec(spec: str) -> tuple[str, str]:
    """Split a ``--pods`` value into kind and argument; ConfigError if this version has no such source."""
    kind, colon, argument = spec.partition(":")
    if kind in ("kubelet", "apiserver"):
        raise ConfigError(f"--pods {spec}: pods from the {kind} are not in this version", _FORMS)
    if kind not in ("manifests", "cgroups") or (kind == "cgroups" and colon):
        raise ConfigError(f"--pods {spec}: no such source of pods", _FORMS)
    if kind == "manifests" and not argument:
        raise ConfigError(f"--pods {spec}: names no directory", "give manifests:DIR")
    return kind, argument


def open_source(spec: str, hierarchy: Hierarchy, mem_total: int) -> PodSource:
    """Open what ``--pods`` names; ``mem_total`` is the machine's memory in bytes. ConfigError for a bad ``spec``."""
    kind, argument = check_spec(spec)
    if kind == "manifests":
        from monitor.pods.manifests import ManifestSource

        return ManifestSource(Path(argument), hierarchy)
    from monitor.pods.cgroup_tree import TreeSource

    return TreeSource(hierarchy, mem_total)
