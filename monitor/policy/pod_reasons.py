"""Why a pod is critical, has its QoS class and its request, as text: from its spec, or from what an operator wrote."""

from __future__ import annotations

from dataclasses import replace

from monitor.policy.pods import Container, Pod, Resources
from monitor.policy.qos import BEST_EFFORT, CRITICAL_PRIORITY, GUARANTEED, is_mirror, is_static
from monitor.policy.quantity import ZERO
from monitor.policy.releases import CURRENT, Era
from monitor.policy.resources import containers_request, pod_level_resources_set


def why_critical(pod: Pod, era: Era = CURRENT) -> str:
    """What protects the pod from eviction; empty if nothing does."""
    if pod.taken_critical:
        return pod.taken_critical
    if era.name == "kubelet-1.8":
        return "marked by annotation" if era.is_critical(pod) else ""
    if is_static(pod):
        return "static pod"
    if is_mirror(pod):
        return "mirror pod"
    if (pod.priority or 0) >= CRITICAL_PRIORITY:
        return f"priority {pod.priority}"
    return ""


def why_class(pod: Pod, era: Era = CURRENT) -> str:
    """How the pod's QoS class came about."""
    if pod.written:
        return pod.written["class"]
    if not pod.spec_known:
        return "its cgroup is that of one"
    if pod.qos_class_status:
        return "as its status says (status.qosClass)"
    quality = era.qos_class(pod)
    whole = pod.resources if era.qos_class is CURRENT.qos_class else None
    holders: list[tuple[str, Container | Resources]] = [("spec.resources", whole)] if whole is not None else []
    holders = holders or [(f"container {c.name}", c) for c in (*pod.containers, *pod.init_containers)]
    if quality == BEST_EFFORT:
        none = "no container names a" if whole is None else "spec.resources names no"
        return f"{none} request or limit of cpu or memory"
    asked = {name: sum((holder.requests.get(name, ZERO) for _, holder in holders), ZERO) for name in ("cpu", "memory")}
    limit = {name: sum((holder.limits.get(name, ZERO) for _, holder in holders), ZERO) for name in ("cpu", "memory")}
    if quality == GUARANTEED:
        return f"requests and limits are the same: cpu {asked['cpu']}, memory {asked['memory']}"
    reasons = [
        f"{owner} has no {name} limit"
        for owner, holder in holders
        for name in ("cpu", "memory")
        if not holder.limits.get(name, ZERO) > ZERO
    ]
    reasons += [f"{name}: {asked[name]} requested, limit {limit[name]}" for name in asked if asked[name] != limit[name]]
    return "not Guaranteed: " + reasons[0]


def why_request(pod: Pod, resource: str, era: Era = CURRENT) -> str:
    """How the request that is compared came about: ``memory`` or ``ephemeral-storage``."""
    total = era.request(pod, resource)
    if pod.written:
        return f"{total}: {pod.written['request'] if resource == 'memory' else 'services ask for memory alone'}"
    if not pod.spec_known:
        return f"{total}: its spec is not known, guessed from its cgroup and processes"
    if era.request is not CURRENT.request:
        regular = sum((c.requests.get(resource, ZERO) for c in pod.containers), ZERO)
        rule = "the containers' together" if total == regular else "the largest init container's"
        return f"{total}: {rule} ({era.name} knows no sidecars, overhead or pod-level requests)"
    if pod_level_resources_set(pod):
        assert pod.resources is not None
        named = pod.resources.requests.get(resource) if resource == "memory" else None
        parts = ["spec.resources names none, which hides the containers'" if named is None else f"{named} for the pod"]
        needed = ZERO if named is None else named
    else:
        sidecars = tuple(c for c in pod.init_containers if c.sidecar)
        regular = containers_request(replace(pod, init_containers=()), resource)
        running = containers_request(replace(pod, init_containers=sidecars), resource)
        needed = containers_request(pod, resource)
        if needed > running:
            parts = [f"{needed} at a step of the init containers, more than the {running} of the running ones"]
        else:
            parts = [f"containers {regular}"] + ([f"sidecars {running - regular}"] if running != regular else [])
    if total != needed:
        parts.append(f"overhead {total - needed}")
    return f"{total}: {' + '.join(parts)}"
