"""The policy of Kubernetes 1.8, as its documentation describes it: quality of service first, priority not at all."""

from __future__ import annotations

from dataclasses import replace

from monitor.policy.kubelet_1_17 import (
    GUARANTEED_ADJ,
    adj_by_class,
    class_by_containers,
    one_disk_for_containers,
    plain_request,
)
from monitor.policy.layout import DELETE_CONTAINERS, DELETE_IMAGES, DiskLayout
from monitor.policy.pods import Pod
from monitor.policy.qos import BEST_EFFORT, BURSTABLE, GUARANTEED
from monitor.policy.quantity import ZERO
from monitor.policy.ranking import Candidate, Key, candidate
from monitor.policy.releases import Era
from monitor.policy.signals import (
    ALLOCATABLE_MEMORY,
    IMAGEFS,
    IMAGEFS_INODES,
    MEMORY,
    MEMORY_SIGNALS,
    NODEFS,
    NODEFS_INODES,
    RESOURCE,
)
from monitor.policy.stats import PodStats
from monitor.policy.victims import disk_usage

_CLASS_ORDER = {BEST_EFFORT: 0, BURSTABLE: 1, GUARANTEED: 2}
_CRITICAL_ANNOTATION = "scheduler.alpha.kubernetes.io/critical-pod"


def is_critical(pod: Pod) -> bool:
    """Marked as critical by the annotation of that time (empty, in kube-system), or taken for critical where the spec
    is not known. Priority did not protect yet.
    """
    return bool(pod.taken_critical) or (
        pod.namespace == "kube-system" and pod.annotations.get(_CRITICAL_ANNOTATION) == ""
    )


def rank_one(
    pod: Pod, stats: PodStats | None, signal: str, layout: DiskLayout, _pod_level: bool
) -> tuple[Key, Candidate]:
    """Class by class. Within one: for memory the most above the request first, then, of those within it, the largest
    consumer; for disk space the largest consumer; for inodes, which could not be counted then, nothing more.
    """
    request = plain_request(pod, "memory") if signal in MEMORY_SIGNALS else ZERO
    used: int | None = None
    if stats is not None:
        if signal in MEMORY_SIGNALS:
            used = stats.memory() or 0
        else:
            used = disk_usage(pod, stats, signal, one_disk_for_containers(layout))
    victim = replace(candidate(pod, request, used), critical=is_critical(pod), qos=class_by_containers(pod))
    return usage_key(replace(victim, usage=None) if RESOURCE[signal] == "inodes" else victim), victim


def usage_key(victim: Candidate) -> Key:
    """Sort key of a pod by its QoS class and its numbers; one of an unknown class counts as Burstable."""
    place, used = _CLASS_ORDER.get(victim.qos, _CLASS_ORDER[BURSTABLE]), victim.usage
    if used is None:
        order = (place, 0, 0, 0)
    elif used > victim.request:
        order = (place, 1, victim.request - used, victim.request_nanos)
    else:
        order = (place, 2, -used, 0)
    return (*order, victim.namespace, victim.name, victim.uid)


def oom_score_adj(pod: Pod, container_name: str, memory_capacity: int) -> int:
    """-998 for Guaranteed and critical pods, 1000 for BestEffort, between 2 and 999 by request for the rest."""
    return GUARANTEED_ADJ if is_critical(pod) else adj_by_class(pod, container_name, memory_capacity)


def reclaim_actions(signal: str, layout: DiskLayout) -> tuple[str, ...]:
    """Each file system is relieved of what is on it: containers on nodefs, images on imagefs."""
    if signal in MEMORY_SIGNALS:
        return ()
    if not layout.image_fs:
        return (DELETE_CONTAINERS, DELETE_IMAGES)
    return (DELETE_IMAGES,) if signal in (IMAGEFS, IMAGEFS_INODES) else (DELETE_CONTAINERS,)


KUBELET_1_8 = Era(
    name="kubelet-1.8",
    signals=(MEMORY, ALLOCATABLE_MEMORY, NODEFS, NODEFS_INODES, IMAGEFS, IMAGEFS_INODES),
    default_hard={"memory.available": "100Mi"},
    ranker=rank_one,
    oom_score_adj=oom_score_adj,
    reclaim_actions=reclaim_actions,
    is_critical=is_critical,
    hard_grace_s=0,
    containerfs=False,
    request=plain_request,
    qos_class=class_by_containers,
    memory_key=usage_key,
)
