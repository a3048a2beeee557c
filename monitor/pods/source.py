"""The one door to pods: what ``--pods`` means here, and the source that it names.

source = open_for(config, detect(), mem_total())
while select([source.fileno()], ..., timeout=1):    # or every second, where fileno() is None
    change = source.poll()
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from select import select
from typing import TYPE_CHECKING, Any

from monitor.errors import MonitorError
from monitor.kernel.cgroupfs import Hierarchy
from monitor.pods.model import Ends, PodSource, Within
from monitor.pods.spec import AUTO, CGROUPS, CLUSTER, MANIFESTS, SERVICES, Choice, check_spec, without_cluster

if TYPE_CHECKING:
    from monitor.pods.access import Access
    from monitor.pods.installations import NodeKubelet

#: Seconds that a command waits for the pods of a cluster.
_FIRST_S = 5.0


def settle(config: Any) -> tuple[Choice, Access | None]:
    """What ``--pods`` or its ``auto`` chooses; and how a cluster is reached, if pods are from one. ConfigError."""
    choice, kubelet = _at_once(config)
    if choice is not None:
        return choice, None
    # Without any sign of a cluster its client is not imported: 25 ms.
    from monitor.pods.access import Access, choose

    access = Access.found(config, kubelet)
    kind, argument = check_spec(config.pods)
    if kind == AUTO:
        choice = choose(access)
        return choice, access if check_spec(choice.spec)[0] in CLUSTER else None
    access.server(kind, argument), access.node
    return Choice(config.pods, "as given", (), access.kubelet.is_there), access


def is_services(config: Any) -> bool:
    """Whether `settle` chooses the services of this machine, found out without a request to a server."""
    choice, _ = _at_once(config)
    return choice is not None and choice.spec == SERVICES


def _at_once(config: Any) -> tuple[Choice | None, NodeKubelet | None]:
    """The choice that asks no server, None where pods are of a cluster; and the kubelet that ``auto`` found. With a
    cgroup for a node there is no kubelet to ask.
    """
    kind, _ = check_spec(config.pods)
    if kind in CLUSTER:
        return None, None
    if kind != AUTO:
        return Choice(config.pods, "as given"), None
    if config.node_cgroup is not None:
        return Choice(CGROUPS, f"of the node {config.node_cgroup}"), None
    from monitor.pods.installations import find_kubelet

    kubelet = find_kubelet()
    given = kubelet.kubeconfig or config.kubeconfig or os.environ.get("KUBERNETES_SERVICE_HOST")
    if kubelet.is_there or given:
        return None, kubelet
    return without_cluster(kubepods=_kubepods(config.cgroup_root)), None


def _kubepods(cgroup_root: str) -> Path | None:
    """A kubepods of this machine, with pods in it: of a kubelet that is not to be seen from here."""
    from monitor.kernel.cgroupfs import detect
    from monitor.pods.cgroup_tree import kubepods_of, pods_in

    try:
        hierarchy = detect()
    except MonitorError:
        return None  # the caller that needs it reports it
    found = kubepods_of(hierarchy, hierarchy.root, cgroup_root)
    return found if found is not None and any(pods_in(found)) else None


def open_for(
    config: Any,
    hierarchy: Hierarchy,
    mem_total: int,
    node: Path | None = None,
    spared: Iterable[int] = (),
    state_dir: Path | None = None,
    ends: Ends | None = None,
) -> PodSource:
    """The source of pods that is configured. ConfigError where it cannot be.

    ``mem_total``: bytes of the machine; pods lie below the cgroup ``node`` (None: the machine) and hold no process of
    ``spared`` (pids). Pods of a cluster are stored in ``state_dir``, and ``ends`` gets their ends; a command, which has
    neither, waits for the first answer.
    """
    choice, access = settle(config)
    kind, argument = check_spec(choice.spec)
    within = Within(hierarchy, node, tuple(spared), config.cgroup_root)
    if access is not None:
        from monitor.pods.cluster_source import ClusterSource

        feed = access.feed(kind, argument, state_dir, ends)
        source = ClusterSource(feed, within)
        if state_dir is None:
            select([feed.fileno()], [], [], _FIRST_S)  # until the cluster answered, or failed to
        return source
    if kind == MANIFESTS:
        from monitor.pods.spec_source import ManifestSource

        return ManifestSource(Path(argument), within)
    if kind == SERVICES:
        from monitor.pods.services import ServiceSource

        return ServiceSource(mem_total, within, config.services)
    from monitor.pods.tree import TreeSource

    return TreeSource(within)
