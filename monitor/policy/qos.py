"""Quality-of-service class of a pod, the pods that are never evicted, and the oom_score_adj that follows from both."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from monitor.policy.compat import KUBELET, SANE, int64, quotient
from monitor.policy.errors import PolicyError
from monitor.policy.pods import Container, Pod, Quantities
from monitor.policy.quantity import ZERO, Quantity
from monitor.policy.resources import containers_request, is_pod_level, pod_level_resources_set

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
    """Never evicted: static, mirror, of critical priority (not by its class's name), or taken for one of these."""
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
    """The class from requests and limits of cpu and memory, by sums over the containers or by ``spec.resources``.
    Requests are not filled in from limits. ``empty_counts``: also if that names nothing for a whole pod (issue 135082).
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


# ---- the oom_score_adj the kubelet gives a container: which ones the OOM killer spares, and which it prefers

GUARANTEED_ADJ = -997
BEST_EFFORT_ADJ = 1000


def oom_score_adj(
    pod: Pod,
    container_name: str,
    memory_capacity: int,
    compat: str = SANE,
    qos_of: Callable[[Pod], str] = qos_class,
    spared: Callable[[Pod], bool] = is_node_critical,
    guaranteed: int = GUARANTEED_ADJ,
) -> int:
    """The value for one container (regular or init) on a machine of ``memory_capacity`` bytes. It can exceed 1000, for
    a pod-level request below the containers'. A kubelet's overflows above 9.2e15 bytes, ours only with ``compat``
    "kubelet-1.36". Raises PolicyError for an unknown container, or a capacity that is not positive.
    """
    found = next((one for one in (*pod.init_containers, *pod.containers) if one.name == container_name), None)
    if found is None:
        raise PolicyError(f"pod {pod.namespace}/{pod.name} has no container {container_name!r}")
    if memory_capacity <= 0:
        raise PolicyError(f"memory capacity {memory_capacity}: must be positive")
    quality = qos_of(pod)
    if spared(pod) or quality == GUARANTEED:
        return guaranteed
    if quality == BEST_EFFORT:
        return BEST_EFFORT_ADJ
    share = _spare_share(pod)

    def by_request(*containers: Container) -> int:
        """By the smallest of their requests."""
        request = min(c.requests.get("memory", ZERO).value for c in containers)
        product = 1000 * (request + share)
        return 1000 - quotient(int64(product) if compat == KUBELET else product, memory_capacity)

    adj = by_request(found)
    if found.sidecar and pod.containers and any(found is one for one in pod.init_containers):
        # A sidecar must not be killed before the containers it serves: it counts as at least the smallest of them.
        adj = min(adj, by_request(*pod.containers))
    # Burstable stays above every Guaranteed container at its worst, and below BestEffort: only exactly 1000 is lowered.
    return max(1000 + guaranteed, 999 if adj == BEST_EFFORT_ADJ else adj)


def _spare_share(pod: Pod) -> int:
    """What the pod asked for beyond its containers' requests, divided among them; negative if it asked for less."""
    if pod.resources is None or not is_pod_level(pod.resources.requests):
        return 0
    asked = pod.resources.requests.get("memory", ZERO)
    if asked.is_zero:
        return 0
    spare = asked.value - containers_request(pod, "memory").value
    return quotient(spare, len(pod.containers) + len(pod.init_containers))
