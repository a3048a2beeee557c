"""The message in the status of an evicted pod and the annotations of its event, as the kubelet writes them."""

from __future__ import annotations

from collections.abc import Iterable

from monitor.policy.pods import Pod
from monitor.policy.quantity import ZERO, Quantity

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
    """The message and the annotations for evicting ``pod`` because the node is low on ``resource``.

    ``quantity`` is the starved threshold's value (a Quantity keeps its spelling, see `ThresholdValue.shown`) and
    ``available`` what was observed; ``container_usage`` is bytes by container in the order of the stats, None for a pod
    without stats (then no container is named and no annotation is made). ``pod_usage`` is the pod's own bytes (0 if its
    memory stats exist without a working set).
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
