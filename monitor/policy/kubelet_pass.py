"""A pass as a kubelet makes it, on an answer of the Summary API: pods over their limits of local storage, thresholds,
clean-up, one pod, its message; and which pods are admitted. Conformance runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from monitor.policy.eviction_pass import Outcome, PassConfig, State, run_pass
from monitor.policy.layout import LOGS, ROOTFS, DiskLayout
from monitor.policy.pods import Pod, Toleration, per_pod
from monitor.policy.qos import BEST_EFFORT, is_critical, qos_class
from monitor.policy.quantity import ZERO, Quantity
from monitor.policy.ranking import Candidate
from monitor.policy.resources import pod_limit
from monitor.policy.signals import MEMORY_PRESSURE, RESOURCE, Observation
from monitor.policy.stats import PodStats, Summary
from monitor.policy.thresholds import Threshold
from monitor.policy.victims import rank_pods

_STORAGE = "ephemeral-storage"
_NANO = 10**9
#: Cleans up (the actions by name, in order) and answers with the stats after it; None if they cannot be had.
Reclaim = Callable[[tuple[str, ...]], Summary | None]


class Eviction(NamedTuple):
    """A pod to evict, `annotations` of its event; `disrupted`: its status gets DisruptionTarget (not for storage)."""

    pod: Pod
    grace_s: int
    message: str
    annotations: Mapping[str, str]
    disrupted: bool


class KubeletResult(NamedTuple):
    """What a pass decided, with a `warning` on the node, after `reclaimed`. No thresholds or stats: no `outcome`."""

    state: State
    evictions: tuple[Eviction, ...] = ()
    warning: str | None = None
    reclaimed: tuple[str, ...] = ()
    summary_reads: int = 0
    outcome: Outcome | None = None


def kubelet_pass(
    config: PassConfig,
    state: State,
    pods: Sequence[Pod],
    read: Callable[[], Summary | None],
    now_ns: int,
    reclaim: Reclaim,
) -> KubeletResult:
    """One pass over the active ``pods``. ``read`` gives the stats, None if they cannot be had; asked only if needed."""
    if not config.thresholds and not config.local_storage:
        return KubeletResult(state)
    summary = read()
    if summary is None:
        return KubeletResult(state, summary_reads=1)
    over_limit = _local_storage(config, pods, summary.pods) if config.local_storage else ()
    if over_limit:  # then no pod is evicted for a threshold
        result = run_pass(config, state, summary.observations, now_ns, lambda _: ())
        return KubeletResult(result.state, over_limit, summary_reads=1, outcome=result.outcome)
    actions: tuple[str, ...] = ()

    def clean(signal: str) -> bool:
        nonlocal actions
        actions = config.era.reclaim_actions(signal, config.era.layout(config.layout))
        after = reclaim(actions) if actions else None
        return after is not None and _all_clear(config, after.observations)

    def rank(signal: str) -> Iterator[Candidate]:
        for one in rank_pods(signal, pods, summary.pods, config.layout, config.era):
            yield one.candidate

    result = run_pass(config, state, summary.observations, now_ns, rank, clean=clean)
    starved, victim = result.outcome.starved, result.outcome.victim
    warning = None if starved is None else NODE_MESSAGE % RESOURCE[starved.signal]
    evictions = [
        Eviction(pod, result.grace_s, *message_for(pod, starved.signal, starved, summary), True)
        for pod in pods
        if starved is not None and victim is not None and pod.uid == victim.uid
    ]
    reads = 2 if actions else 1
    return KubeletResult(result.state, tuple(evictions), warning, actions, reads, result.outcome)


def _local_storage(config: PassConfig, pods: Sequence[Pod], stats: Mapping[str, PodStats]) -> tuple[Eviction, ...]:
    """All pods over a limit of their own; critical ones are spared."""
    era = config.era
    judged = (
        (pod, storage_violation(pod, stats[pod.uid], config.layout, era.sidecar_storage))
        for pod in pods
        if pod.uid in stats and not era.is_critical(pod)
    )
    return tuple([Eviction(pod, config.limit_grace_s, why, {}, False) for pod, why in judged if why is not None])


def _all_clear(config: PassConfig, observations: Mapping[str, Observation]) -> bool:
    """Whether no threshold is met, min reclaim included: a soft one in its grace also costs a pod for a clean disk."""
    seen = ((rule.threshold, observations[rule.signal]) for rule in config.rules if rule.signal in observations)
    return not any(threshold.met(o.available, o.capacity, with_reclaim=True) for threshold, o in seen)


def message_for(pod: Pod, signal: str, threshold: Threshold | None, summary: Summary) -> tuple[str, dict[str, str]]:
    """The message and the annotations for evicting ``pod`` for a ``signal``; as far as the figures are known."""
    resource, seen, own = RESOURCE[signal], summary.observations.get(signal), summary.pods.get(pod.uid)
    quantity = None if threshold is None or seen is None else threshold.value.shown(seen.capacity)
    containers, usage = (None, None) if own is None else (container_usage(own, resource), own.memory())
    return eviction_message(pod, resource, quantity, None if seen is None else seen.available, containers, usage)


def container_usage(stats: PodStats, resource: str) -> list[tuple[str, int]]:
    """The containers in the message of an eviction: none are named for inodes and process ids."""
    if resource == "memory":
        return stats.reported(["memory"], "workingSetBytes")
    return stats.reported([ROOTFS, LOGS], "usedBytes") if resource == "ephemeral-storage" else []


# limits of local storage: looked at in every pass, before any threshold


def storage_violation(pod: Pod, stats: PodStats, layout: DiskLayout, sidecars: bool = True) -> str | None:
    """Why ``pod`` is to be evicted for its local storage, in the kubelet's words; None if it keeps its limits."""
    sizes, whole, limits = _limits(pod, sidecars)
    if sizes:
        used = stats.volumes_used()
        for name, limit in sizes.items():
            # One kept in memory counts too.
            if name in used and used[name] * _NANO > limit.nanos:
                return f'Usage of EmptyDir volume "{name}" exceeds the limit "{limit}". '
    if whole is not None and stats.ephemeral_storage() * _NANO > whole.nanos:
        return f"Pod ephemeral local storage usage exceeds the total limit of containers {whole}. "
    if limits:
        # With images on a disk of their own the writable layer is not on the disk this limit protects.
        for name, taken in stats.files_each((LOGS,) if layout.image_fs else (LOGS, ROOTFS), "usedBytes"):
            if name in limits and taken * _NANO > limits[name].nanos:
                return f'Container {name} exceeded its local ephemeral storage limit "{limits[name]}". '
    return None


