"""How much of a resource a pod asked for: the rules for sidecars, init containers, pod-level resources and overhead."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from monitor.policy.pods import Container, Pod, Quantities, per_pod
from monitor.policy.quantity import ZERO, Quantity


def is_pod_level(resources: Iterable[str]) -> bool:
    """One of these can be set for a whole pod: cpu, memory, huge pages (others in `spec.resources` are ignored)."""
    return any(name in ("cpu", "memory") or name.startswith("hugepages-") for name in resources)


def pod_level_resources_set(pod: Pod) -> bool:
    """`spec.resources` names such a resource; a limit alone counts too."""
    return pod.resources is not None and (is_pod_level(pod.resources.requests) or is_pod_level(pod.resources.limits))


@per_pod
def pod_request(pod: Pod, resource: str) -> Quantity:
    """The request of ``pod`` for ``resource`` as ranking uses it, overhead included. Pod-level resources, where set,
    hide those of the containers altogether, also for a resource they do not name.
    """
    asked = pod.ungated if pod.resources is None else pod.resources.requests
    if resource in asked and is_pod_level((resource,)):
        total = asked[resource]
    elif pod_level_resources_set(pod):
        total = ZERO
    else:
        total = containers_request(pod, resource)
    # Overhead is only for pods that asked for something.
    if resource in pod.overhead and not total.is_zero:
        total += pod.overhead[resource]
    return total


def containers_request(pod: Pod, resource: str) -> Quantity:
    """What the containers need together, or the largest step of initialisation if that is more."""
    return max(together(pod, resource, lambda container: container.requests) or ZERO, ZERO)


def with_gate_off(pod: Pod) -> Pod:
    """The pod with the gate PodLevelResources off: ranking still takes a pod-level request for its resource."""
    return pod if pod.resources is None else replace(pod, resources=None, ungated=pod.resources.requests)


def pod_limit(pod: Pod, resource: str) -> Quantity | None:
    """The limit of the whole pod for ``resource``, overhead included; None if nothing in it names one."""
    limit = together(pod, resource, lambda container: container.limits)
    if pod.resources is not None and is_pod_level((resource,)) and resource in pod.resources.limits:
        limit = pod.resources.limits[resource]
    if limit is not None and not limit.is_zero and resource in pod.overhead:
        limit = limit + pod.overhead[resource]
    return limit


def together(pod: Pod, resource: str, of: Callable[[Container], Quantities]) -> Quantity | None:
    """The most that a moment of the pod's life takes: containers beside sidecars, or a step of initialisation with the
    sidecars before it. One amount alone keeps its spelling.
    """
    running = [of(container).get(resource) for container in pod.containers]
    sidecars: list[Quantity | None] = []
    moments = [running]
    for container in pod.init_containers:
        own = of(container).get(resource)
        if container.sidecar:
            running.append(own)
            sidecars.append(own)
            moments.append([*sidecars])
        else:
            moments.append([own, *sidecars])
    known = [[amount for amount in moment if amount is not None] for moment in moments]
    return max([sum(amounts[1:], amounts[0]) for amounts in known if amounts], default=None)
