"""The oom_score_adj the kubelet gives a container: which ones the kernel's OOM killer spares, and which it prefers."""

from __future__ import annotations

from collections.abc import Callable

from monitor.policy.compat import KUBELET, SANE, int64, quotient
from monitor.policy.errors import PolicyError
from monitor.policy.pods import Container, Pod
from monitor.policy.qos import BEST_EFFORT, GUARANTEED, is_node_critical, qos_class
from monitor.policy.quantity import ZERO, Quantity
from monitor.policy.resources import containers_request, is_pod_level

GUARANTEED_ADJ = -997
BEST_EFFORT_ADJ = 1000
#: A Burstable container stays above every Guaranteed one at its worst (1000 - 997) ...
BURSTABLE_MIN = 1000 + GUARANTEED_ADJ
#: ... and below BestEffort. Only exactly 1000 is lowered; see `oom_score_adj`.
BURSTABLE_MAX = 999


def oom_score_adj(
    pod: Pod,
    container_name: str,
    memory_capacity: int,
    compat: str = SANE,
    qos_of: Callable[[Pod], str] = qos_class,
) -> int:
    """The value for one container (regular or init) on a machine of ``memory_capacity`` bytes.

    Exactly the kubelet's, which can exceed 1000 for a pod-level request below the sum of its containers' (the kernel
    refuses such a write: clamp before writing). Its arithmetic overflows for requests above 9.2e15 bytes; ours does so
    only with ``compat`` "kubelet-1.36". Raises PolicyError for an unknown container or a capacity that is not positive
    (the kubelet dies of 0, and only where it divides by it, which "kubelet-1.36" keeps to).
    """
    container = container_of(pod, container_name)
    if memory_capacity <= 0 and compat != KUBELET:
        raise PolicyError(f"memory capacity {memory_capacity}: must be positive")
    if is_node_critical(pod):
        return GUARANTEED_ADJ
    quality = qos_of(pod)
    if quality == GUARANTEED:
        return GUARANTEED_ADJ
    if quality == BEST_EFFORT:
        return BEST_EFFORT_ADJ

    if memory_capacity == 0:
        raise PolicyError("memory capacity 0: must be positive")
    wide = compat != KUBELET
    share = _spare_share(pod, wide)

    def by_request(*containers: Container) -> int:
        """By the smallest of their requests."""
        request = min(_bytes(c.requests.get("memory", ZERO), wide) for c in containers)
        product = 1000 * (request + share)
        return 1000 - quotient(product if wide else int64(product), memory_capacity)

    adj = by_request(container)
    if container.sidecar and pod.containers and any(container is one for one in pod.init_containers):
        # A sidecar must not be killed before the containers it serves: it counts as at least the smallest of them.
        adj = min(adj, by_request(*pod.containers))
    if adj < BURSTABLE_MIN:
        return BURSTABLE_MIN
    return BURSTABLE_MAX if adj == BEST_EFFORT_ADJ else adj


def container_of(pod: Pod, name: str) -> Container:
    """The container, or the init container; raises PolicyError."""
    found = next((one for one in (*pod.init_containers, *pod.containers) if one.name == name), None)
    if found is None:
        raise PolicyError(f"pod {pod.namespace}/{pod.name} has no container {name!r}")
    return found


def _bytes(amount: Quantity, wide: bool) -> int:
    """``wide``: of any size; else as 64 bits hold it."""
    return amount.value if wide else amount.int64()


def _spare_share(pod: Pod, wide: bool) -> int:
    """What the pod asked for beyond its containers' requests, divided among them; negative if it asked for less."""
    if pod.resources is None or not is_pod_level(pod.resources.requests):
        return 0
    asked = pod.resources.requests.get("memory", ZERO)
    if asked.is_zero:
        return 0
    spare = _bytes(asked, wide) - _bytes(containers_request(pod, "memory"), wide)
    if not wide:
        spare = int64(spare)
    return quotient(spare, len(pod.containers) + len(pod.init_containers))
