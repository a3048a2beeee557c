"""The policies of two old releases, as their documentation describes them. 1.17: no process counts, sidecars, pod-level
requests, container file systems. 1.8: quality of service first, priority not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from monitor.policy import signals as sig
from monitor.policy.layout import DELETE_CONTAINERS, DELETE_IMAGES, DiskLayout
from monitor.policy.pods import Pod
from monitor.policy.qos import BEST_EFFORT, BURSTABLE, GUARANTEED, is_critical, oom_score_adj, qos_class
from monitor.policy.quantity import ZERO, Quantity
from monitor.policy.ranking import Candidate, Key, candidate
from monitor.policy.releases import KUBELET_1_36
from monitor.policy.stats import PodStats
from monitor.policy.thresholds import DEFAULT_HARD
from monitor.policy.victims import Ranked, usage


def plain_request(pod: Pod, resource: str) -> Quantity:
    """The containers' requests together, or the largest init container's. Without overhead, which came later."""
    total = sum((c.requests.get(resource, ZERO) for c in pod.containers), ZERO)
    return max([total, *(c.requests.get(resource, ZERO) for c in pod.init_containers)])


def class_by_containers(pod: Pod) -> str:
    """The QoS class, from containers alone: resources of whole pods came later."""
    return qos_class(replace(pod, resources=None))


def adj_by_class(spared: Callable[[Pod], bool], pod: Pod, container_name: str, memory_capacity: int) -> int:
    """-998 for Guaranteed and ``spared`` pods, 1000 for BestEffort, else 1000 - 1000 * request / capacity, 2 to 999."""
    plain = tuple(replace(container, restart_policy=None) for container in pod.init_containers)
    pod = replace(pod, resources=None, init_containers=plain)
    return oom_score_adj(pod, container_name, memory_capacity, spared=spared, guaranteed=-998)


KUBELET_1_17 = replace(
    KUBELET_1_36,
    name="kubelet-1.17",
    signals=tuple(s for s in sig.KUBELET_SIGNALS if s not in (sig.CONTAINERFS, sig.CONTAINERFS_INODES)),
    default_hard={signal: text for signal, text in DEFAULT_HARD.items() if signal != sig.IMAGEFS_INODES},
    oom_score_adj=partial(adj_by_class, is_critical),
    hard_grace_s=0,
    containerfs=False,
    counts_processes=False,  # that came with 1.19
    request=plain_request,
    qos_class=class_by_containers,
)


# ---- Kubernetes 1.8

_CLASS_ORDER = {BEST_EFFORT: 0, BURSTABLE: 1, GUARANTEED: 2}
_CRITICAL_ANNOTATION = "scheduler.alpha.kubernetes.io/critical-pod"


def is_critical_1_8(pod: Pod) -> bool:
    """Marked by the annotation of that time, or taken for critical; priority did not protect yet."""
    return bool(pod.taken_critical) or (
        pod.namespace == "kube-system" and pod.annotations.get(_CRITICAL_ANNOTATION) == ""
    )


def rank_1_8(pod: Pod, stats: PodStats | None, signal: str, layout: DiskLayout) -> Ranked:
    """Class by class; then for memory the most above the request; then the largest consumer, but not of inodes."""
    request = plain_request(pod, "memory") if signal in sig.MEMORY_SIGNALS else ZERO
    used = usage(pod, stats, signal, layout)
    fixed = replace(candidate(pod, request, None), critical=is_critical_1_8(pod), qos=class_by_containers(pod))
    key = key_1_8(fixed if sig.RESOURCE[signal] == "inodes" else replace(fixed, usage=used))
    return Ranked(key, pod, stats, used, fixed)


def key_1_8(victim: Candidate) -> Key:
    """Sort key of a pod by its QoS class and its numbers; one of an unknown class counts as Burstable."""
    place, used = _CLASS_ORDER.get(victim.qos, _CLASS_ORDER[BURSTABLE]), victim.usage
    if used is None:
        order = (place, 0, 0, 0)
    elif used > victim.request:
        order = (place, 1, victim.request - used, victim.request_nanos)
    else:
        order = (place, 2, -used, 0)
    return (*order, victim.namespace, victim.name, victim.uid)


def reclaim_1_8(signal: str, layout: DiskLayout) -> tuple[str, ...]:
    """Each file system is relieved of what is on it: containers on nodefs, images on imagefs."""
    if signal in sig.MEMORY_SIGNALS:
        return ()
    if not layout.image_fs:
        return (DELETE_CONTAINERS, DELETE_IMAGES)
    return (DELETE_IMAGES,) if signal in (sig.IMAGEFS, sig.IMAGEFS_INODES) else (DELETE_CONTAINERS,)


KUBELET_1_8 = replace(
    KUBELET_1_17,
    name="kubelet-1.8",
    signals=tuple(s for s in KUBELET_1_17.signals if s != sig.PID),
    default_hard={sig.MEMORY: DEFAULT_HARD[sig.MEMORY]},
    ranker=rank_1_8,
    oom_score_adj=partial(adj_by_class, is_critical_1_8),
    reclaim_actions=reclaim_1_8,
    is_critical=is_critical_1_8,
    memory_key=key_1_8,
)
