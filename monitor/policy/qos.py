"""Quality-of-service class of a pod, and the pods that are never evicted."""

from __future__ import annotations

from collections.abc import Iterable

from monitor.policy.pods import Pod, Quantities
from monitor.policy.quantity import ZERO, Quantity
from monitor.policy.resources import pod_level_resources_set

GUARANTEED = "Guaranteed"
BURSTABLE = "Burstable"
BEST_EFFORT = "BestEffort"

#: Priority from which a pod is critical (`system-cluster-critical`).
CRITICAL_PRIORITY = 2_000_000_000
#: The highest priority that a user may give (HighestUserDefinablePriority of Kubernetes), and the least of 32 bits.
MOST_PRIORITY, LEAST_PRIORITY = 10**9, -(2**31)
#: Where the kubelet has the pod from: `api`, `file` or `http`.
SOURCE = "kubernetes.io/config.source"
_MIRROR = "kubernetes.io/config.mirror"
_CLASS_RESOURCES = ("cpu", "memory")


def is_static(pod: Pod) -> bool:
    """The pod comes from a file or URL of the node, not from the API server (an empty source counts as static)."""
    return pod.annotations.get(SOURCE, "api") != "api"


def is_mirror(pod: Pod) -> bool:
    """The pod is the API server's picture of a static pod."""
    return _MIRROR in pod.annotations


def is_critical(pod: Pod) -> bool:
    """Never evicted: static, mirror, of critical priority, or taken for one of these where the spec is not known. The
    name of the priority class alone does not count.
    """
    return bool(pod.taken_critical) or is_static(pod) or is_mirror(pod) or (pod.priority or 0) >= CRITICAL_PRIORITY


def is_node_critical(pod: Pod) -> bool:
    """Critical and of class `system-node-critical`: the kubelet has the OOM killer spare it too."""
    return pod.priority_class_name == "system-node-critical" and is_critical(pod)


def qos_class(pod: Pod) -> str:
    """The class in the pod's status, else the computed one."""
    return pod.qos_class_status or compute_qos_class(pod)


def qos_class_1_36(pod: Pod) -> str:
    """The same before Kubernetes 1.37."""
    return pod.qos_class_status or compute_qos_class(pod, empty_counts=True)


def compute_qos_class(pod: Pod, *, empty_counts: bool = False) -> str:
    """The class from requests and limits of cpu and memory. Requests are not filled in from limits here.

    Sums over all containers are compared, not each container with itself. ``spec.resources`` replaces the containers'
    figures. ``empty_counts``: even where it names nothing that can be set for a whole pod (Kubernetes issue 135082).
    """
    whole = pod.resources if empty_counts or pod_level_resources_set(pod) else None
    holders = (*pod.containers, *pod.init_containers) if whole is None else (whole,)
    requests, limits = _sums(holder.requests for holder in holders), _sums(holder.limits for holder in holders)
    limited = all(_positive(holder.limits, name) for holder in holders for name in _CLASS_RESOURCES)
    if not requests and not limits:
        return BEST_EFFORT
    if limited and requests == limits:
        return GUARANTEED
    return BURSTABLE


def _positive(quantities: Quantities, name: str) -> bool:
    return quantities.get(name, ZERO) > ZERO


def _sums(all_quantities: Iterable[Quantities]) -> dict[str, Quantity]:
    """The sum of the positive amounts of cpu and memory, by name; what is zero everywhere is absent."""
    sums: dict[str, Quantity] = {}
    for quantities in all_quantities:
        for name in _CLASS_RESOURCES:
            if _positive(quantities, name):
                sums[name] = sums.get(name, ZERO) + quantities[name]
    return sums
