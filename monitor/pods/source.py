"""The one door to pods: ``open_source("kubelet:URL" | "apiserver" | "manifests:DIR" | "cgroups", ...)``.

source = open_source("manifests:/etc/outrace/pods", detect(), mem_total())
while select([source.fileno()], ..., timeout=1):    # or every second, where fileno() is None
    change = source.poll()
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from monitor.errors import ConfigError
from monitor.kernel.cgroupfs import Hierarchy
from monitor.pods.model import Change, FoundPod, PodSource
from monitor.pods.spec import AUTO, CGROUPS, CLUSTER, MANIFESTS, check_spec

if TYPE_CHECKING:
    from monitor.pods.access import Access
    from monitor.pods.discover import Choice

__all__ = ["Change", "FoundPod", "PodSource", "open_for", "open_source", "settle"]

#: Seconds that a command waits for the pods of a cluster.
_FIRST_S = 5.0


def open_source(
    spec: str,
    hierarchy: Hierarchy,
    mem_total: int,
    node: Path | None = None,
    spared: Iterable[int] = (),
    cgroup_root: str = "",
    access: Access | None = None,
    state_dir: Path | None = None,
) -> PodSource:
    """Open what ``--pods`` names. ConfigError for a bad ``spec``.

    ``mem_total`` is the machine's memory in bytes; pods lie below the cgroup ``node`` (None: the whole machine), and no
    pod may hold a process of ``spared`` (pids), because it would be killed with the pod. ``cgroup_root`` is the
    kubelet's. A cluster is reached by ``access``, and its pods are stored in ``state_dir``, if one is given.
    """
    try:
        kind, argument = check_spec(spec)
    except ValueError as error:
        raise ConfigError(f"--pods: {error}") from None
    if kind == AUTO:
        raise ConfigError("--pods auto: is found out when the configuration is read")  # discover.choose
    if kind in CLUSTER:
        from monitor.pods.access import Access
        from monitor.pods.cluster_source import ClusterSource

        feed = (access or Access()).feed(kind, argument, state_dir)
        return ClusterSource(feed, hierarchy, node, spared, cgroup_root)
    if kind == MANIFESTS:
        from monitor.pods.manifests import ManifestSource

        return ManifestSource(Path(argument), hierarchy, node, spared, cgroup_root)
    from monitor.pods.tree import TreeSource

    return TreeSource(hierarchy, mem_total, node, spared, cgroup_root)


def settle(spec: str, access: Access | None, node: Path | None) -> Choice:
    """What ``spec`` means here: the choice of ``auto``, and of kubelet without a URL. ConfigError.

    With a cgroup for a ``node`` there is no kubelet to ask: auto is cgroups.
    """
    from monitor.pods.access import Access
    from monitor.pods.discover import Choice, choose

    if spec == AUTO and node is not None:
        return Choice(CGROUPS, f"of the node {node}")
    if spec == AUTO:
        return choose(access or Access())
    return Choice(spec, "as given")


class Configured(Protocol):
    """What a configuration says of pods; "" is: as found (`monitor.pods.access`)."""

    @property
    def pods(self) -> str: ...
    @property
    def cgroup_root(self) -> str: ...
    @property
    def kubeconfig(self) -> str: ...
    @property
    def node_name(self) -> str: ...
    @property
    def kubelet_ca(self) -> str: ...
    @property
    def kubelet_insecure(self) -> bool: ...


def open_for(
    config: Configured,
    hierarchy: Hierarchy,
    mem_total: int,
    node: Path | None = None,
    spared: Iterable[int] = (),
    state_dir: Path | None = None,
) -> PodSource:
    """`open_source` of what is configured, ``auto`` too. A command that only looks waits for the first answer."""
    from monitor.pods.access import Access

    kind = check_spec(config.pods)[0]
    access = Access.found(config) if kind in (AUTO, *CLUSTER) and not (kind == AUTO and node is not None) else None
    spec = settle(config.pods, access, node).spec
    source = open_source(spec, hierarchy, mem_total, node, spared, config.cgroup_root, access, state_dir)
    if state_dir is None:
        deadline = time.monotonic() + _FIRST_S
        while not source.is_complete and time.monotonic() < deadline:
            time.sleep(0.02)
    return source
