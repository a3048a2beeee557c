"""The policy of Kubernetes 1.17: today's order of eviction, before process counts, sidecars, pod-level requests and
container file systems.
"""

from __future__ import annotations

from dataclasses import replace

from monitor.policy.errors import PolicyError
from monitor.policy.layout import DiskLayout, reclaim_actions
from monitor.policy.pods import Pod
from monitor.policy.qos import BEST_EFFORT, GUARANTEED, is_critical, qos_class
from monitor.policy.quantity import ZERO, Quantity
from monitor.policy.ranking import Candidate, Key, candidate, memory_key, rank_priority
from monitor.policy.releases import Era
from monitor.policy.signals import CONTAINERFS, CONTAINERFS_INODES, MEMORY_SIGNALS, PID, RESOURCE, SIGNALS
from monitor.policy.stats import PodStats
from monitor.policy.victims import disk_key, disk_usage

GUARANTEED_ADJ = -998
#: The lowest value of a Burstable container, just above every Guaranteed one at its worst.
BURSTABLE_MIN = 2
BURSTABLE_MAX = 999
BEST_EFFORT_ADJ = 1000


def plain_request(pod: Pod, resource: str) -> Quantity:
    """The containers' requests together, or the largest init container's. Without overhead, which came later."""
    total = ZERO
    for container in pod.containers:
        total = total + container.requests.get(resource, ZERO)
    return max([total, *(c.requests.get(resource, ZERO) for c in pod.init_containers)])


def class_by_containers(pod: Pod) -> str:
    """The QoS class, from containers alone: resources of whole pods came later."""
    return qos_class(replace(pod, resources=None))


def one_disk_for_containers(layout: DiskLayout) -> DiskLayout:
    """Before 1.29 the containers were always where the images are."""
    return layout._replace(container_fs=False)


def rank_one(
    pod: Pod, stats: PodStats | None, signal: str, layout: DiskLayout, _pod_level: bool
) -> tuple[Key, Candidate]:
    """Memory and disk as today. For process ids priority alone: counts came with 1.19."""
    if signal in MEMORY_SIGNALS:
        victim = candidate(pod, plain_request(pod, "memory"), None if stats is None else stats.memory() or 0)
        return memory_key(victim), victim
    if signal == PID:
        victim = candidate(pod, ZERO, None if stats is None else stats.processes())
        return (rank_priority(victim.priority), 0, 0, 0, pod.namespace, pod.name, pod.uid), victim
    storage = plain_request(pod, "ephemeral-storage")
    used = None if stats is None else disk_usage(pod, stats, signal, one_disk_for_containers(layout))
    victim = candidate(pod, storage, used)
    return disk_key(victim, plain_request(pod, RESOURCE[signal])), victim


def oom_score_adj(pod: Pod, container_name: str, memory_capacity: int) -> int:
    """Every critical pod is spared like a Guaranteed one; the others by class and request."""
    return GUARANTEED_ADJ if is_critical(pod) else adj_by_class(pod, container_name, memory_capacity)


def adj_by_class(pod: Pod, container_name: str, memory_capacity: int) -> int:
    """-998, 1000, or min(max(2, 1000 - 1000 * request / capacity), 999). Raises PolicyError as today's does."""
    container = next((c for c in (*pod.containers, *pod.init_containers) if c.name == container_name), None)
    if container is None:
        raise PolicyError(f"pod {pod.namespace}/{pod.name} has no container {container_name!r}")
    if memory_capacity <= 0:
        raise PolicyError(f"memory capacity {memory_capacity}: must be positive")
    quality = class_by_containers(pod)
    if quality == GUARANTEED:
        return GUARANTEED_ADJ
    if quality == BEST_EFFORT:
        return BEST_EFFORT_ADJ
    request = container.requests.get("memory", ZERO).value
    return min(max(BURSTABLE_MIN, 1000 - 1000 * request // memory_capacity), BURSTABLE_MAX)


def reclaim_for(signal: str, layout: DiskLayout) -> tuple[str, ...]:
    """As today, without container file systems."""
    return reclaim_actions(signal, one_disk_for_containers(layout))


KUBELET_1_17 = Era(
    name="kubelet-1.17",
    signals=tuple(s for s in SIGNALS if s not in (CONTAINERFS, CONTAINERFS_INODES)),
    default_hard={
        "memory.available": "100Mi",
        "nodefs.available": "10%",
        "nodefs.inodesFree": "5%",
        "imagefs.available": "15%",
    },
    ranker=rank_one,
    oom_score_adj=oom_score_adj,
    reclaim_actions=reclaim_for,
    is_critical=is_critical,
    hard_grace_s=0,
    containerfs=False,
    request=plain_request,
    qos_class=class_by_containers,
)