def is_limited(pod: Pod) -> bool:
    """Whether the pod has a limit, so that it must be measured also while the disks are fine."""
    sizes, whole, _ = _limits(pod, True)
    return bool(sizes) or whole is not None


@per_pod
def _limits(pod: Pod, sidecars: bool) -> tuple[dict[str, Quantity], Quantity | None, dict[str, Quantity]]:
    """What the pod is allowed: by volume, in all, by container."""
    sizes = {v.name: v.size_limit for v in pod.volumes if v.source == "emptyDir" and v.size_limit is not None}
    running = (*pod.containers, *(c for c in pod.init_containers if sidecars and c.sidecar))
    limits = {c.name: c.limits.get(_STORAGE, ZERO) for c in running}
    return (
        {name: limit for name, limit in sizes.items() if limit > ZERO},
        pod_limit(pod, _STORAGE),
        {name: limit for name, limit in limits.items() if not limit.is_zero},
    )


# ---- the message in the status of an evicted pod and the annotations of its event, as the kubelet writes them

REASON = "Evicted"
#: The Warning on the node when a threshold is about to cost a pod, and its message (`%s` is the resource).
NODE_REASON = "EvictionThresholdMet"
NODE_MESSAGE = "Attempting to reclaim %s"


def eviction_message(
    pod: Pod,
    resource: str,
    quantity: int | Quantity | None,
    available: int | None,
    container_usage: Iterable[tuple[str, int]] | None,
    pod_usage: int | None,
) -> tuple[str, dict[str, str]]:
    """Message and annotations for evicting ``pod``, with the starved threshold's ``quantity`` (a Quantity keeps its
    spelling), what was ``available``, bytes by container in the order of the stats (None without stats: then no
    container and no annotation) and bytes of the pod (0 without a working set).
    """
    message = f"The node was low on resource: {resource}. "
    if quantity is not None and available is not None:
        limit = quantity if isinstance(quantity, Quantity) else Quantity.of(quantity, resource)
        message += f"Threshold quantity: {limit}, available: {Quantity.of(available, resource)}. "
    if container_usage is None:
        return message, {}

    annotations: dict[str, str] = {}
    request = None if pod.resources is None else pod.resources.requests.get("memory")
    if resource == "memory" and pod_usage is not None and request is not None:
        # Appended whether or not the pod uses more than it requested; that is how the kubelet has it.
        usage = Quantity.of_bytes(pod_usage)
        message += _larger(f"Pod {pod.name}", usage, request, resource)
        annotations = {"offending_pod": pod.name, "offending_pod_usage": str(usage)}

    requests = {c.name: c.requests.get(resource, ZERO) for c in (*pod.containers, *pod.init_containers)}
    usages = [(name, Quantity.of_bytes(n)) for name, n in container_usage]
    offending = [(name, usage) for name, usage in usages if name in requests and usage > requests[name]]
    message += "".join(_larger(f"Container {name}", usage, requests[name], resource) for name, usage in offending)
    return message, annotations | {
        "offending_containers": ",".join(name for name, _ in offending),
        "offending_containers_usage": ",".join(str(usage) for _, usage in offending),
        "starved_resource": resource,
    }


def _larger(user: str, usage: Quantity, request: Quantity, resource: str) -> str:
    return f"{user} was using {usage}, request is {request}, has larger consumption of {resource}. "


# ---- which pods a node under pressure takes in

#: The taint (with effect NoSchedule) the control plane puts on a node under memory pressure.
MEMORY_TAINT = "node.kubernetes.io/memory-pressure"


class Admission(NamedTuple):
    """Whether a pod may start here; reason and message of its status if not."""

    admitted: bool
    reason: str = ""
    message: str = ""


_YES = Admission(True)


def admit(pod: Pod, conditions: Collection[str], qos_of: Callable[[Pod], str] = qos_class) -> Admission:
    """Whether a node with these conditions takes the pod. Under memory pressure alone it refuses BestEffort pods that
    do not tolerate its taint; else every pod but a critical one.
    """
    if not conditions or is_critical(pod):
        return _YES
    willing = qos_of(pod) != BEST_EFFORT or any(tolerates(t, MEMORY_TAINT) for t in pod.tolerations)
    if willing and set(conditions) == {MEMORY_PRESSURE}:
        return _YES
    # A refused pod ends as Failed with this reason: from outside it looks like an eviction.
    return Admission(False, REASON, f"The node had condition: [{' '.join(sorted(conditions))}]. ")


def tolerates(toleration: Toleration, taint: str) -> bool:
    """Whether ``toleration`` covers a taint without value. An operator other than Exists or Equal covers nothing."""
    if toleration.effect not in ("", "NoSchedule") or toleration.key not in ("", taint):
        return False
    return toleration.operator == "Exists" or (toleration.operator in ("", "Equal") and not toleration.value)
